#include <algorithm>
#include <array>

#include "link/udp/wire/wire.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace clan::udp {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // reflected

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kTable = make_table();

std::uint32_t by_table(const std::byte* p, std::size_t n, std::uint32_t crc) {
  for (; n > 0; --n, ++p) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<std::uint8_t>(*p)) & 0xff];
  return crc;
}

#if defined(__x86_64__)
constexpr std::size_t kLeastLanes = 192;  ///< fewer bytes are not worth being dealt out
constexpr std::size_t kMostLane = 512;    ///< bytes of a lane in one go

/// At D / 8: x^(8 D - 33) modulo the polynomial, reflected. A checksum times that, reduced by the
/// instruction, is what it is after D zero bytes: a product of reflected numbers has a factor x,
/// the instruction x^32.
constexpr std::array<std::uint32_t, 2 * kMostLane / 8 + 1> make_shifts() {
  std::array<std::uint32_t, 2 * kMostLane / 8 + 1> shifts{};
  std::uint32_t power = 0x80000000;  // 1, reflected
  for (std::size_t bits = 33; bits <= 16 * kMostLane; ++bits) {
    if (bits % 64 == 0) shifts[bits / 64] = power;
    power = (power >> 1) ^ ((power & 1) != 0 ? kPolynomial : 0);
  }
  return shifts;
}
constexpr auto kShifts = make_shifts();

std::uint64_t word_at(const std::byte* p) {
  std::uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

/// `crc` times a power of x: 64 bits for the instruction to reduce.
__attribute__((target("sse4.2,pclmul"))) std::uint64_t shifted(std::uint64_t crc,
                                                               std::size_t bytes) {
  const __m128i product =
      _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(crc)),
                           _mm_cvtsi64_si128(static_cast<long long>(kShifts[bytes / 8])), 0);
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(product));
}

/// Three parts side by side, as the instruction takes three cycles and one may begin in each.
/// (Gopal et al., Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction, Intel 2011.)
__attribute__((target("sse4.2,pclmul"))) std::size_t by_lanes(const std::byte* p, std::size_t n,
                                                              std::uint32_t* crc) {
  const std::byte* const begin = p;
  while (n >= kLeastLanes) {
    const std::size_t lane = std::min(n / 24 * 8, kMostLane);
    std::uint64_t a = *crc, b = 0, c = 0;
    for (std::size_t i = 0; i < lane; i += 8) {
      a = __builtin_ia32_crc32di(a, word_at(p + i));
      b = __builtin_ia32_crc32di(b, word_at(p + lane + i));
      c = __builtin_ia32_crc32di(c, word_at(p + 2 * lane + i));
    }
    c ^= __builtin_ia32_crc32di(0, shifted(a, 2 * lane) ^ shifted(b, lane));
    *crc = static_cast<std::uint32_t>(c);
    p += 3 * lane;
    n -= 3 * lane;
  }
  return static_cast<std::size_t>(p - begin);
}

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(const std::byte* p, std::size_t n,
                                                               std::uint32_t crc) {
  std::uint64_t wide = crc;
  for (; n >= 8; n -= 8, p += 8) {
    wide = __builtin_ia32_crc32di(wide, word_at(p));
  }
  crc = static_cast<std::uint32_t>(wide);
  for (; n > 0; --n, ++p) crc = __builtin_ia32_crc32qi(crc, static_cast<unsigned char>(*p));
  return crc;
}
#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  static const bool has_product = __builtin_cpu_supports("pclmul") != 0;
  if (has_instruction) {
    crc = ~crc;
    if (has_product && bytes.size() >= kLeastLanes)
      bytes = bytes.subspan(by_lanes(bytes.data(), bytes.size(), &crc));
    return ~by_instruction(bytes.data(), bytes.size(), crc);
  }
#endif
  return ~by_table(bytes.data(), bytes.size(), ~crc);
}

/// For tests: the way of processors without the instruction.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes) {
  return ~by_table(bytes.data(), bytes.size(), ~std::uint32_t{0});
}

}  // namespace clan::udp
