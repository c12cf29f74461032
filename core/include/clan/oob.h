// Out-of-band messages: small datagrams between endpoints, for connection set-up, tear-down and
// control (clan-driver-interface sections 2 and 3.1). Each costs a system call. In order per peer,
// but not promised: what arrives while an endpoint's queue is full is discarded and counted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace clan {

/// Payload bytes of one message.
constexpr std::size_t kOobPayload = 160;

/// Layout (176 bytes, native byte order): to 4, from 4, type 4, length 4, payload 160.
struct OobMessage {
  std::uint32_t to = 0;    ///< endpoint at the receiver
  std::uint32_t from = 0;  ///< endpoint at the sender, for answers
  std::uint32_t type = 0;  ///< the user's; values with the top bit set are CLAN's own
  std::uint32_t length = 0;
  std::array<std::byte, kOobPayload> payload{};
};
static_assert(sizeof(OobMessage) == 176 && std::is_trivially_copyable_v<OobMessage>);

constexpr std::uint32_t kOobInternal = 0x80000000;

}  // namespace clan
