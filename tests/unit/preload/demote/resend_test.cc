#include "demote/resend.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "clan/detail/clock.h"
#include "demote/handback.h"
#include "preload/sharer.h"
#include "preload/tcp_pair.h"
#include "state/face.h"
#include "stream/poll_tcp.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using namespace socket_face;

constexpr std::uint64_t kSecond = 1'000'000'000;

TEST(UntilTaken, IsOverTenSecondsAfterSomethingWasTaken) {
  UntilTaken patience;
  EXPECT_FALSE(patience.over(kSecond, 0));
  EXPECT_FALSE(patience.over(10 * kSecond, 5));
  EXPECT_FALSE(patience.over(19 * kSecond, 5));
  EXPECT_TRUE(patience.over(20 * kSecond, 5));
}

TEST(UntilTaken, IsNotProlongedForeverByWhoTakesALittleNowAndThen) {
  UntilTaken patience;
  std::uint64_t now = kSecond, bytes = 0;
  while (!patience.over(now, ++bytes) && now < 1000 * kSecond) now += kSecond;
  EXPECT_EQ(now, kSecond + UntilTaken::kMostNs);
}

struct Stop {
  long call;  ///< at which one that sends again is killed
  int nth;
  bool behind;
};

/// Several processes have end 0. End 1 leaves for a program that knows TCP alone, and has not read.
struct ResendOfSharers : testing::TestWithParam<Stop> {
  explicit ResendOfSharers(const std::string& by_tcp = "") {
    if (by_tcp.empty()) {
      pair.migrate_and_greet();
    } else {
      EXPECT_EQ(::send(pair.fd(0), by_tcp.data(), by_tcp.size(), 0),
                static_cast<ssize_t>(by_tcp.size()));
      pair.migrate();
      EXPECT_TRUE(switch_sending(pair.fd(0), pair.socket(0)));
    }
    s().share();
    (void)poll_tcp_socket(pair.fd(1), pair.socket(1));
    for (std::size_t i = 0; i < kUnread; ++i)
      unread += static_cast<char>('a' + i % 23 + i / 5000 % 3);
    EXPECT_EQ(pair.send(0, unread), static_cast<ssize_t>(kUnread));
  }
  ~ResendOfSharers() override { s().inherited = false; }
  Socket& s() const { return pair.socket(0); }
  void leave() const {
    auto& words = pair.socket(1).mine().words;
    EXPECT_EQ(pair.socket(1).pipe.set_aside(), 0);
    words[kGivenBack].store(kNothing, std::memory_order_release);
    add_state(pair.socket(1).mine(), kLeaving);
  }
  bool answers() const {
    (void)poll_tcp_socket(pair.fd(0), s());
    return true;
  }
  /// What the new program at end 1 reads.
  std::string arrived_there(std::size_t most) const {
    std::string text(most + 1, '?');
    std::size_t got = 0;
    const timeval limit{0, 300'000};
    ::setsockopt(pair.fd(1), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    for (ssize_t n; (n = ::recv(pair.fd(1), text.data() + got, text.size() - got, 0)) > 0;)
      got += static_cast<std::size_t>(n);
    text.resize(got);
    return text;
  }
  static constexpr std::size_t kUnread = 60'000;
  TcpPair pair;
  std::string unread;
};

TEST_P(ResendOfSharers, IsGoneOnWithByAnother) {
  const Stop stop = GetParam();
  leave();
  Sharer sharer([&] { return trace_me() && answers(); });
  sharer.goes_to(stop.call, stop.nth, stop.behind);
  sharer.is_killed();
  const auto before = std::chrono::steady_clock::now();
  ssize_t sent = -1;
  while (sent != 6 && std::chrono::steady_clock::now() - before < std::chrono::seconds(5)) {
    answers();
    sent = pair.send(0, "by TCP");
  }
  EXPECT_EQ(sent, 6) << "it is held up";
  EXPECT_TRUE(arrived_there(kUnread + 6) == unread + "by TCP");
  EXPECT_EQ(s().open_file().sends.load(), 0u);
  EXPECT_FALSE(s().is_resending());
}

std::vector<Stop> stops() {
  std::vector<Stop> all;
  for (const bool behind : {false, true}) {
    for (int nth = 1; nth <= 4; ++nth) all.push_back({SYS_sendto, nth, behind});
    for (int nth = 1; nth <= 3; ++nth) all.push_back({SYS_getsockopt, nth, behind});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(AtACall, ResendOfSharers, testing::ValuesIn(stops()));

/// The same, and some of it came by TCP before the switch: end 1 has put that into a file, and
/// closes it when end 0 has gone back.
struct ResendOfAFile : ResendOfSharers {
  ResendOfAFile() : ResendOfSharers("first ") {
    file = file_for_taken(pair.socket(1));
    EXPECT_TRUE(take_unread(pair.fd(1), pair.socket(1), file, monotonic_ns() + 10'000'000'000u));
    give_back(pair.socket(1), file);
    add_state(pair.socket(1).mine(), kLeaving);
  }
  int file;
};

TEST_F(ResendOfAFile, IsResetWhereItIsGoneWithAProcessThatWasKilled) {
  Sharer sharer([&] { return trace_me() && answers(); });
  sharer.goes_to(SYS_sendto, 1, false);
  ::close(file);
  sharer.is_killed();
  pair.send(0, "by TCP");
  char byte;
  const timeval limit{5, 0};
  ::setsockopt(pair.fd(1), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  EXPECT_EQ(::recv(pair.fd(1), &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

struct ResendAlone : ResendOfSharers {};

TEST_F(ResendAlone, IsLeftToAProcessThatRuns) {
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

}  // namespace
}  // namespace clan::preload
