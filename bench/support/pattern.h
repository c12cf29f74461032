// What the measuring loops send, and how they know that it arrived: every message carries a byte
// that depends on its number at its front, middle and back. A transport that loses, repeats,
// reorders or forgets to deliver fails the measurement instead of winning it.
//
// Small messages come from a set prepared beforehand, so that stamping is not what is measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace clan::bench {

inline constexpr std::uint64_t kPatternPeriod = 64;

inline std::byte pattern_of(std::uint64_t number) {
  return static_cast<std::byte>((number % kPatternPeriod) * 3 + 17);
}

inline void stamp(std::span<std::byte> message, std::uint64_t number) {
  const std::byte p = pattern_of(number);
  message.front() = p;
  message[message.size() / 2] = p;
  message.back() = p;
}

inline bool check(std::span<const std::byte> message, std::uint64_t number) {
  const std::byte p = pattern_of(number);
  return message.front() == p && message[message.size() / 2] == p && message.back() == p;
}

class MessageSource {
 public:
  explicit MessageSource(std::size_t bytes) : bytes_(bytes), prepared_(bytes <= kPreparedUpTo) {
    stride_ = (bytes + 63) / 64 * 64;
    memory_.resize((prepared_ ? kPatternPeriod : 1) * stride_, std::byte{0x5a});
    if (!prepared_) return;
    for (std::uint64_t n = 0; n < kPatternPeriod; ++n) stamp(slot(n), n);
  }

  std::span<const std::byte> message(std::uint64_t number) {
    if (prepared_) return slot(number % kPatternPeriod);
    stamp(slot(0), number);
    return slot(0);
  }

 private:
  static constexpr std::size_t kPreparedUpTo = 1024;
  std::span<std::byte> slot(std::uint64_t i) { return {memory_.data() + i * stride_, bytes_}; }

  std::size_t bytes_;
  std::size_t stride_ = 0;
  bool prepared_;
  std::vector<std::byte> memory_;
};

}  // namespace clan::bench
