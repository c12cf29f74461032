#include "demote/resend.h"

#include <sys/resource.h>

#include <string>

#include "demote/demote_on_request.h"
#include "preload/sharer.h"
#include "preload/tcp_pair.h"
#include "state/face.h"
#include "stream/ending.h"

namespace clan::preload {
namespace {

using namespace socket_face;

/// End 1 leaves for a program that knows TCP alone, and has not read; end 0 sends that again.
struct SentAgain : testing::Test {
  SentAgain() {
    pair.migrate_and_greet();
    for (std::size_t i = 0; i < kUnread; ++i)
      unread += static_cast<char>('a' + i % 23 + i / 5000 % 3);
    EXPECT_EQ(pair.send(0, unread), static_cast<ssize_t>(kUnread));
  }
  Socket& s() const { return pair.socket(0); }
  void leave() const {
    EXPECT_EQ(pair.socket(1).pipe.set_aside(), 0);
    pair.socket(1).mine().words[kGivenBack].store(kGiven, std::memory_order_release);
    add_state(pair.socket(1).mine(), kLeaving);
  }
  bool answers() const {
    poll_tcp_socket(pair.fd(0), s());
    return true;
  }
  /// What the new program at end 1 reads.
  std::string arrived_there(std::size_t bytes) const {
    std::string text(bytes, '?');
    const ssize_t n = ::recv(pair.fd(1), text.data(), bytes, MSG_WAITALL);
    text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return text;
  }
  static constexpr std::size_t kUnread = 60'000;
  TcpPair pair;
  std::string unread;
};

TEST_F(SentAgain, ArrivesInFrontOfWhatIsSentNext) {
  leave();
  answers();
  ASSERT_EQ(pair.send(0, "by TCP"), 6);
  EXPECT_TRUE(arrived_there(kUnread + 6) == unread + "by TCP");
  EXPECT_EQ(s().open_file().sends.load(), 0u);
  EXPECT_FALSE(s().is_resending());
}

TEST_F(SentAgain, BeginsBehindWhatHadBeenRead) {
  EXPECT_EQ(pair.receive(1, 1000), unread.substr(0, 1000));
  leave();
  answers();
  EXPECT_TRUE(arrived_there(kUnread - 1000) == unread.substr(1000));
}

TEST_F(SentAgain, WaitsForRoomInTcpInAThreadOfItsOwn) {
  const int small = 4096;
  ASSERT_EQ(::setsockopt(pair.fd(0), SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
  ASSERT_EQ(::setsockopt(pair.fd(1), SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
  leave();
  answers();
  EXPECT_TRUE(resends(pair.fd(0), s())) << "TCP has taken all";
  EXPECT_EQ(pair.send(0, "by TCP"), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_TRUE(arrived_there(kUnread) == unread);
  while (resends(pair.fd(0), s())) nap();
  EXPECT_EQ(pair.send(0, "by TCP"), 6);
}

TEST_F(SentAgain, IsLeftToAProcessThatRuns) {
  leave();
  s().open_file().sends = OpenFileState::closed_by(OpenFileState::kSendsAgain | ::getppid());
  add_state(s().mine(), kGone);
  EXPECT_TRUE(resends(pair.fd(0), s()));
  EXPECT_TRUE(s().is_resending());
  EXPECT_EQ(pair.send(0, "by TCP"), -1);
  EXPECT_EQ(errno, EAGAIN);
  s().open_file().sends = 0;
  EXPECT_FALSE(resends(pair.fd(0), s()));
  EXPECT_FALSE(s().is_resending());
}

TEST_F(SentAgain, ByAProcessThatIsKilledResetsTheConnection) {
  s().share();
  leave();
  Sharer sharer([&] { return trace_me() && answers(); });
  sharer.goes_to(SYS_sendto, 2, false);
  sharer.is_killed();
  EXPECT_FALSE(resends(pair.fd(0), s()));
  EXPECT_TRUE(s().kernel_error);
  EXPECT_EQ(s().open_file().sends.load(), 0u);
  std::string text(kUnread, '?');
  ssize_t n = 0;
  for (std::size_t got = 0; (n = ::recv(pair.fd(1), text.data(), text.size(), 0)) > 0;) {
    got += static_cast<std::size_t>(n);
    ASSERT_LT(got, kUnread);
  }
  EXPECT_EQ(errno, ECONNRESET);
  s().inherited = false;
}

TEST_F(SentAgain, ResetsTheConnectionWithoutADescriptorForIt) {
  leave();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  answers();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(s().is_resending());
  char byte;
  EXPECT_EQ(::recv(pair.fd(1), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

// A peer that says that it has set bytes aside, and has not.
TEST_F(SentAgain, ResetsTheConnectionWhereNothingWasSetAside) {
  pair.socket(1).mine().words[kGivenBack].store(kGiven, std::memory_order_release);
  add_state(pair.socket(1).mine(), kLeaving);
  answers();
  char byte;
  EXPECT_EQ(::recv(pair.fd(1), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

}  // namespace
}  // namespace clan::preload
