// An offer of a connection, and its withdrawal.
#pragma once

#include <sys/un.h>

#include <cstddef>
#include <cstdint>

#include "clan/face/reasons.h"
#include "os/config.h"
#include "state/socket.h"

namespace clan::preload {

/// Fills in the path of an offer's file, whose name the connection's addresses give.
socklen_t path_of(std::uint64_t name, sockaddr_un* path);
void unlink_offer(std::uint64_t name);
constexpr char kOfferPrefix[] = "clan1-";
constexpr std::size_t kOfferPrefixSize = sizeof kOfferPrefix - 1;
static_assert(kOfferPrefixSize + 16 == kOfferName);

/// Takes back an offer or a claim. drop_offer() leaves the file to another process that has it too.
void withdraw_offer(Socket& s);

void drop_offer(Socket& s);

/// Keeps the connection on TCP for good, and records why.
void stay(int fd, Socket& s, reasons::Why why, std::uint32_t number = 0);

}  // namespace clan::preload
