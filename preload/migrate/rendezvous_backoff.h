// How often an end looks for the other one, and when it gives up.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "clan/detail/clock.h"
#include "state/socket.h"

namespace clan::preload {

/// Calls of one end after which it gives up: the other one will not come any more. Fewer if both
/// have said much: then the other end, too, has made many.
constexpr std::uint32_t kMostOfferCalls = 1024;

constexpr std::uint32_t kMostExchanges = 128;
constexpr std::uint64_t kLeastOfferNs = 1'000'000'000;

inline bool have_exchanged_much(const Socket& s) {
  return std::min(s.sends.load(std::memory_order_relaxed),
                  s.receives.load(std::memory_order_relaxed)) >= kMostExchanges;
}

inline bool gives_up(const Socket& s, std::uint32_t call) {
  return call >= kMostOfferCalls || have_exchanged_much(s);
}

/// Whether a socket is checked at this call: each time at first, then eight times until there have
/// been twice as many.
inline bool looks_at(std::uint32_t call) {
  return call < 16 || call % (std::bit_floor(call) / 8) == 0;
}

/// Whether an offer has waited long enough. A program that sends without end makes so many calls in
/// a millisecond, in which the other end need not have run: it gets a second, too.
inline bool has_waited_long(const Socket& s, std::uint32_t call) {
  return call >= kMostOfferCalls && looks_at(call) && monotonic_ns() - s.offered_ns > kLeastOfferNs;
}

}  // namespace clan::preload
