// How often an end looks for the other one, and when it gives up: after a number of calls, or fewer
// if both have sent much, as the other end has made many calls then, too.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "clan/detail/clock.h"
#include "state/socket.h"

namespace clan::preload {

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

/// Tells whether to check at this call: always at first, then eight times until the number doubles.
inline bool looks_at(std::uint32_t call) {
  return call < 16 || call % (std::bit_floor(call) / 8) == 0;
}

/// Tells whether an offer has waited long enough: also a second, as a program may make that many
/// calls in a millisecond, in which the other end has not run.
inline bool has_waited_long(const Socket& s, std::uint32_t call) {
  return call >= kMostOfferCalls && looks_at(call) && monotonic_ns() - s.offered_ns > kLeastOfferNs;
}

}  // namespace clan::preload
