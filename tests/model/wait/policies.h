// How a thread of a simulated machine may wait: CLAN's policy, and those that it is compared with.
#pragma once

#include <clan/face/wait.h>

#include "model/wait/machine.h"

namespace clan::sim {

// Each wait() returns when ready() has said so. kTcp: the connection is the kernel's, and each
// message a system call at both ends.

/// CLAN's.
struct Production {
  static constexpr bool kTcp = false;
  void wait(auto& ready, PeerHint peer, auto& sleep) {
    while (waiter.wait(ready, peer, kNoDeadline, sleep) != WaitResult::kReady) continue;
  }
  Waiter waiter{WaitOptions{}};
};

struct AlwaysSleeps {
  static constexpr bool kTcp = false;
  void wait(auto& ready, PeerHint, auto& sleep) {
    while (!ready()) sleep();
  }
};

struct Tcp : AlwaysSleeps {
  static constexpr bool kTcp = true;
};

struct AlwaysSpins {
  static constexpr bool kTcp = false;
  void wait(auto& ready, PeerHint, auto&) {
    while (!ready()) cpu_pause();
  }
};

struct AlwaysYields {
  static constexpr bool kTcp = false;
  void wait(auto& ready, PeerHint, auto&) {
    while (!ready()) sched_yield();
  }
};

}  // namespace clan::sim
