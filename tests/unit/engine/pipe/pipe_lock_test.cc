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
  /// The word of a lock that it has.
  std::uint32_t word() const { return sys::name_of(static_cast<std::uint32_t>(process_)); }

 private:
  pid_t process_ = -1;
  std::atomic<bool> over_{false};
  std::thread watch_;
};

constexpr double kSoon = 9;  ///< on a very busy machine

TEST(Pipe, TakesALockFromAnOwnerThatHasDied) {
  PipePair p;
  const pid_t child = ::fork();
  if (child == 0) {
    Pipe::after_fork_in_child();
    p.locks[0].sending.store(pipes::lock_word());
    p.locks[1].receiving.store(pipes::lock_word());
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(put(p.a, {'x'}).bytes, 1u);
  EXPECT_EQ(get(p.b, 5), (std::vector<char>{'x'}));
}

TEST(Pipe, TakesALockThatAThreadWithTheCallersIdHadWhenItDied) {
  PipePair p;
  Pipe::after_fork_in_child();  // learn the thread's id anew
  put(p.a, {'x'});
  p.locks[0].sending.store(pipes::lock_word());
  p.locks[1].receiving.store(pipes::lock_word());
  EXPECT_EQ(p.b.front(), PipeFront::kBytes);  // a thread that only looks does not wait
  EXPECT_EQ(put(p.a, {'y'}).bytes, 1u);
  EXPECT_EQ(get(p.b, 5), (std::vector<char>{'x', 'y'}));
}

// The kernel's TCP goes on when it does.
TEST(Pipe, WaitsForAnOwnerThatIsStoppedOrInAnotherPidNamespace) {
  Bystander stopped(true);
  for (const std::uint32_t other : {0u, sys::kNamespaceBits}) {
    PipePair p;
    p.locks[0].sending.store(stopped.word() ^ other);
    std::atomic<bool> sent{false};
    std::thread sender([&] {
      EXPECT_EQ(put(p.a, {'x'}).bytes, 1u);
      sent = true;
    });
    ::usleep(300'000);
    EXPECT_FALSE(sent);
    p.locks[0].sending.store(0);
    sender.join();
    EXPECT_EQ(get(p.b, 5), (std::vector<char>{'x'}));
  }
}

TEST(Pipe, HasNoWordThatTheOtherEndCanWriteToHoldUpACall) {
  Bystander living(false);
  const std::uint64_t name = living.word();
  for (std::size_t i = 0; i < sizeof(PipePage::End) / sizeof name; ++i) {
    for (const std::uint64_t word : {name, name << 32, name << 32 | name}) {
      PipePair q;
      auto* at = reinterpret_cast<std::uint64_t*>(&q.a.page().ends[0]) + i;
      *at |= word;
      (void)put(q.a, {'x'});
      (void)get(q.a, 1);
      (void)q.a.end_sending();
    }
  }
}

TEST(Pipe, IsNotMendedByThePeerOnceItHasBroken) {
  PipePair p;
  put(p.b, {'x'});
  p.a.page().head.broken.store(1);
  EXPECT_EQ(put(p.a, {'x'}).err, EPROTO);
  p.a.page().head.broken.store(0);
  EXPECT_EQ(put(p.a, {'x'}).err, EPROTO);
  EXPECT_EQ(p.a.front(), PipeFront::kBroken);
  EXPECT_EQ(p.a.readable_bytes(), 0u);
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
