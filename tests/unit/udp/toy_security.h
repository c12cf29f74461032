// ToySecurity: the Security interface without secrecy, for tests: keys are SipHash of what both
// ends know. A peer that changes a bit, replays or lacks the key is noticed; one that reads the
// shares has the key.
#pragma once

#include <array>
#include <cstring>
#include <memory>

#include "base/random.h"
#include "link/udp/wire/security.h"

namespace clan::test {

/// SipHash of two numbers.
inline std::uint64_t toy_hash(std::uint64_t k0, std::uint64_t k1, std::uint64_t a,
                              std::uint64_t b) {
  const std::uint64_t words[2] = {a, b};
  return siphash(k0, k1, std::as_bytes(std::span(words)));
}

class ToySecurity final : public udp::Security {
 public:
  ToySecurity(udp::Mode mode, std::uint64_t key) : mode_(mode), key_(key) {}

  udp::Mode mode() const override { return mode_; }
  std::unique_ptr<udp::KeyShare> make_share() override {
    auto share = std::make_unique<Share>();
    for (std::size_t i = 0; i < 32; i += 8) {
      const std::uint64_t word = toy_hash(key_, ++made_, i, 0);
      std::memcpy(share->data.data() + i, &word, 8);
    }
    return share;
  }
  udp::Tag mac(std::span<const std::byte> bytes) override { return tag(key_, bytes); }
  std::unique_ptr<udp::Session> agree(udp::KeyShare& ours, std::span<const std::byte> theirs,
                                      bool client, std::span<const std::byte> hello,
                                      std::span<const std::byte> accept) override {
    const std::uint64_t a = siphash(key_, 1, ours.bytes()), b = siphash(key_, 1, theirs);
    const std::uint64_t shared = a ^ b;
    return std::make_unique<Keys>(mode_, siphash(shared, siphash(key_, 2, hello), accept), client);
  }

 private:
  struct Share final : udp::KeyShare {
    std::array<std::byte, udp::kShareBytes> data{};
    std::span<const std::byte> bytes() const override { return data; }
  };

  static udp::Tag tag(std::uint64_t key, std::span<const std::byte> bytes) {
    udp::Tag t;
    const std::uint64_t words[2] = {siphash(key, 3, bytes), siphash(key, 4, bytes)};
    std::memcpy(t.data(), words, sizeof words);
    return t;
  }

  class Keys final : public udp::Session {
   public:
    Keys(udp::Mode mode, std::uint64_t key, bool client)
        : mode_(mode), key_(key), client_(client) {}
    void seal(std::uint64_t number, std::span<std::byte> packet) override {
      crypt(number, body_of(packet), client_);
      const udp::Tag t = packet_tag(number, packet, client_);
      std::memcpy(packet.last(t.size()).data(), t.data(), t.size());
    }
    bool open(std::uint64_t number, std::span<std::byte> packet) override {
      const udp::Tag t = packet_tag(number, packet, !client_);
      if (!udp::same_tag(t, packet.last(t.size()))) return false;
      crypt(number, body_of(packet), !client_);
      return true;
    }
    udp::Tag accept_mac() override { return tag(key_, std::as_bytes(std::span(&key_, 1))); }

   private:
    // 2^24 packets a key, as the interface asks.
    std::uint64_t key_for(std::uint64_t number, bool client) const {
      return toy_hash(key_, client ? 5 : 6, number >> 24, 0);
    }
    void crypt(std::uint64_t number, std::span<std::byte> body, bool client) const {
      if (mode_ != udp::Mode::kEncrypt) return;
      const std::uint64_t key = key_for(number, client);
      for (std::size_t i = 0; i < body.size(); i += 8) {
        const std::uint64_t word = toy_hash(key, number, i, 7);
        for (std::size_t k = i; k < std::min(i + 8, body.size()); ++k) {
          body[k] ^= static_cast<std::byte>(word >> (8 * (k - i)) & 0xff);
        }
      }
    }
    static std::span<std::byte> body_of(std::span<std::byte> packet) {
      return packet.subspan(udp::kDataHeader, packet.size() - udp::kDataHeader - udp::kTagBytes);
    }
    udp::Tag packet_tag(std::uint64_t number, std::span<std::byte> packet, bool client) const {
      const std::uint64_t header = siphash(key_, 8, packet.first(udp::kDataHeader));
      return tag(toy_hash(key_for(number, client), number, header, 0), body_of(packet));
    }
    udp::Mode mode_;
    std::uint64_t key_;
    bool client_;
  };

  udp::Mode mode_;
  std::uint64_t key_;
  std::uint64_t made_ = 0;
};

}  // namespace clan::test
