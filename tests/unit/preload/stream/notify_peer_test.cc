#include <sys/ptrace.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "preload/tcp_pair.h"
#include "state/face.h"
#include "stream/bell.h"

namespace clan::preload {
namespace {

// --- killed at each step of a send ---------------------------------------------------------------

/// A process that shares the writer's end and sends a byte; it waits to be traced first.
pid_t sharer(const TcpPair& pair) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  Pipe::after_fork_in_child();
  t_signals.thread = 0;
  (void)thread_id();
  ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  ::raise(SIGSTOP);
  (void)pair.send(0, "x");
  ::_exit(0);
}

/// Lets it make so many steps, and kills it. How many it has made.
int kill_after(pid_t child, int steps) {
  int status = 0, made = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  while (made < steps && WIFSTOPPED(status)) {
    ::ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr);
    ::waitpid(child, &status, 0);
    ++made;
  }
  if (WIFSTOPPED(status)) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  return made;
}

/// Kills a sender beside a reader that sleeps. True: it has the byte, or there was none, when the
/// end is used again.
bool wakes_after_kill(int steps, int* published) {
  TcpPair pair;
  pair.migrate();
  EXPECT_EQ(pair.receive(1), "");
  Socket& writer = pair.socket(0);
  writer.inherited = true;
  writer.open_file().held.fetch_add(OpenFileState::kProcess);
  const auto& reader_words = writer.pipe.page().ends[1].receiver;
  std::atomic<bool> over{false};
  std::thread reader([&] {
    (void)pair.receive(1, 1, 0);
    over = true;
  });
  while (reader_words.waiting.load() == 0) ::usleep(50);
  ::usleep(1000);
  (void)kill_after(sharer(pair), steps);
  *published += over || pair.socket(1).pipe.front() == PipeFront::kBytes;
  EXPECT_EQ(pair.send(0, "y"), 1);
  for (int k = 0; k < 3000 && !over; ++k) ::usleep(10'000);
  const bool awake = over;
  ::shutdown(pair.fd(0), SHUT_RDWR);
  reader.join();
  writer.inherited = false;
  return awake;
}

TEST(RingKilled, AtEachStepOfASendLeavesNoReaderAsleepBehindTheNextOne) {
  int all = 0;
  {
    TcpPair pair;
    pair.migrate();
    EXPECT_EQ(pair.receive(1), "");
    Socket& writer = pair.socket(0);
    writer.inherited = true;
    writer.open_file().held.fetch_add(OpenFileState::kProcess);
    EXPECT_TRUE(pair.socket(1).pipe.want_data());
    all = kill_after(sharer(pair), 1'000'000);
    writer.inherited = false;
  }
  ASSERT_LT(all, 1'000'000);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kKills = 24;  // each takes a fifth of a second: its steps are many more
#else
  constexpr int kKills = 100;
#endif
  int published = 0;
  for (int k = 0; k < kKills; ++k) {
    const int steps = static_cast<int>(std::int64_t{all} * k / kKills) + k % 3;
    ASSERT_TRUE(wakes_after_kill(steps, &published)) << steps << " of " << all;
  }
  EXPECT_GT(published, 0);
  EXPECT_LT(published, kKills);
}

}  // namespace
}  // namespace clan::preload
