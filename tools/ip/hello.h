// The first message of a connection, and later ones that change what it says. Other messages are
// packets of packet.h: their first byte is the virtio header's flags, which have no such value.
//
// The ends have the same byte order, as their virtio headers do; of another one the magic differs.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "address.h"

namespace clan::ip {

struct Hello {
  static constexpr std::uint8_t kFirst = 0xc1;
  static constexpr std::uint32_t kMagic = 0x69'70'31'00 | kFirst;
  std::uint32_t magic = kMagic;
  std::uint32_t offloads = 0;  ///< TUN_F_*: what the sender takes
  std::uint32_t mtu = 0;
  std::uint32_t v6 = 0;
  std::uint8_t address[16] = {};  ///< of the sender, by which it is found

  Address from() const { return Address::of(v6 != 0, address); }
};
static_assert(sizeof(Hello) == 32);

inline bool is_hello(std::span<const std::byte> message) {
  return !message.empty() && static_cast<std::uint8_t>(message[0]) == Hello::kFirst;
}

inline std::optional<Hello> parse_hello(std::span<const std::byte> message) {
  Hello hello;
  if (message.size() != sizeof hello) return std::nullopt;
  std::memcpy(&hello, message.data(), sizeof hello);
  if (hello.magic != Hello::kMagic || hello.v6 > 1 || hello.mtu < 68 || hello.mtu > 65'535 ||
      !hello.from().is_of_one())
    return std::nullopt;
  return hello;
}

}  // namespace clan::ip
