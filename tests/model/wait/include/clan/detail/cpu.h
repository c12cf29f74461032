// Shadows <clan/detail/cpu.h> in the model of the wait policy: cores are the simulator's.
#pragma once

#include <cstdint>

#include "model/wait/machine.h"

namespace clan {

inline void cpu_pause() { sim::machine().spend(sim::machine().costs().pause); }
inline std::uint16_t current_cpu_tag() {
  return static_cast<std::uint16_t>(sim::machine().core() + 1);
}

}  // namespace clan
