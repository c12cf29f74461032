// The program by which the kernel chooses a queue of the device for each packet: that of the peer
// that has its destination.
#pragma once

#include <clan/result.h>

#include <span>
#include <vector>

#include "address.h"

struct bpf_insn;

namespace clan::ip {

struct Steered {
  Prefix prefix;
  unsigned queue = 0;
};

/// The first prefix that has the destination decides; queue 0 if none has it.
std::vector<bpf_insn> steering_program(std::span<const Steered> prefixes);
/// Loads it. A descriptor, or -1 with errno. EPERM: this process may not load programs.
int load_steering_program(std::span<const Steered> prefixes);
/// Attaches it to the device. EPERM: this process may not load programs.
Status steer(int device, std::span<const Steered> prefixes);

}  // namespace clan::ip
