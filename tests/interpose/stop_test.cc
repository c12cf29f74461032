// One of two processes that share an end of a connection is stopped at any instruction of its calls
// (SIGSTOP, a debugger): in the middle of a send, of a receive, of its sleep, of taking the
// connection back to TCP. None of the other
// one's calls waits for long, nothing is reset, and when the stopped one continues no byte is lost,
// none comes twice and the connection is as good as before; its shutdown and its way back to TCP
// come about then, if not before. CLAN_TEST_STOPS says at how many places of each call (100000: at
// all), else at eight.
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <map>
#include <vector>

#include "traced.h"

namespace clan::test {
namespace {

enum class Call {
  kSends,
  kSendsForTheFirstTime,
  kReceives,
  kReadsDoorbells,
  kSleepsInReceive,
  kPolls,
  kWaitsInASet,
  kGoesBack
};

/// What the other process wants of TCP meanwhile.
enum class Leaves { kNot, kForUrgentData };

constexpr double kSoon = 5;                  ///< 0.2 s, on a very busy machine
constexpr std::size_t kOfSharer = 300;       ///< bytes of one call
constexpr std::size_t kMeanwhile = 60;       ///< messages of the other process
constexpr std::chrono::seconds kStopped{1};  ///< of the other process, where it has to wait

// What the two processes of an end have sent and received, by the values of bytes.
struct Counts {
  std::array<std::atomic<std::uint64_t>, 256> sent, received;
  std::atomic<int> failed;  ///< errno
};

/// Of one process. The bytes of each have values of their own.
class Sharer {
 public:
  Sharer(int fd, Counts& counts, unsigned first) : fd_(fd), counts_(counts), first_(first) {}
  ssize_t send(std::size_t n, int flags = 0) {
    std::vector<unsigned char> out(n);
    for (std::size_t i = 0; i < n; ++i)
      out[i] = static_cast<unsigned char>(first_ + (at_ + i) % 100);
    const ssize_t k = ::send(fd_, out.data(), n, flags | MSG_NOSIGNAL);
    for (ssize_t i = 0; i < k; ++i) ++counts_.sent[out[static_cast<std::size_t>(i)]];
    at_ += k > 0 ? static_cast<std::size_t>(k) : 0;
    return noted(k);
  }
  ssize_t receive(std::size_t most, int flags = 0) {
    std::vector<unsigned char> in(most);
    const ssize_t k = ::recv(fd_, in.data(), most, flags);
    for (ssize_t i = 0; i < k; ++i) ++counts_.received[in[static_cast<std::size_t>(i)]];
    return noted(k);
  }

 private:
  ssize_t noted(ssize_t k) {
    if (k <= 0 && (k == 0 || (errno != EAGAIN && errno != EINTR)))
      counts_.failed = k == 0 ? -1 : errno;
    return k;
  }

  int fd_;
  Counts& counts_;
  unsigned first_;
  std::size_t at_ = 0;
};

int wait_in_a_set(int fd) {
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{EPOLLIN, {}};
  if (::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0) return -1;
  int n;
  while ((n = ::epoll_wait(set, &event, 1, -1)) < 0 && errno == EINTR) {
  }
  ::close(set);
  return n;
}

// What the process does that is stopped.
void make(Call call, int fd, Sharer& sharer) {
  switch (call) {
    case Call::kSends:
    case Call::kSendsForTheFirstTime: sharer.send(kOfSharer); break;
    case Call::kReceives:
    case Call::kReadsDoorbells:
    case Call::kSleepsInReceive: sharer.receive(kOfSharer / 2); break;
    case Call::kPolls: {
      pollfd p{fd, POLLIN, 0};
      ::poll(&p, 1, -1);
      sharer.receive(kOfSharer / 2, MSG_DONTWAIT);
      break;
    }
    case Call::kWaitsInASet:
      wait_in_a_set(fd);
      sharer.receive(kOfSharer / 2, MSG_DONTWAIT);
      break;
    case Call::kGoesBack: ::send(fd, "?", 1, MSG_OOB | MSG_NOSIGNAL); break;
  }
}

struct Outcome {
  Steps steps;
  bool went_on = true;  ///< the other process could do all it wanted meanwhile
  double longest_call = 0;
};

class Scene {
 public:
  explicit Scene(Call call) : call_(call) {
    void* memory =
        ::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    counts_ = new (memory) Counts{};
  }
  ~Scene() { ::munmap(counts_, sizeof(Counts)); }
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;

