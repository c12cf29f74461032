#include "shm/asymmetric_fence.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <thread>

#include "clan/clock.h"

namespace clan::shm {
namespace {

constexpr std::uint32_t kRounds = 30000;

// Dekker's pattern, round by round: both sides store, fence and load; at least one must see the
// other.
struct Dekker {
  alignas(64) std::atomic<std::uint32_t> x{0};
  alignas(64) std::atomic<std::uint32_t> y{0};
  alignas(64) std::atomic<std::uint32_t> light_round{0};
  alignas(64) std::atomic<std::uint32_t> heavy_round{0};
  alignas(64) std::atomic<std::uint32_t> light_saw{0};
  std::atomic<bool> stop{false};

  // Waits for the other side; false when it takes unreasonably long.
  static bool meet(std::atomic<std::uint32_t>& mine, const std::atomic<std::uint32_t>& other,
                   std::uint32_t round) {
    mine.store(round, std::memory_order_release);
    for (std::uint64_t spins = 1; other.load(std::memory_order_acquire) < round; ++spins) {
      if (spins % 256 == 0) sched_yield();
      if (spins > 200'000'000) return false;
    }
    return true;
  }

  void light() {
    for (std::uint32_t round = 1; round <= kRounds; ++round) {
      if (!meet(light_round, heavy_round, 2 * round - 1)) return;
      x.store(round, std::memory_order_relaxed);
      AsymmetricFence::light();
      light_saw.store(y.load(std::memory_order_relaxed), std::memory_order_relaxed);
      if (!meet(light_round, heavy_round, 2 * round)) return;
    }
  }

  // The number of rounds in which neither saw the other.
  std::uint32_t heavy() {
    std::uint32_t both_missed = 0;
    for (std::uint32_t round = 1; round <= kRounds; ++round) {
      if (!meet(heavy_round, light_round, 2 * round - 1)) return kRounds;
      y.store(round, std::memory_order_relaxed);
      AsymmetricFence::heavy();
      const std::uint32_t saw = x.load(std::memory_order_relaxed);
      if (!meet(heavy_round, light_round, 2 * round)) return kRounds;
      if (saw != round && light_saw.load(std::memory_order_relaxed) != round) ++both_missed;
    }
    return both_missed;
  }
};

TEST(AsymmetricFence, OrdersTheLightSideOfAnotherThread) {
  if (!AsymmetricFence::register_process()) GTEST_SKIP() << "this kernel has no membarrier";
  Dekker d;
  std::thread other([&] { d.light(); });
  EXPECT_EQ(d.heavy(), 0u);
  other.join();
}

TEST(AsymmetricFence, OrdersTheLightSideOfAForkedProcess) {
  if (!AsymmetricFence::register_process()) GTEST_SKIP() << "this kernel has no membarrier";
  void* p =
      ::mmap(nullptr, sizeof(Dekker), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(p, MAP_FAILED);
  auto* d = new (p) Dekker;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // registered by inheritance
    d->light();
    ::_exit(0);
  }
  EXPECT_EQ(d->heavy(), 0u);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  ::munmap(p, sizeof(Dekker));
}

TEST(AsymmetricFence, RegistersAgainWithoutHarm) {
  const bool first = AsymmetricFence::register_process();
  EXPECT_EQ(AsymmetricFence::register_process(), first);
  AsymmetricFence::heavy();
  AsymmetricFence::light();
  AsymmetricFence::full();
}

}  // namespace
}  // namespace clan::shm
