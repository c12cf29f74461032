// Shadows <clan/detail/preemption.h> in the model of the wait policy: the simulator counts how
// often a thread was switched out.
#pragma once

#include <cstdint>

#include "model/wait/machine.h"

namespace clan {

class PreemptionWatch {
 public:
  void begin() { before_ = sim::machine().switches(); }
  static bool works() { return true; }
  bool happened() const { return sim::machine().switches() != before_; }

 private:
  std::uint64_t before_ = sim::machine().switches();
};

}  // namespace clan
