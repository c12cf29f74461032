// Bell: a condition that is signalled whenever a descriptor has something new.
#include "wait/bell.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

namespace clan::ofi {
namespace {

struct Rung {
  Rung() : fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    auto made = Bell::create(fd);
    EXPECT_TRUE(made.ok());
    if (made) bell = std::move(*made);
  }
  ~Rung() {
    bell.reset();
    ::close(fd);
  }
  void ring() const {
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(fd, &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }
  /// Sleeps on the condition; `ring_it` is called between the last look and the sleep. False:
  /// nobody has signalled in that time.
  template <typename RingIt>
  bool sleeps_until_rung(int timeout_ms, RingIt ring_it) {
    const fi_mutex_cond face = bell->face();
    timespec until;
    ::clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += timeout_ms % 1000 * 1'000'000L;
    if (until.tv_nsec >= 1'000'000'000L) {
      ++until.tv_sec;
      until.tv_nsec -= 1'000'000'000L;
    }
    ::pthread_mutex_lock(face.mutex);
    ring_it();
    const int rc = ::pthread_cond_timedwait(face.cond, face.mutex, &until);
    ::pthread_mutex_unlock(face.mutex);
    return rc == 0;
  }
  int fd;
  std::unique_ptr<Bell> bell;
};

TEST(Bell, WakesAThreadThatHeldTheMutexWhileItWasRung) {
  Rung rung;
  ASSERT_NE(rung.bell, nullptr);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(rung.sleeps_until_rung(20'000, [&] { rung.ring(); })) << i;
  }
}

// Each event rings once, though nobody empties the descriptor.
TEST(Bell, IsSilentWhileNothingNewComes) {
  Rung rung;
  ASSERT_NE(rung.bell, nullptr);
  ASSERT_TRUE(rung.sleeps_until_rung(20'000, [&] { rung.ring(); }));
  EXPECT_FALSE(rung.sleeps_until_rung(50, [] {}));
}

TEST(Bell, EndsWithItsThreadAsleep) {
  for (int i = 0; i < 20; ++i) {
    const Rung rung;
    ASSERT_NE(rung.bell, nullptr);
  }
}

// The child has no such thread, and must not wait for its end.
TEST(Bell, EndsInAForkedChild) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a child of a process with threads makes none under ThreadSanitizer";
#endif
  Rung rung;
  ASSERT_NE(rung.bell, nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    rung.bell.reset();
    ::_exit(7);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  EXPECT_TRUE(rung.sleeps_until_rung(20'000, [&] { rung.ring(); }));
}

TEST(Bell, IsNotMadeForWhatCannotBePolled) { EXPECT_FALSE(Bell::create(-1).ok()); }

}  // namespace
}  // namespace clan::ofi
