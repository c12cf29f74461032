// Going back to TCP, and the end of a connection.
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>

#include "helpers.h"

namespace clan::test {
namespace {

// --- the end -----------------------------------------------------------------------------------

TEST(End, HalfClosedItGoesOnTheOtherWay) {
  Pair pair;
  put(pair.near, "last");
  ASSERT_EQ(::shutdown(pair.near, SHUT_WR), 0);
  EXPECT_EQ(::send(pair.near, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(get(pair.far, 4), "last");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(ends(pair.far));
  for (int i = 0; i < 100; ++i) {
    put(pair.far, "more");
    EXPECT_EQ(get(pair.near, 4), "more");
  }
  ASSERT_EQ(::shutdown(pair.far, SHUT_WR), 0);
  EXPECT_TRUE(ends(pair.near));
}

/// One end of a connection whose ends talk, half-close and go on in any order. False: something is
/// amiss.
struct HalfCloser {
  int fd;
  std::minstd_rand random;
  std::string out{}, in{};

  std::size_t below(unsigned most) { return random() % most; }
  void rest() {
    if (below(3) == 0) ::usleep(static_cast<useconds_t>(below(150)));
  }
  bool send_some(char letter) {
    const std::string text(1 + below(300), letter);
    out += text;
    return ::send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  // False: the end has come.
  bool read_some(int flags) {
    char buffer[500];
    const ssize_t n = ::recv(fd, buffer, 1 + below(sizeof buffer), flags);
    if (n > 0) in.append(buffer, static_cast<std::size_t>(n));
    return n > 0 || (n < 0 && errno == EAGAIN);
  }
  bool half_close_first() {
    for (std::size_t i = 0, calls = 3 + below(12); i < calls; ++i, rest()) {
      if (below(2) == 0 ? !send_some(static_cast<char>('a' + i)) : !read_some(MSG_DONTWAIT))
        return false;
    }
    if (::shutdown(fd, SHUT_WR) != 0) return false;
    while (read_some(0)) rest();
    return true;
  }
  bool go_on_after() {
    for (std::size_t i = 0, calls = below(6); i < calls; ++i, rest()) {
      if (!send_some(static_cast<char>('A' + i))) return false;
    }
    while (read_some(0)) rest();
    for (std::size_t i = 0; i < 12; ++i, rest()) {
      if (below(4) == 0) ::usleep(1100);  // a sender asks now and then whether the peer is there
      if (!send_some(static_cast<char>('K' + i))) return false;
    }
    return ::shutdown(fd, SHUT_WR) == 0;
  }
};

TEST(End, HalfClosedWhileTheConnectionMovesItLosesNothing) {
  constexpr unsigned kRounds = 200;
  for (unsigned round = 0; round < kRounds; ++round) {
    Pair pair(false);
    const bool accepted = round % 3 != 0;
    HalfCloser first{accepted ? pair.far : pair.near, std::minstd_rand(round + 1)};
    HalfCloser other{accepted ? pair.near : pair.far, std::minstd_rand(round + 7777)};
    bool well = false;
    std::thread thread([&] { well = other.go_on_after(); });
    EXPECT_TRUE(first.half_close_first()) << std::strerror(errno);
    thread.join();
    EXPECT_TRUE(well);
    ASSERT_TRUE(first.in == other.out)
        << "round " << round << ": " << first.in.size() << " of " << other.out.size();
    ASSERT_TRUE(other.in == first.out)
        << "round " << round << ": " << other.in.size() << " of " << first.out.size();
  }
}

TEST(End, ShutdownOfReadingLeavesWhatHasCome) {
  Pair pair;
  put(pair.near, "ab");
  ASSERT_EQ(::shutdown(pair.far, SHUT_RD), 0);
  EXPECT_EQ(get(pair.far, 2), "ab");
  EXPECT_TRUE(ends(pair.far));
  put(pair.far, "cd");
  EXPECT_EQ(get(pair.near, 2), "cd");
}

TEST(End, OfReadingByAChildLeavesTheParentsSending) {
  Pair pair;
  EXPECT_EQ(result_of(child([&] { return ::shutdown(pair.near, SHUT_RD); })), 0);
  for (int i = 0; i < 10; ++i) {
    ::usleep(2000);  // a sender asks now and then whether the peer is there
    put(pair.near, "on");
    EXPECT_EQ(get(pair.far, 2), "on");
  }
  EXPECT_TRUE(ends(pair.near));
  EXPECT_TRUE(by_pipe(pair.near));
}

TEST(End, OfAPeerIsNoticedByASendBehindAShutdownOfReading) {
  Pair pair;
  ASSERT_EQ(::shutdown(pair.near, SHUT_RD), 0);
  pair.close_far();
  EXPECT_TRUE(
      comes_true([&] { return ::send(pair.near, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE; }));
}

TEST(End, ShutdownWhereNothingIsConnectedAnyMoreFails) {
  {
    Pair pair;
    for (const int fd : {pair.near, pair.far}) ASSERT_EQ(::shutdown(fd, SHUT_WR), 0);
    for (const int fd : {pair.near, pair.far}) EXPECT_TRUE(ends(fd));
    for (const int how : {SHUT_WR, SHUT_RD, SHUT_RDWR}) {
      EXPECT_EQ(::shutdown(pair.near, how), -1);
      EXPECT_EQ(errno, ENOTCONN);
    }
  }
  Pair pair;
  put(pair.far, "nobody reads this");
  EXPECT_EQ(poll_one(pair.near, POLLIN, 1000), POLLIN) << "it has come";
  pair.close_near();
  EXPECT_TRUE(comes_true([&] { return (poll_one(pair.far, POLLIN, 0) & POLLERR) != 0; }));
  EXPECT_EQ(::shutdown(pair.far, SHUT_WR), -1);
  EXPECT_EQ(errno, ENOTCONN);
}

TEST(End, WrongShutdownsFail) {
  Pair pair;
  EXPECT_EQ(::shutdown(pair.near, 3), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::shutdown(-1, SHUT_WR), -1);
  EXPECT_EQ(errno, EBADF);
  const int single = ::socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(::shutdown(single, SHUT_WR), -1);
  EXPECT_EQ(errno, ENOTCONN);
  ::close(single);
  pair.talk();
}

TEST(End, ClosedWithBytesUnderWayTheyStillArrive) {
  const std::string all(200'000, 'u');
  for (const bool exits : {false, true}) {
    Peer peer([&](int fd) {
      put(fd, all);
      if (!exits) ::close(fd);
      return 0;
    });
    ::usleep(20'000);
    EXPECT_TRUE(get(peer.fd, all.size()) == all);
    EXPECT_TRUE(ends(peer.fd));
  }
}

class EndOfProcess : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(End, EndOfProcess, testing::Bool());

TEST_P(EndOfProcess, ThatExitsAfterItWasWokenIsNoReset) {
  const bool quick = GetParam();
  Peer peer([quick](int fd) {
    char byte;
    const int result = ::read(fd, &byte, 1) == 1 ? 0 : 1;
    if (quick) std::quick_exit(result);
    return result;
  });
  ::usleep(50'000);  // it sleeps
  EXPECT_EQ(::write(peer.fd, "x", 1), 1);
  EXPECT_EQ(peer.result(), 0);
  tcp_info info{};
  socklen_t size = sizeof info;
  EXPECT_EQ(::getsockopt(peer.fd, IPPROTO_TCP, TCP_INFO, &info, &size), 0);
  EXPECT_EQ(info.tcpi_state, TCP_CLOSE_WAIT);  // for ss, and for programs that go on by TCP
  EXPECT_TRUE(ends(peer.fd));
}

// In the pipe, where a peer that polls sees it before the kernel has been asked. What is only one
// of several holders' close is not, nor what is to be a reset.
TEST(End, OfTheLastDescriptorIsToldInThePipeBehindTheBytes) {
  struct Ended {
    explicit Ended(int fd) : face(face_of(fd)) {}
    // By the end that has closed.
    bool operator()() const {
      const auto* end = reinterpret_cast<const PipePage::End*>(reinterpret_cast<const char*>(face) -
                                                               offsetof(PipePage::End, face));
      return end->sender.ended.load() == 1;
    }
    PipePage::Face* face;
  };
  {
    Pair pair;
    const Ended ended(pair.near);
    const int other = ::dup(pair.near);
    put(pair.near, "last");
    pair.close_near();
    EXPECT_TRUE(!preloaded() || !ended());
    put(other, "more");
    ::close(other);
    EXPECT_TRUE(!preloaded() || ended());
    EXPECT_NE(poll_one(pair.far, POLLIN, 1000) & POLLIN, 0);
    EXPECT_EQ(get(pair.far, 8), "lastmore");
    EXPECT_TRUE(ends(pair.far));
  }
  {
    Pair pair;
    const Ended ended(pair.near);
    int go[2];
    ASSERT_EQ(::pipe2(go, O_CLOEXEC), 0);
    const pid_t holder = child([&] {
      char byte;
      if (::read(go[0], &byte, 1) != 1) return 1;
      put(pair.near, "by a child");
      return 0;
    });
    pair.close_near();
    EXPECT_TRUE(!preloaded() || !ended());
    EXPECT_EQ(::write(go[1], "x", 1), 1);
    EXPECT_EQ(get(pair.far, 10), "by a child");
    EXPECT_EQ(result_of(holder), 0);
    for (const int one : go) ::close(one);
    EXPECT_TRUE(ends(pair.far));
  }
  {
    Pair pair;
    const Ended ended(pair.near);
    put(pair.far, "nobody reads this");
    EXPECT_EQ(poll_one(pair.near, POLLIN, 1000), POLLIN);
    pair.close_near();
    EXPECT_TRUE(!preloaded() || !ended());
  }
}

TEST(End, ClosedWithUnreadBytesThePeerSeesAReset) {
  Pair pair;
  put(pair.far, "nobody reads this");
  EXPECT_EQ(poll_one(pair.near, POLLIN, 1000), POLLIN) << "it has come";
  pair.close_near();
  EXPECT_TRUE(comes_true([&] { return (poll_one(pair.far, POLLIN, 0) & POLLERR) != 0; }));
  char byte;
  EXPECT_EQ(::read(pair.far, &byte, 1), -1);
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_EQ(::read(pair.far, &byte, 1), 0);
  EXPECT_EQ(::send(pair.far, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST(End, ClosedWithLingerOfNoughtThePeerSeesAReset) {
  Pair pair;
  const linger now{1, 0};
  ASSERT_EQ(::setsockopt(pair.near, SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
  pair.close_near();
  char byte;
  EXPECT_EQ(::read(pair.far, &byte, 1), -1);
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_EQ(option(pair.far, SOL_SOCKET, SO_ERROR), 0) << "it has been told";
}

TEST(End, OfAProcessThatExitsWithLingerOfNoughtIsAReset) {
  Peer peer([](int fd) {
    const linger now{1, 0};
    return ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  });
  EXPECT_EQ(peer.result(), 0);
  char byte;
  EXPECT_EQ(::read(peer.fd, &byte, 1), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST(End, ClosedWithLingerOfASecondItIsOrderly) {
  Pair pair;
  const linger second{1, 1};
  ASSERT_EQ(::setsockopt(pair.near, SOL_SOCKET, SO_LINGER, &second, sizeof second), 0);
  put(pair.near, "ab");
  pair.close_near();
  EXPECT_EQ(get(pair.far, 2), "ab");
  EXPECT_TRUE(ends(pair.far));
}

// A parent keeps the socket and leaves it to its child, which reads it to its end and is done with
// it.
TEST(End, IsSeenByAProcessThatHasNotReadTheConnectionItself) {
  for (const bool exits : {false, true}) {
    for (const bool peer_shuts_down : {false, true}) {
      for (const bool shuts_down : {false, true}) {
        Pair pair;
        const pid_t reader = child([&] {
          pair.close_near();
          const int result = echo(pair.far);
          if (exits) std::exit(result);
          pair.close_far();
          return result;
        });
        ping(pair.near, 100);
        EXPECT_TRUE(by_pipe(pair.near));
        peer_shuts_down ? (void)::shutdown(pair.near, SHUT_RDWR) : pair.close_near();
        EXPECT_EQ(result_of(reader), 0);
        pair.close_near();
        if (shuts_down) {
          EXPECT_EQ(::shutdown(pair.far, SHUT_RDWR), 0) << std::strerror(errno);
        } else {
          EXPECT_EQ(poll_one(pair.far, POLLIN | POLLRDHUP, 0), POLLIN | POLLRDHUP);
        }
        char byte;
        EXPECT_EQ(::recv(pair.far, &byte, 1, MSG_DONTWAIT), 0) << std::strerror(errno);
        EXPECT_EQ(option(pair.far, SOL_SOCKET, SO_ERROR), 0);
      }
    }
  }
}

}  // namespace
}  // namespace clan::test
