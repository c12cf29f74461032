#include "steering.h"

#include <linux/bpf.h>
#include <linux/if_tun.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace clan::ip {
namespace {

constexpr std::uint8_t kSkb = BPF_REG_6;

bpf_insn make(unsigned code, unsigned to, unsigned from, int offset, std::uint32_t value) {
  bpf_insn insn{};
  insn.code = static_cast<std::uint8_t>(code);
  insn.dst_reg = to & 0xf;
  insn.src_reg = from & 0xf;
  insn.off = static_cast<std::int16_t>(offset);
  insn.imm = static_cast<std::int32_t>(value);
  return insn;
}

std::uint32_t word(const Address& address, std::size_t i) {
  const auto* b = address.bytes.data() + i * 4;
  return std::uint32_t{b[0]} << 24 | std::uint32_t{b[1]} << 16 | std::uint32_t{b[2]} << 8 | b[3];
}
std::uint32_t mask(unsigned bits, std::size_t i) {
  const unsigned before = static_cast<unsigned>(i) * 32;
  if (bits <= before) return 0;
  return bits >= before + 32 ? ~0u : ~(~0u >> (bits - before));
}

void leave(std::vector<bpf_insn>& code, unsigned queue) {
  code.push_back(make(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, queue));
  code.push_back(make(BPF_JMP | BPF_EXIT, 0, 0, 0, 0));
}

// The destination's words go to the stack; then each prefix is compared.
void add_family(std::vector<bpf_insn>& code, bool v6, std::span<const Steered> prefixes) {
  const std::size_t words = v6 ? 4 : 1;
  for (std::size_t i = 0; i < words; ++i) {
    const auto at = static_cast<std::uint32_t>((v6 ? 24 : 16) + 4 * i);
    code.push_back(make(BPF_LD | BPF_ABS | BPF_W, 0, 0, 0, at));
    code.push_back(
        make(BPF_STX | BPF_MEM | BPF_W, BPF_REG_10, BPF_REG_0, -16 + static_cast<int>(4 * i), 0));
  }
  for (const Steered& one : prefixes) {
    if (one.prefix.address.v6 != v6) continue;
    std::vector<std::size_t> jumps;
    for (std::size_t i = 0; i < words && mask(one.prefix.bits, i) != 0; ++i) {
      const std::uint32_t bits = mask(one.prefix.bits, i);
      code.push_back(
          make(BPF_LDX | BPF_MEM | BPF_W, BPF_REG_0, BPF_REG_10, -16 + static_cast<int>(4 * i), 0));
      code.push_back(make(BPF_ALU | BPF_AND | BPF_K, BPF_REG_0, 0, 0, bits));
      jumps.push_back(code.size());
      code.push_back(
          make(BPF_JMP32 | BPF_JNE | BPF_K, BPF_REG_0, 0, 0, word(one.prefix.address, i) & bits));
    }
    leave(code, one.queue);
    if (jumps.empty()) return;  // it has every destination
    for (const std::size_t jump : jumps)
      code[jump].off = static_cast<std::int16_t>(code.size() - jump - 1);
  }
  leave(code, 0);
}

}  // namespace

std::vector<bpf_insn> steering_program(std::span<const Steered> prefixes) {
  std::vector<bpf_insn> code;
  code.push_back(make(BPF_ALU64 | BPF_MOV | BPF_X, kSkb, BPF_REG_1, 0, 0));
  code.push_back(make(BPF_LD | BPF_ABS | BPF_B, 0, 0, 0, 0));  // a packet too short: queue 0
  code.push_back(make(BPF_ALU64 | BPF_RSH | BPF_K, BPF_REG_0, 0, 0, 4));
  const std::size_t jump = code.size();
  code.push_back(make(BPF_JMP | BPF_JEQ | BPF_K, BPF_REG_0, 0, 0, 6));
  add_family(code, false, prefixes);
  code[jump].off = static_cast<std::int16_t>(code.size() - jump - 1);
  add_family(code, true, prefixes);
  return code;
}

int load_steering_program(std::span<const Steered> prefixes) {
  const auto code = steering_program(prefixes);
  bpf_attr attr{};
  attr.prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
  attr.insns = reinterpret_cast<std::uint64_t>(code.data());
  attr.insn_cnt = static_cast<std::uint32_t>(code.size());
  attr.license = reinterpret_cast<std::uint64_t>("GPL");
  return static_cast<int>(::syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof attr));
}

Status steer(int device, std::span<const Steered> prefixes) {
  const int program = load_steering_program(prefixes);
  if (program < 0) return Error{errno, "the kernel loads no steering program"};
  const int attached = ::ioctl(device, TUNSETSTEERINGEBPF, &program);
  const int error = errno;
  ::close(program);
  if (attached != 0) return Error{error, "the device takes no steering program"};
  return {};
}

}  // namespace clan::ip
