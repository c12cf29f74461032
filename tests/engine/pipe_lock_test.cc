#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <thread>
#include <vector>

#include "support/pipe_pair.h"

namespace clan {
namespace {

// --- the locks, whose words the other end can write ----------------------------------------------

std::atomic<std::uint32_t>& sending_lock(Pipe& p) { return p.page().ends[p.end()].sender.lock; }
std::atomic<std::uint32_t>& receiving_lock(Pipe& p) { return p.page().ends[p.end()].receiver.lock; }

// A process that lives until the end of the scope, or for `most_s`: a call that waits for it then
// fails the test instead of hanging.
class Bystander {
 public:
  explicit Bystander(bool stopped, unsigned most_s = 60) {
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (stopped) ::raise(SIGSTOP);
      ::sleep(most_s);
      ::_exit(0);
    }
    int status = 0;
    if (stopped) {
      EXPECT_EQ(::waitpid(process_, &status, WUNTRACED), process_);
    }
    watch_ = std::thread([this, most_s] {
      for (unsigned i = 0; i < most_s * 100 && !over_; ++i) ::usleep(10'000);
      ::kill(process_, SIGKILL);
      ::waitpid(process_, nullptr, 0);
    });
  }
  ~Bystander() {
    over_ = true;
    watch_.join();
  }
  Bystander(const Bystander&) = delete;
  Bystander& operator=(const Bystander&) = delete;
  /// Of a lock that it has.
  std::uint32_t word() const { return sys::name_of(static_cast<std::uint32_t>(process_)); }

 private:
  pid_t process_ = -1;
  std::atomic<bool> over_{false};
  std::thread watch_;
};

double seconds_of(const std::function<void()>& what) {
  const auto before = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

constexpr double kSoon = 9, kAtLast = 60;  ///< 0.5 s and 10 s, on a very busy machine

// A caller that tries again, until it is told something else than that the lock is taken.
template <typename Call>
int error_at_last(Call&& call) {
  int err;
  while ((err = call()) == EBUSY) ::usleep(10'000);
  return err;
}
int error_of_sending(Pipe& p) {
  return error_at_last([&] { return put(p, {'x'}).err; });
}
int error_of_receiving_at_last(Pipe& p) {
  return error_at_last([&] { return error_of_receiving(p); });
}

TEST(Pipe, TakesALockFromAnOwnerThatHasDied) {
  PipePair p;
  const pid_t child = ::fork();
  if (child == 0) {
    Pipe::after_fork_in_child();
    sending_lock(p.a).store(pipes::lock_word());
    receiving_lock(p.b).store(pipes::lock_word());
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(put(p.a, {'x'}).bytes, 1u);
  EXPECT_EQ(get(p.b, 5), (std::vector<char>{'x'}));
}

// It may be stopped, and write when it goes on.
TEST(Pipe, BreaksSoonOnALockThatAnotherPidNamespaceHas) {
  PipePair p;
  sending_lock(p.a).store(pipes::lock_word() ^ sys::kNamespaceBits);
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(error_of_sending(p.a), EPROTO); }), kSoon);
  EXPECT_EQ(p.b.front(), PipeFront::kBroken);
}

TEST(Pipe, BreaksSoonOnALockThatIsNoThreads) {
  PipePair p;
  sending_lock(p.a).store(0x7fffffu);
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(error_of_sending(p.a), EPROTO); }), kSoon);
}

TEST(Pipe, SoonTakesALockWithTheCallersIdThatTheCallerNeverTook) {
  PipePair p;
  Pipe::after_fork_in_child();  // learn the thread's id anew
  const std::uint32_t me = pipes::lock_word();
  put(p.a, {'x'});
  receiving_lock(p.b).store(me);
  EXPECT_EQ(p.b.front(), PipeFront::kBytes);  // a thread that only looks does not wait
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(error_of_receiving_at_last(p.b), 0); }), kSoon);
  PipePair q;
  sending_lock(q.a).store(me);
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(error_of_sending(q.a), 0); }), kSoon);
}

