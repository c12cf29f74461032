// The word by which an end knows how many of its threads ring (socket_face::kBells), taken apart.
//
//   bits 0..14   threads that ring | 15..29 those of them that send a doorbell just now
//   bit 30       kBellsClosed | bit 31 kRingerSends: the one that is named is one of those
//   bits 32..62  the name of one of them (sys::name_of()), 0: none
//
// The other end can write it: nothing here relies on what it says.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>

#include "clan/socket_face.h"
#include "clan/system_call.h"

namespace clan::preload::bells {

constexpr std::uint64_t kName = ~std::uint64_t{0} << socket_face::kRinger;
constexpr std::uint64_t kRingers = socket_face::kBellsClosed - 1;
constexpr std::uint64_t kSenders = kRingers & ~(socket_face::kSendsDoorbell - 1);
/// how long one that closes the gate waits for those that ring
constexpr std::uint64_t kForRingersNs = 100'000'000;

inline std::uint64_t name_of(pid_t thread) {
  return std::uint64_t{sys::name_of(static_cast<std::uint32_t>(thread))} << socket_face::kRinger;
}

/// The one that is named has been killed.
inline std::uint64_t without_named(std::uint64_t word) {
  const std::uint64_t counted =
      (word & socket_face::kRingerSends) != 0 ? 1 + socket_face::kSendsDoorbell : std::uint64_t{1};
  const std::uint64_t ringers = word & kRingers;
  return (word & ~(kName | socket_face::kRingerSends | kRingers)) |
         (ringers - std::min(ringers, counted));
}

}  // namespace clan::preload::bells
