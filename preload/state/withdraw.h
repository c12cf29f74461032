// An offer of a connection, and how it is taken back: its descriptors, and in CLAN_DIR its name.
#pragma once

#include <sys/un.h>

#include <cstddef>
#include <cstdint>

#include "clan/face/reasons.h"
#include "os/config.h"
#include "state/socket.h"

namespace clan::preload {

/// For the file of an offer: by the connection's addresses.
socklen_t path_of(std::uint64_t name, sockaddr_un* path);
void unlink_offer(std::uint64_t name);
/// For all these names.
constexpr char kOfferPrefix[] = "clan1-";
constexpr std::size_t kOfferPrefixSize = sizeof kOfferPrefix - 1;
static_assert(kOfferPrefixSize + 16 == kOfferName);

/// Takes back an offer, or a claim. drop_offer() leaves the file, which is another process's
/// that has it too.
void withdraw_offer(Socket& s);

void drop_offer(Socket& s);

/// Keeps the connection on TCP for good, and records the reason.
void stay(int fd, Socket& s, reasons::Why why, std::uint32_t number = 0);

}  // namespace clan::preload
