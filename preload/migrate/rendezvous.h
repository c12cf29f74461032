// What rendezvous.cc (the other end is in our network namespace) and directory.cc (it is in another
// one) share.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "clan/clock.h"
#include "os/sock_diag.h"
#include "state/socket.h"

namespace clan::preload {

/// Calls of one end after which it gives up: the other one will not come any more. Fewer if both have said
/// much: then the other end, too, has made many.
constexpr std::uint32_t kMostOfferCalls = 1024;
constexpr std::uint32_t kMostExchanges = 128;
constexpr std::uint64_t kLeastOfferNs = 1'000'000'000;
inline bool have_exchanged_much(const Socket& s) {
  return std::min(s.sends.load(std::memory_order_relaxed), s.receives.load(std::memory_order_relaxed)) >=
         kMostExchanges;
}
inline bool gives_up(const Socket& s, std::uint32_t call) {
  return call >= kMostOfferCalls || have_exchanged_much(s);
}
/// Whether it looks at this call of it: each time at first, then eight times until there have been twice as
/// many.
inline bool looks_at(std::uint32_t call) { return call < 16 || call % (std::bit_floor(call) / 8) == 0; }
/// Of an offer. Who sends without end makes so many calls in a millisecond, in which the other end need not
/// have run: it gets a second, too.
inline bool has_waited_long(const Socket& s, std::uint32_t call) {
  return call >= kMostOfferCalls && looks_at(call) && monotonic_ns() - s.offered_ns > kLeastOfferNs;
}

/// The connection stays on TCP for good. `why`: for CLAN_LOG=info, as `clan stat --all` has it.
void stay(Socket& s);
void stay_because(int fd, Socket& s, const char* why);
/// From now on both directions may move to `s.pipe`. False: a call is under way in the kernel;
/// later. `counted`: whoever gave us the descriptor has counted us among the holders, or we were
/// before exec.
bool enter_pipe(int fd, Socket& s, const Route& route, bool counted = false);

/// Sends a message with descriptors, which stay ours. Does not wait.
bool send_descriptors(int to, const void* message, std::size_t size, const int* fds, int count);
/// Receives one of exactly `size` bytes and `count` descriptors; what differs is closed. Does not
/// wait. 1: received. 0: none yet. -1: something else, or nobody is there any more.
int receive_descriptors(int from, void* message, std::size_t size, int* fds, int count);

// --- directory.cc: the other end is in another network namespace, and CLAN_DIR is set
// -----------------

/// Client, when the connection is in use: offers.
void offer_in_directory(int fd, Socket& s, const Route& route);
/// Server, at some of its calls: takes up the offer, if there is one.
void claim_in_directory(int fd, Socket& s, const Route& route);
/// Both, at their next calls: what has the other end done?
void go_on_in_directory(int fd, Socket& s);

}  // namespace clan::preload
