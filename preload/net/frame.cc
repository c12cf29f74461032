#include "net/frame.h"

#include <endian.h>

#include <algorithm>
#include <cstring>

namespace clan::preload {
namespace {

template <typename Number>
void put(std::byte* at, Number value) {
  std::memcpy(at, &value, sizeof value);
}

template <typename Number>
Number get(const std::byte* at) {
  Number value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

void put(std::byte* at, const Endpoint& side) {
  std::memcpy(at, &side.address, sizeof side.address);
  put(at + sizeof side.address, htobe16(side.port));
}

// What each type may have behind its head and in it.
bool makes_sense(const Frame& frame) {
  const bool flagged = frame.flags != 0;
  switch (frame.type) {
    case FrameType::kHello: return !flagged && frame.length == kNamesBytes;
    case FrameType::kSwitch: return !flagged && frame.length == 0;
    case FrameType::kData:
      return !flagged && frame.value == 0 && frame.length > 0 && frame.length <= kMostFrameBytes;
    case FrameType::kClosed:
      return (frame.flags & ~kFrameReset) == 0 && frame.value == 0 && frame.length == 0;
    case FrameType::kAttached:
    case FrameType::kEnd:
    case FrameType::kSwitched:
    case FrameType::kLeave: return !flagged && frame.value == 0 && frame.length == 0;
  }
  return false;
}

}  // namespace

std::array<std::byte, kFrameHead> encode(const Frame& frame) {
  std::array<std::byte, kFrameHead> head{};
  head[0] = static_cast<std::byte>(frame.type);
  head[1] = static_cast<std::byte>(frame.flags);
  put(&head[4], htobe32(frame.length));
  put(&head[8], htobe64(frame.value));
  return head;
}

std::optional<Frame> decode(std::span<const std::byte, kFrameHead> head) {
  Frame frame;
  frame.type = static_cast<FrameType>(head[0]);
  frame.flags = static_cast<std::uint8_t>(head[1]);
  frame.length = be32toh(get<std::uint32_t>(&head[4]));
  frame.value = be64toh(get<std::uint64_t>(&head[8]));
  if (get<std::uint16_t>(&head[2]) != 0 || !makes_sense(frame)) return std::nullopt;
  return frame;
}

std::array<std::byte, kNamesBytes> encode(const Route& names) {
  std::array<std::byte, kNamesBytes> bytes{};
  put(&bytes[0], names.local);
  put(&bytes[kNamesBytes / 2], names.remote);
  return bytes;
}

bool mirrors(const Route& ours, std::span<const std::byte, kNamesBytes> theirs) {
  const auto expected = encode(Route{ours.remote, ours.local});
  return std::ranges::equal(expected, theirs);
}

}  // namespace clan::preload
