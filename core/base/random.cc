#include "base/random.h"

#include <sys/random.h>

#include <bit>
#include <cerrno>
#include <cstdlib>

namespace clan {
namespace {

struct SipState {
  std::uint64_t v0, v1, v2, v3;

  SipState(std::uint64_t k0, std::uint64_t k1)
      : v0(k0 ^ 0x736f6d6570736575u),
        v1(k1 ^ 0x646f72616e646f6du),
        v2(k0 ^ 0x6c7967656e657261u),
        v3(k1 ^ 0x7465646279746573u) {}

  void round() {
    v0 += v1;
    v1 = std::rotl(v1, 13) ^ v0;
    v0 = std::rotl(v0, 32);
    v2 += v3;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1;
    v1 = std::rotl(v1, 17) ^ v2;
    v2 = std::rotl(v2, 32);
  }

  void absorb(std::uint64_t word) {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  }

  std::uint64_t finish() {
    v2 ^= 0xff;
    for (int i = 0; i < 4; ++i) round();
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

}  // namespace

std::uint64_t random_u64() {
  for (;;) {
    std::uint64_t value = 0;
    ssize_t n = ::getrandom(&value, sizeof value, 0);
    if (n == static_cast<ssize_t>(sizeof value) && value != 0) return value;
    // Keys from a weak source would be forgeable: a kernel without getrandom is not one we run on.
    if (n < 0 && errno != EINTR) std::abort();
  }
}

std::uint64_t siphash(std::uint64_t k0, std::uint64_t k1, std::span<const std::byte> bytes) {
  SipState s(k0, k1);
  std::uint64_t last = std::uint64_t{bytes.size()} << 56;
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    std::uint64_t word = 0;
    const std::size_t n = bytes.size() - i < 8 ? bytes.size() - i : 8;
    for (std::size_t k = 0; k < n; ++k)
      word |= std::uint64_t{static_cast<std::uint8_t>(bytes[i + k])} << (8 * k);
    if (n < 8) {
      last |= word;
    } else {
      s.absorb(word);
    }
  }
  s.absorb(last);
  return s.finish();
}

}  // namespace clan