  Outcome run(int steps, Leaves leaves = Leaves::kNot) {
    Echo echo;
    Sharer mine(echo.fd, *counts_, 0);
    const pid_t other = begin(mine, echo.fd);
    Outcome outcome;
    outcome.steps = stop_after(other, steps);
    if (!outcome.steps.ended) {
      outcome.went_on = leave(leaves, echo.fd, &outcome.longest_call) &&
                        go_on(mine, echo.fd, &outcome.longest_call);
      EXPECT_TRUE(!preloaded() || leaves == Leaves::kNot || !outcome.went_on ||
                  !way_of(echo.fd).sends_by_pipe);
      ::kill(other, SIGCONT);
      mine.send(kOfSharer);  // it may wait for what has been read here
    }
    EXPECT_TRUE(ends_well(other));
    drain(mine, echo.fd);
    return outcome;
  }

  /// Likewise, and the other process shuts the connection down. It goes on: the other end has been
  /// told, and has closed.
  Outcome end(int steps) {
    Echo echo;
    Sharer mine(echo.fd, *counts_, 0);
    const pid_t other = begin(mine, echo.fd);
    Outcome outcome;
    outcome.steps = stop_after(other, steps);
    if (!outcome.steps.ended) {
      const auto before = std::chrono::steady_clock::now();
      EXPECT_EQ(::shutdown(echo.fd, SHUT_WR), 0);
      outcome.longest_call =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
      outcome.went_on = sees_end(echo.fd);
    }
    EXPECT_TRUE(ends_well(other));
    return outcome;
  }

 private:
  // A connection that has moved, and a process that is about to make its call.
  pid_t begin(Sharer& mine, int fd) const {
    ping(fd, 30);
    EXPECT_TRUE(by_pipe(fd));
    const bool rings = call_ == Call::kReadsDoorbells;
    if (PipePage::End* const end = rings ? end_of(fd) : nullptr) end->receiver.waiting.store(1);
    if (call_ == Call::kReceives || rings) {
      EXPECT_EQ(mine.send(kOfSharer), static_cast<ssize_t>(kOfSharer));
      pollfd p{fd, POLLIN, 0};
      EXPECT_EQ(::poll(&p, 1, 5000), 1);
    }
    return child(
        [&] {
          Sharer sharer(fd, *counts_, 128);
          if (call_ == Call::kReadsDoorbells) {
            sharer.receive(kOfSharer);
          } else if (call_ != Call::kSendsForTheFirstTime) {
            sharer.send(1);
            sharer.receive(1);
          }
          ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
          ::raise(SIGSTOP);
          make(call_, fd, sharer);
          ::raise(SIGSTOP);  // to be told of the end
          return 0;
        },
        60);
  }
  static bool leave(Leaves leaves, int fd, double* time) {
    const auto before = std::chrono::steady_clock::now();
    bool done = true;
    if (leaves == Leaves::kForUrgentData) {
      done = ::send(fd, "!", 1, MSG_OOB | MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
      *time = std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
    }
    return done;
  }
  static bool sees_end(int fd) {
    const auto begin = std::chrono::steady_clock::now();
    char some[1000];
    for (ssize_t n = 1; n != 0;) {
      if (std::chrono::steady_clock::now() - begin > kStopped) return false;
      pollfd p{fd, POLLIN, 0};
      ::poll(&p, 1, 1);
      n = ::recv(fd, some, sizeof some, MSG_DONTWAIT);
      if (n < 0 && errno != EAGAIN) return false;
    }
    return true;
  }
  // As a server would whose other process does not get on.
  bool go_on(Sharer& mine, int fd, double* longest) const {
    const auto begin = std::chrono::steady_clock::now();
    auto timed = [&](auto&& call) {
      const auto before = std::chrono::steady_clock::now();
      const auto result = call();
      *longest = std::max(
          *longest,
          std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count());
      return result;
    };
    std::uint64_t sent = 0;
    while (sent < kMeanwhile || left() > static_cast<std::int64_t>(kOfSharer)) {
      if (std::chrono::steady_clock::now() - begin > kStopped) return false;
      if (sent < kMeanwhile && timed([&] { return mine.send(10, MSG_DONTWAIT); }) == 10) ++sent;
      while (timed([&] { return mine.receive(1000, MSG_DONTWAIT); }) > 0) {
      }
      pollfd p{fd, POLLIN, 0};
      timed([&] { return ::poll(&p, 1, 1); });
    }
    return true;
  }
  // Bytes that are to come back, or that the stopped process has taken and not counted.
  std::int64_t left() const {
    std::int64_t n = 0;
    for (std::size_t value = 0; value < 256; ++value)
      n += static_cast<std::int64_t>(counts_->sent[value] - counts_->received[value]);
    return n;
  }
  bool all_back() const {
    return std::equal(
        counts_->sent.begin(), counts_->sent.end(), counts_->received.begin(),
        [](const auto& sent, const auto& received) { return sent.load() <= received.load(); });
  }
  void drain(Sharer& mine, int fd) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!all_back() && counts_->failed == 0 && std::chrono::steady_clock::now() < end) {
      pollfd p{fd, POLLIN, 0};
      ::poll(&p, 1, 100);
      mine.receive(1000, MSG_DONTWAIT);
    }
    EXPECT_EQ(counts_->failed, 0) << std::strerror(counts_->failed);
    for (std::size_t value = 0; value < 256; ++value)
      EXPECT_EQ(counts_->sent[value], counts_->received[value]) << "bytes of value " << value;
    EXPECT_TRUE(silent(fd));
    ping(fd, 2);
  }

