#include "stream/ring.h"

#include <sys/ptrace.h>
#include <sys/wait.h>

#include <atomic>
#include <functional>
#include <thread>

#include "preload/wait/set.h"
#include "state/bells.h"
#include "state/face.h"
#include "stream/blocking.h"
#include "wait/poll_moved.h"

namespace clan::preload {
namespace {

using namespace socket_face;

/// End 0 writes and is held by two processes, end 1 is read.
struct Ring : EpollSet {
  Ring() {
    EXPECT_EQ(pair.receive(1), "");
    writer().inherited = true;
    add_holders(writer().mine(), 1);
  }
  ~Ring() override { writer().inherited = false; }
  Socket& writer() const { return pair.socket(0); }
  std::atomic<std::uint64_t>& bells() const { return writer().mine().words[kBells]; }
  bool reader_waits() const { return writer().pipe.page().ends[1].receiver.waiting.load() != 0; }
  /// As a process that is killed before it rings.
  void publish() const {
    char byte = 'x';
    const iovec io{&byte, 1};
    EXPECT_EQ(writer().pipe.send(&io, 1).bytes, 1u);
  }
  /// `sleeps` in a thread, until the writer has done `what`. It comes back without a doorbell.
  void expect_awake_after(const std::function<void()>& what,
                          const std::function<bool()>& sleeps) const {
    std::atomic<bool> over{false};
    std::thread reader([&] {
      EXPECT_TRUE(sleeps());
      over = true;
    });
    while (!reader_waits()) ::usleep(100);
    ::usleep(20'000);  // it sleeps in the kernel
    what();
    for (int k = 0; k < 3000 && !over; ++k) ::usleep(10'000);
    EXPECT_TRUE(over) << "it sleeps for ever";
    if (!over) ring_doorbell(pair.fd(0), writer());
    reader.join();
  }
  static constexpr std::uint64_t kOne = 1;
};

TEST_F(Ring, IsNotAnnouncedByAnEndThatOneProcessHolds) {
  add_holders(writer().mine(), -1);
  writer().open_file().to_follow = 0;
  const Announced announced(pair.fd(0), writer());
  EXPECT_EQ(bells().load(), 0u);
}

TEST_F(Ring, IsAnnouncedBeforeTheBytesToAReaderThatSleeps) {
  ASSERT_TRUE(pair.socket(1).pipe.want_data());
  {
    const Announced announced(pair.fd(0), writer());
    EXPECT_EQ(bells().load(), clan::preload::bells::name_of(thread_id()) | 1);
    EXPECT_TRUE(doorbells_waiting(pair.socket(1)));
    EXPECT_TRUE(reader_waits()) << "its wish is for what comes now";
  }
  EXPECT_EQ(bells().load(), 0u);
  EXPECT_EQ(nap_beside_ringer(pair.socket(1)), -1);
}

TEST_F(Ring, OfAKilledProcessIsNotSleptFor) {
  const std::function<bool()> sleeps[] = {
      [&] { return pair.receive(1, 1, 0) == "x"; },
      [&] {
        pollfd p{pair.fd(1), POLLIN, 0};
        auto sleep = [](pollfd* copy, nfds_t count, std::int64_t ns) {
          return sys::poll(copy, count, ns < 0 ? -1 : static_cast<int>(ns / 1'000'000));
        };
        return poll_moved(&p, 1, -1, sleep) == 1 && pair.receive(1) == "x";
      },
      [&] { return wait(-1).size() == 1 && pair.receive(1) == "x"; },
  };
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ::waitpid(dead, nullptr, 0);
  for (const pid_t ringer : {::getppid(), dead}) {
    for (const auto& sleep : sleeps) {
      bells() = static_cast<std::uint64_t>(ringer) << kRinger | 1;
      expect_awake_after([&] { publish(); }, sleep);
      bells() = 0;
    }
  }
}

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

/// Of a reader that sleeps. True: it has the byte, or there was none.
bool wakes_after_kill(int steps, int* published) {
  TcpPair pair;
  pair.migrate();
  EXPECT_EQ(pair.receive(1), "");
  Socket& writer = pair.socket(0);
  writer.inherited = true;
  add_holders(writer.mine(), 1);
  const auto& reader_words = writer.pipe.page().ends[1].receiver;
  std::atomic<bool> over{false};
  std::thread reader([&] {
    (void)pair.receive(1, 1, 0);
    over = true;
  });
  while (reader_words.waiting.load() == 0) ::usleep(50);
  ::usleep(1000);
  (void)kill_after(sharer(pair), steps);
  const bool lies_there = over || pair.socket(1).pipe.front() == PipeFront::kBytes;
  *published += lies_there;
  for (int k = 0; k < 3000 && lies_there && !over; ++k) ::usleep(10'000);
  const bool awake = !lies_there || over;
  ::shutdown(pair.fd(0), SHUT_RDWR);
  reader.join();
  writer.inherited = false;
  return awake;
}

TEST(RingKilled, AtEachStepOfASendLeavesNoReaderAsleep) {
  int all = 0;
  {
    TcpPair pair;
    pair.migrate();
    EXPECT_EQ(pair.receive(1), "");
    Socket& writer = pair.socket(0);
    writer.inherited = true;
    add_holders(writer.mine(), 1);
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
