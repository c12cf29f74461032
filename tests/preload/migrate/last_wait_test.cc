#include "migrate/last_wait.h"

#include <sys/wait.h>

#include <chrono>
#include <csignal>

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

struct LastWaits : testing::Test {
  LastWaits() {
    pair.migrate();
    s().inherited = true;
  }
  ~LastWaits() override {
    lock().store(0);
    s().inherited = false;
    if (child <= 0) return;
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  /// A child, with the socket or without, that is stopped.
  void fork_stopped(bool with_socket) {
    child = ::fork();
    if (child == 0) {
      if (!with_socket) ::close(pair.fd(0));
      ::raise(SIGSTOP);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  }
  Socket& s() const { return pair.socket(0); }
  std::atomic<std::uint32_t>& lock() const {
    return s().pipe.page().ends[s().pipe.end()].sender.lock;
  }
  Users users() const { return users_of_end(pair.fd(0), s()); }
  bool waits_for(std::chrono::milliseconds time, bool peer_blocks) const {
    LastWait wait(pair.fd(0), s());
    const auto end = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < end) {
      if (!wait.nap(peer_blocks)) return false;
    }
    return true;
  }
  TcpPair pair;
  pid_t child = -1;
  static constexpr std::chrono::milliseconds kLong{9000}, kAWhile{1000};
};

TEST_F(LastWaits, EndSoonForAThreadThatHasNoBusinessWithTheEnd) {
  EXPECT_EQ(users(), Users::kNobody);
  lock().store(static_cast<std::uint32_t>(::getppid()));
  EXPECT_EQ(users(), Users::kOthers);
  EXPECT_FALSE(waits_for(kLong, false));
}

TEST_F(LastWaits, EndSoonForOneThatIsStoppedToo) {
  fork_stopped(false);
  lock().store(static_cast<std::uint32_t>(child));
  EXPECT_EQ(users(), Users::kOthers);
  EXPECT_FALSE(waits_for(kLong, false));
}

TEST_F(LastWaits, DoNotEndForASharerThatIsStopped) {
  fork_stopped(true);
  lock().store(static_cast<std::uint32_t>(child));
  EXPECT_EQ(users(), Users::kStoppedSharer);
  EXPECT_TRUE(waits_for(kAWhile, true));
}

// Unless it is in the middle of sending it.
TEST_F(LastWaits, AreNotForADoorbellOfOneThatIsStopped) {
  using namespace clan::socket_face;
  fork_stopped(true);
  auto& bells = s().mine().words[kBells];
  bells.store(static_cast<std::uint64_t>(child) << kRinger | 1);
  EXPECT_EQ(users(), Users::kNobody);
  bells.fetch_or(kRingerSends | kSendsDoorbell);
  EXPECT_EQ(users(), Users::kStoppedSharer);
}

TEST_F(LastWaits, AreTheOtherEndsPatienceOtherwise) {
  EXPECT_TRUE(waits_for(kAWhile, false));
  EXPECT_FALSE(waits_for(kLong, true));
  lock().store(static_cast<std::uint32_t>(::gettid()));
  EXPECT_EQ(users(), Users::kSharers);
  EXPECT_TRUE(waits_for(kAWhile, false));
}

}  // namespace
}  // namespace clan::preload