  Call call_;
  Counts* counts_;
};

class Stopped : public testing::TestWithParam<Call> {
 protected:
  void at_places(const std::function<Outcome(Scene&, int)>& run) const {
    const char* more = std::getenv("CLAN_TEST_STOPS");
    constexpr int kMost = 1'000'000, kFew = 8;
    // To its end, or to where it sleeps.
    static std::map<Call, int> known;
    if (known.count(GetParam()) == 0) known[GetParam()] = Scene(GetParam()).run(kMost).steps.made;
    const int all = known[GetParam()];
    ASSERT_LT(all, kMost);
    const int stops = std::min(more != nullptr ? std::atoi(more) : kFew, all);
    int held_up = 0;
    double longest = 0;
    for (int k = 0; k < stops && !HasFailure(); ++k) {
      const int steps = static_cast<int>(std::int64_t{all} * k / stops) + (stops < all ? k % 3 : 0);
      Scene scene(GetParam());
      const Outcome outcome = run(scene, steps);
      longest = std::max(longest, outcome.longest_call);
      EXPECT_FALSE(HasFailure()) << "at step " << steps << " of " << all;
      EXPECT_LT(outcome.longest_call, kSoon) << "at step " << steps << " of " << all;
      held_up += outcome.went_on ? 0 : 1;
    }
    std::printf(
        "at %d of %d places of %d steps the other one had to wait; its longest call %.3f s\n",
        held_up, stops, all, longest);
    EXPECT_LT(held_up, stops) << "the call is not under way at the first place";
  }
};

TEST_P(Stopped, AtAnyInstructionLosesNothingAndHoldsUpNoCallForLong) {
  if (!can_trace()) GTEST_SKIP() << "ptrace() is forbidden";
  at_places([](Scene& scene, int steps) { return scene.run(steps); });
}

TEST_P(Stopped, AtAnyInstructionLosesNoShutdownOfTheOther) {
  if (!can_trace()) GTEST_SKIP() << "ptrace() is forbidden";
  at_places([](Scene& scene, int steps) { return scene.end(steps); });
}

TEST_P(Stopped, AtAnyInstructionLosesNothingOfTheOthersWayBackToTcp) {
  if (!can_trace()) GTEST_SKIP() << "ptrace() is forbidden";
  at_places([](Scene& scene, int steps) { return scene.run(steps, Leaves::kForUrgentData); });
}

std::string name_of(const testing::TestParamInfo<Call>& call) {
  const char* const names[] = {"InASend",          "InItsFirstSend",   "InAReceive",
                               "ReadingDoorbells", "AsleepInAReceive", "InPoll",
                               "InASet",           "OnItsWayBackToTcp"};
  return names[static_cast<int>(call.param)];
}
constexpr Call kReading[] = {Call::kReceives, Call::kReadsDoorbells, Call::kSleepsInReceive,
                             Call::kPolls, Call::kWaitsInASet};
constexpr Call kSending[] = {Call::kSends, Call::kSendsForTheFirstTime};
INSTANTIATE_TEST_SUITE_P(Reader, Stopped, testing::ValuesIn(kReading), name_of);
INSTANTIATE_TEST_SUITE_P(Sender, Stopped, testing::ValuesIn(kSending), name_of);
INSTANTIATE_TEST_SUITE_P(Leaver, Stopped, testing::Values(Call::kGoesBack), name_of);

}  // namespace
}  // namespace clan::test
