#include "shm/asymmetric_fence.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <new>
#include <thread>

#include "clan/detail/clock.h"

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
  std::uint32_t rounds = kRounds;

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
    for (std::uint32_t round = 1; round <= rounds; ++round) {
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
    for (std::uint32_t round = 1; round <= rounds; ++round) {
      if (!meet(heavy_round, light_round, 2 * round - 1)) return rounds;
      y.store(round, std::memory_order_relaxed);
      AsymmetricFence::heavy();
      const std::uint32_t saw = x.load(std::memory_order_relaxed);
      if (!meet(heavy_round, light_round, 2 * round)) return rounds;
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

// Refuses membarrier() to the calling thread.
bool refuse_membarrier() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
}

TEST(AsymmetricFence, OrdersTheLightSideWhereAProgramRefusesItToItselfLater) {
  if (!AsymmetricFence::register_process()) GTEST_SKIP() << "this kernel has no membarrier";
  Dekker d;
  d.rounds = 3000;
  bool refused = false;
  std::uint32_t missed = 0;
  std::thread sleeper([&] {
    refused = refuse_membarrier();
    missed = d.heavy();
  });
  d.light();
  sleeper.join();
  if (!refused) GTEST_SKIP() << "no filter of system calls is to be had here";
  EXPECT_EQ(missed, 0u);
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