TEST(Pipe, WaitsForAnOwnerThatLetsGo) {
  PipePair p;
  Bystander living(false);
  sending_lock(p.a).store(living.word());
  std::thread owner([&] {
    ::usleep(1'500'000);
    sending_lock(p.a).store(0);
  });
  EXPECT_EQ(error_of_sending(p.a), 0);
  owner.join();
  EXPECT_EQ(get(p.b, 5), (std::vector<char>{'x'}));
}

// A peer that writes the id of a thread that lives, or in turn of that and of a stopped one, which
// alone might be waited for.
TEST(Pipe, BreaksAtLastOnALockThatIsNotLetGoWhoeverItNames) {
  PipePair named_living, named_both;
  Bystander living(false), stopped(true);
  put(named_living.b, {'x'});
  receiving_lock(named_living.a).store(living.word());
  sending_lock(named_both.a).store(living.word());
  std::atomic<bool> over{false};
  std::thread writer([&] {
    for (std::uint32_t turn = 0; !over; ++turn) {
      sending_lock(named_both.a).store(turn % 2 == 0 ? living.word() : stopped.word());
      ::usleep(200'000);
    }
  });
  std::vector<std::thread> callers;
  double took[2] = {};
  callers.emplace_back([&] {
    took[0] = seconds_of([&] { EXPECT_EQ(error_of_receiving_at_last(named_living.a), EPROTO); });
  });
  callers.emplace_back(
      [&] { took[1] = seconds_of([&] { EXPECT_EQ(error_of_sending(named_both.a), EPROTO); }); });
  for (auto& caller : callers) caller.join();
  over = true;
  writer.join();
  for (const double seconds : took) EXPECT_LT(seconds, kAtLast);
}

// A process that is in a call on a pipe has it mapped.
TEST(Pipe, SoonTakesALockOfAThreadThatHasNotMappedIt) {
  Bystander living(false), stopped(true);
  PipePair p, q;
  sending_lock(p.a).store(living.word());
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(error_of_sending(p.a), 0); }), kSoon);
  sending_lock(q.a).store(stopped.word());
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(error_of_sending(q.a), 0); }), kSoon);
}

TEST(Pipe, GivesUpOnALockWithoutBreaking) {
  PipePair p;
  Bystander stopped(true);
  put(p.b, {'y'});
  EXPECT_FALSE(p.a.send_is_held_up());
  sending_lock(p.a).store(stopped.word());
  receiving_lock(p.a).store(stopped.word());
  EXPECT_FALSE(p.a.receive_is_held_up()) << "nobody has waited yet";
  // One that waits for a moment, and then a thousand that do not.
  EXPECT_LT(seconds_of([&] {
              for (int i = 0; i < 1000; ++i) {
                EXPECT_EQ(put(p.a, {'x'}).err, EBUSY);
                EXPECT_EQ(error_of_receiving(p.a), EBUSY);
                EXPECT_EQ(p.a.readable_bytes(), 0u);
              }
            }),
            kSoon);
  EXPECT_TRUE(p.a.send_is_held_up());
  EXPECT_TRUE(p.a.receive_is_held_up());
  sending_lock(p.a).store(0);
  receiving_lock(p.a).store(0);
  EXPECT_FALSE(p.a.send_is_held_up());
  EXPECT_FALSE(p.a.receive_is_held_up());
  EXPECT_EQ(put(p.a, {'x'}).bytes, 1u);
  EXPECT_EQ(get(p.b, 5), (std::vector<char>{'x'}));
  EXPECT_EQ(get(p.a, 5), (std::vector<char>{'y'}));
}

