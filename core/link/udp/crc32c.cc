#include <array>

#include "link/udp/wire.h"

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
__attribute__((target("sse4.2"))) std::uint32_t by_instruction(const std::byte* p, std::size_t n,
                                                               std::uint32_t crc) {
  std::uint64_t wide = crc;
  for (; n >= 8; n -= 8, p += 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    wide = __builtin_ia32_crc32di(wide, word);
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
  if (has_instruction) return ~by_instruction(bytes.data(), bytes.size(), ~crc);
#endif
  return ~by_table(bytes.data(), bytes.size(), ~crc);
}

/// For tests: the way of processors without the instruction.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes) {
  return ~by_table(bytes.data(), bytes.size(), ~std::uint32_t{0});
}

}  // namespace clan::udp
