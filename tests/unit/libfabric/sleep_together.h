// Several threads that sleep on one thing.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

namespace clan::test {

/// Several threads that sleep on one thing. In each round something comes for every one of them,
/// and a thread that has got its own does not come back before all have: nothing else would wake
/// those that were missed. `take` is called until it is true; `give` with the number of what to
/// give.
inline void sleep_together(int rounds, const std::function<bool(int sleeper, int round)>& take,
                           const std::function<void(int sleeper, int round)>& give) {
  constexpr int kSleepers = 4;
  std::atomic<int> taken{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < kSleepers; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < rounds && !stop.load(); ++round) {
        while (!stop.load() && !take(i, round)) {
        }
        ++taken;
        while (!stop.load() && taken.load() < (round + 1) * kSleepers) std::this_thread::yield();
      }
    });
  }
  for (int round = 0; round < rounds && !stop.load(); ++round) {
    // Now and then they have had the time to fall asleep.
    if (round % 16 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (int i = 0; i < kSleepers; ++i) give(i, round);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (taken.load() < (round + 1) * kSleepers) {
      if (std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "round " << round << ": " << taken.load() - round * kSleepers
                      << " have got theirs";
        stop.store(true);
        break;
      }
      std::this_thread::yield();
    }
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace clan::test