// The kernel's TCP goes on when it does.
TEST(Pipe, DoesNotBreakWhileTheOwnerOfALockIsStopped) {
  PipePair p;
  Bystander stopped(true);
  sending_lock(p.a).store(stopped.word());
  EXPECT_GT(seconds_of([&] {
              const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(12);
              while (std::chrono::steady_clock::now() < end) {
                ASSERT_EQ(put(p.a, {'x'}).err, EBUSY);
                ::usleep(10'000);
              }
            }),
            11);
  sending_lock(p.a).store(0);
  EXPECT_EQ(put(p.a, {'x'}).bytes, 1u);
}

TEST(Pipe, DoesNotWaitForALockToTellThatItsEndLeaves) {
  PipePair p;
  Bystander stopped(true);
  sending_lock(p.a).store(stopped.word());
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(p.a.leave().err, EBUSY); }), kSoon);
  sending_lock(p.a).store(0);
  EXPECT_EQ(p.a.leave().err, 0);
}

// A peer that takes the lock, and lets go when the call gives up, again and again.
TEST(Pipe, ALockInRhythmHoldsUpCallsForAFifthOfASecondInAll) {
  PipePair p;
  Bystander living(false);
  EXPECT_LT(seconds_of([&] {
              for (int i = 0; i < 500; ++i) {
                sending_lock(p.a).store(living.word());
                EXPECT_EQ(put(p.a, {'x'}).err, EBUSY);
                sending_lock(p.a).store(0);
                ASSERT_EQ(put(p.a, {'x'}).bytes, 1u);
              }
            }),
            kSoon);
}

// One thread that serves them all.
TEST(Pipe, LocksOfManyPipesHoldAThreadUpForAFifthOfASecondInAll) {
  std::vector<PipePair> pipes(200);
  Bystander living(false);
  for (PipePair& p : pipes) sending_lock(p.a).store(living.word());
  EXPECT_LT(seconds_of([&] {
              for (PipePair& p : pipes) EXPECT_EQ(put(p.a, {'x'}).err, EBUSY);
            }),
            kSoon);
  for (PipePair& p : pipes) sending_lock(p.a).store(0);
  for (PipePair& p : pipes) EXPECT_EQ(put(p.a, {'x'}).bytes, 1u);
}

TEST(Pipe, HasNoRoomWhileMemoryIsReleasedByAThreadThatWasStopped) {
  PipePair p(kLargeRing);
  Bystander stopped(true);
  sending_lock(p.a).store(stopped.word() | 1u << 31);
  EXPECT_EQ(put(p.a, {'x'}).err, EBUSY);
  sending_lock(p.a).store(0);
  EXPECT_EQ(put(p.a, {'x'}).bytes, 1u);
  sending_lock(p.b).store(0x3fffffffu | 1u << 31);  // no thread
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(error_of_sending(p.b), EPROTO); }), kSoon);
}

TEST(Pipe, IsNotMendedByThePeerOnceItHasBroken) {
  PipePair p;
  put(p.b, {'x'});
  sending_lock(p.a).store(0x7fffffu);
  EXPECT_EQ(error_of_sending(p.a), EPROTO);
  Bystander living(false);
  for (auto* lock : {&sending_lock(p.a), &receiving_lock(p.a)}) lock->store(living.word());
  p.a.page().head.broken.store(0);
  EXPECT_LT(seconds_of([&] {
              EXPECT_EQ(error_of_sending(p.a), EPROTO);
              EXPECT_EQ(p.a.front(), PipeFront::kBroken);
              EXPECT_EQ(p.a.readable_bytes(), 0u);
            }),
            kSoon);
  for (auto* lock : {&sending_lock(p.a), &receiving_lock(p.a)}) lock->store(0);
  p.a.page().head.broken.store(0);
  EXPECT_EQ(error_of_sending(p.a), EPROTO);
  EXPECT_EQ(p.a.front(), PipeFront::kBroken);
}

