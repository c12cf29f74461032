// The other end of a connection becomes a program that knows TCP alone, and has not read: this end
// sends that again. One of two processes that share the end is killed at any instruction of that,
// and the other one goes on with it; or it is stopped for a moment, which the other one waits for.
// The program reads each byte once and in its order.
// CLAN_TEST_STOPS says at how many places (100000: at all), else at eight.
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "traced.h"

namespace clan::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSoon = 5;  ///< 0.2 s, on a very busy machine
constexpr std::size_t kUnread = 40'000, kOfSharer = 300;
constexpr std::chrono::seconds kAWhile{5};  ///< at most, however busy the machine is

/// Takes all from this process that would let it do the other end's part in going back to TCP.
void give_up_privileges() {
  struct {
    std::uint32_t version = _LINUX_CAPABILITY_VERSION_3;
    int pid = 0;
  } head;
  std::uint32_t none[6] = {};
  ::syscall(SYS_capset, &head, none);
}

// Until the other end leaves, and has said what it has not read.
void wait_until_it_leaves(int fd) {
  using namespace socket_face;
  const auto leaves = [fd] {
    std::uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    ::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size);
    bool is_leaving = false;
    for (const int memfd : pipes()) {
      PipePage* page = page_of(memfd);
      if (page == nullptr) continue;
      for (int i = 0; i < 2; ++i) {
        const auto& theirs = page->ends[1 - i].face.words;
        is_leaving |= page->ends[i].face.words[kCookie].load() == cookie &&
                      (theirs[kState].load() & kLeaving) != 0 && theirs[kGivenBack].load() != 0;
      }
      ::munmap(page, sizeof *page);
    }
    return is_leaving;
  };
  EXPECT_TRUE(!preloaded() || comes_true(leaves));
}

struct Outcome {
  Steps steps;
  double longest_call = 0;
};

enum class Is { kStopped, kKilled };

// The other process of the end.
void go_on(int fd, Outcome* outcome) {
  const std::string mine(kOfSharer, 'm');
  const auto begin = Clock::now();
  ssize_t sent = -1;
  while (sent < 0 && Clock::now() - begin < kAWhile) {
    const auto before = Clock::now();
    sent = ::send(fd, mine.data(), mine.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    outcome->longest_call = std::max(outcome->longest_call,
                                     std::chrono::duration<double>(Clock::now() - before).count());
    pollfd p{fd, POLLOUT, 0};
    if (sent < 0) ::poll(&p, 1, 1);
  }
  EXPECT_EQ(sent, static_cast<ssize_t>(kOfSharer)) << "it was held up";
}

Outcome run(int steps, Is what) {
  int go[2], out[2];
  EXPECT_EQ(::pipe2(go, O_CLOEXEC) | ::pipe2(out, O_CLOEXEC), 0);
  Peer peer([&](int fd) {
    char byte;
    if (::read(go[0], &byte, 1) != 1) return 1;
    give_up_privileges();
    ::close(go[1]);
    ::dup2(fd, STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::unsetenv("LD_PRELOAD");
    ::execl("/bin/cat", "cat", nullptr);
    return 1;
  });
  ::close(out[1]);
  const pid_t other = child([&] {
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    const std::string its(kOfSharer, 'p');
    const bool all = ::send(peer.fd, its.data(), its.size(), MSG_NOSIGNAL) == kOfSharer;
    ::raise(SIGSTOP);  // to see the end
    return all ? 0 : 1;
  });
  std::string all(kUnread, 'u');
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<char>('A' + i / 7 % 26);
  EXPECT_EQ(::send(peer.fd, all.data(), all.size(), MSG_NOSIGNAL), ssize_t{kUnread});
  EXPECT_EQ(::write(go[1], "!", 1), 1);
  wait_until_it_leaves(peer.fd);
  Outcome outcome;
  outcome.steps = stop_after(other, steps);
  const bool is_killed = what == Is::kKilled && !outcome.steps.ended;
  if (is_killed) ::kill(other, SIGKILL);  // it stays a zombie for a while, which runs no more
  std::thread later([&] {
    ::usleep(steps % 3 == 0 ? 700'000 : 50'000);
    if (!is_killed) ::kill(other, SIGCONT);
  });
  go_on(peer.fd, &outcome);
  later.join();
  EXPECT_TRUE(is_killed ? result_of(other) == -SIGKILL : ends_well(other));
  EXPECT_TRUE(!preloaded() || by_tcp(peer.fd));
  peer.close();
  std::string came(kUnread + 2 * kOfSharer + 1, '?');
  std::size_t n = 0;
  for (ssize_t k; (k = ::read(out[0], came.data() + n, came.size() - n)) > 0;)
    n += static_cast<std::size_t>(k);
  came.resize(n);
  EXPECT_TRUE(came.substr(0, kUnread) == all) << "what was not read is lost, or out of its order";
  const auto count = [&](char c) {
    return static_cast<std::size_t>(std::count(came.begin() + kUnread, came.end(), c));
  };
  if (n >= kUnread) {
    EXPECT_EQ(count('m'), kOfSharer);
    EXPECT_TRUE(is_killed || count('p') == kOfSharer) << count('p');
    EXPECT_EQ(count('m') + count('p'), n - kUnread);
  }
  for (const int fd : {go[0], go[1], out[0]}) ::close(fd);
  return outcome;
}

void at_places(Is what) {
  if (!can_trace()) GTEST_SKIP() << "ptrace() is forbidden";
  ::prctl(PR_SET_DUMPABLE, 0);  // nobody does its part
  const char* more = std::getenv("CLAN_TEST_STOPS");
  constexpr int kMost = 1'000'000, kFew = 8;
  const int all = run(kMost, what).steps.made;
  ASSERT_LT(all, kMost);
  const int stops = std::min(more != nullptr ? std::atoi(more) : kFew, all);
  double longest = 0;
  for (int k = 0; k < stops && !testing::Test::HasFailure(); ++k) {
    const int steps = static_cast<int>(std::int64_t{all} * k / stops) + (stops < all ? k % 3 : 0);
    const Outcome outcome = run(steps, what);
    longest = std::max(longest, outcome.longest_call);
    EXPECT_LT(outcome.longest_call, kSoon);
    EXPECT_FALSE(testing::Test::HasFailure()) << "at step " << steps << " of " << all;
  }
  ::prctl(PR_SET_DUMPABLE, 1);
  std::printf("at %d places of %d steps; the longest call of the other one %.3f s\n", stops, all,
              longest);
}

TEST(SendingAgain, ComesToItsEndWhereverAnotherProcessIsStoppedForAMoment) {
  at_places(Is::kStopped);
}
TEST(SendingAgain, IsGoneOnWithWhereverAnotherProcessIsKilled) { at_places(Is::kKilled); }

}  // namespace
}  // namespace clan::test
