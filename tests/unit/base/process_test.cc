#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>

#include "clan/detail/system_call.h"

namespace clan {
namespace {

// Until it is a zombie; it is not waited for.
void await_end_of(pid_t pid) {
  siginfo_t how{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &how, WEXITED | WNOWAIT), 0);
}

TEST(Process, KnowsThePidNamespaceInWhichItCounts) {
  struct stat about {};
  ASSERT_EQ(::stat("/proc/self/ns/pid", &about), 0);
  for (int k = 0; k < 2; ++k, sys::forget_pid_namespace())
    EXPECT_EQ(sys::pid_namespace(), static_cast<std::uint32_t>(about.st_ino));
}

TEST(Process, OfAThreadsNameHasEndedIfItIsOfThisNamespace) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  const std::uint32_t dead = sys::name_of(static_cast<std::uint32_t>(child));
  EXPECT_EQ(dead & sys::kThreadId, static_cast<std::uint32_t>(child));
  EXPECT_TRUE(sys::has_ended(dead));
  EXPECT_FALSE(sys::has_ended(dead ^ 1u << 23)) << "another one's";
  EXPECT_TRUE(sys::is_of_another_namespace(dead ^ 1u << 23));
  EXPECT_FALSE(sys::has_ended(sys::name_of(static_cast<std::uint32_t>(::gettid()))));
  EXPECT_FALSE(sys::has_ended(sys::name_of(0))) << "no thread's";
}

TEST(Process, ThatRunsExists) { EXPECT_TRUE(sys::exists(::getpid())); }

TEST(Process, ThatWasKilledDoesNotThoughNobodyHasWaitedForIt) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::pause();
    ::_exit(0);
  }
  EXPECT_TRUE(sys::exists(pid));
  ::kill(pid, SIGKILL);
  await_end_of(pid);
  EXPECT_FALSE(sys::exists(pid));
  ::waitpid(pid, nullptr, 0);
  EXPECT_FALSE(sys::exists(pid));
}

TEST(Process, WhoseFirstThreadHasEndedExists) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(30);
    static int told = ready[1];
    pthread_t thread;
    ::pthread_create(
        &thread, nullptr,
        [](void*) -> void* {
          ::usleep(20'000);
          (void)!::write(told, "x", 1);
          ::pause();
          return nullptr;
        },
        nullptr);
    ::syscall(SYS_exit, 0);  // of this thread alone
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_TRUE(sys::exists(pid));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace clan
