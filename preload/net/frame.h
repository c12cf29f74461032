// What two carriers say to each other in the stream between their hosts: frames, a head of 16 bytes
// each, numbers big-endian. All of it is input.
//
//   0  type (1) | flags (1) | 0 (2) | length of what follows the head (4) | value (8)
//
//   type         flags        value                               behind it
//   1 HELLO      0            version                             both names, as the sender sees
//                                                                 them: local, remote, each an
//                                                                 address (16) and a port (2)
//   2 ATTACHED   0            0                                   -    the program is in its pipe
//   3 SWITCH     0            bytes that it had sent by TCP       -    it sends here from now on
//   4 DATA       0            0                                   1 to 131072 bytes
//   5 END        0            0                                   -    it has half-closed
//   6 LEAVE      0            0                                   -    it sends by TCP again
//   7 CLOSED     1: a reset   0                                   -    it has closed
//   8 SWITCHED   0            0                                   -    SWITCH is known: what TCP
//                                                                 has behind that place is not
//                                                                 the program's bytes
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernel/sock_diag.h"

namespace clan::preload {

enum class FrameType : std::uint8_t {
  kHello = 1,
  kAttached,
  kSwitch,
  kData,
  kEnd,
  kLeave,
  kClosed,
  kSwitched,
};

constexpr std::size_t kFrameHead = 16;
constexpr std::uint32_t kMostFrameBytes = 128 * 1024;
constexpr std::uint32_t kNamesBytes = 36;
constexpr std::uint64_t kCarrierWire = 1;  ///< the version in HELLO
constexpr std::uint8_t kFrameReset = 1;

struct Frame {
  FrameType type{};
  std::uint8_t flags = 0;
  std::uint32_t length = 0;
  std::uint64_t value = 0;
};

std::array<std::byte, kFrameHead> encode(const Frame& frame);
/// Nothing: it is no frame.
std::optional<Frame> decode(std::span<const std::byte, kFrameHead> head);

std::array<std::byte, kNamesBytes> encode(const Route& names);
/// Those names are the same connection's, seen from its other end.
bool mirrors(const Route& ours, std::span<const std::byte, kNamesBytes> theirs);

}  // namespace clan::preload