// Job control stops owner and waiter alike, for hours perhaps.
TEST(Pipe, CountsOnlyTheTimeInWhichTheWaiterRuns) {
  PipePair p;
  int go_on[2];
  ASSERT_EQ(::pipe2(go_on, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Pipe::after_fork_in_child();
    std::atomic<bool> holds{false};
    std::thread owner([&] {
      sending_lock(p.a).store(pipes::lock_word());
      holds = true;
      char byte = 0;
      while (::read(go_on[0], &byte, 1) < 0) continue;
      sending_lock(p.a).store(0);
    });
    while (!holds) sched_yield();
    const bool good = error_of_sending(p.a) == 0;
    owner.join();
    ::_exit(good ? 0 : 1);
  }
  ::usleep(500'000);  // both threads are where they should be
  ::kill(child, SIGSTOP);
  ::usleep(11'000'000);
  ::kill(child, SIGCONT);
  ::usleep(500'000);
  EXPECT_EQ(::write(go_on[1], "x", 1), 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ::close(go_on[0]);
  ::close(go_on[1]);
}

// A fault in the caller's buffer runs a handler in the middle of the copy, under the lock.
struct Interruption {
  static inline PipePair* pair = nullptr;
  static inline PipePair* other = nullptr;
  static inline char* page = nullptr;
  static inline int faults = 0;
  static inline Pipe::Done sent, received, elsewhere;
  static inline PipeFront front = PipeFront::kNothing;
  static inline std::uint64_t readable = 0;
  static inline std::chrono::duration<double> took{};

  static void handler(int) {
    if (++faults > 1) ::_exit(1);
    const auto before = std::chrono::steady_clock::now();
    char byte = 'z';
    const iovec io{&byte, 1};
    sent = pair->a.send(&io, 1);
    elsewhere = other->a.send(&io, 1);
    received = pair->b.receive(&io, 1, false);
    front = pair->b.front();
    readable = pair->b.readable_bytes();
    took = std::chrono::steady_clock::now() - before;
    ::mprotect(page, 4096, PROT_READ | PROT_WRITE);
  }
};

void interrupt(PipePair& p, PipePair& other, const std::function<void(char*)>& call) {
  void* page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  struct sigaction action {
  }, old{};
  action.sa_handler = Interruption::handler;
  ASSERT_EQ(::sigaction(SIGSEGV, &action, &old), 0);
  Interruption::pair = &p;
  Interruption::other = &other;
  Interruption::page = static_cast<char*>(page);
  Interruption::faults = 0;
  call(static_cast<char*>(page));
  EXPECT_EQ(Interruption::faults, 1);
  EXPECT_LT(Interruption::took.count(), kSoon);
  ::sigaction(SIGSEGV, &old, nullptr);
  ::munmap(page, 4096);
}

TEST(Pipe, TellsAHandlerThatItHasInterruptedASend) {
  PipePair p, other;
  interrupt(p, other, [&](char* page) {
    const iovec io{page, 100};
    EXPECT_EQ(p.a.send(&io, 1).bytes, 100u);
  });
  EXPECT_EQ(Interruption::sent.err, EDEADLK);
  EXPECT_EQ(Interruption::sent.bytes, 0u);
  EXPECT_EQ(Interruption::received.err, 0);  // the other direction's lock is another
  EXPECT_EQ(Interruption::elsewhere.bytes, 1u);
  EXPECT_EQ(get(p.b, 500), std::vector<char>(100));
  EXPECT_EQ(put(p.a, {'y'}).bytes, 1u);
}

TEST(Pipe, TellsAHandlerThatItHasInterruptedAReceive) {
  PipePair p, other;
  const auto bytes = bytes_from(100, 0);
  put(p.a, bytes);
  interrupt(p, other, [&](char* page) {
    const iovec io{page, 50};
    EXPECT_EQ(p.b.receive(&io, 1, false).bytes, 50u);
    EXPECT_EQ(std::vector<char>(page, page + 50),
              std::vector<char>(bytes.begin(), bytes.begin() + 50));
  });
  EXPECT_EQ(Interruption::received.err, EDEADLK);
  EXPECT_EQ(Interruption::received.bytes, 0u);
  EXPECT_EQ(Interruption::front, PipeFront::kBytes);
  EXPECT_EQ(Interruption::readable, 0u);
  EXPECT_EQ(Interruption::sent.bytes, 1u);
  auto rest = std::vector<char>(bytes.begin() + 50, bytes.end());
  rest.push_back('z');
  EXPECT_EQ(get(p.b, 500), rest);
}

}  // namespace
}  // namespace clan
