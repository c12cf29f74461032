// Calls that cannot come again later, or that end something, while another process keeps a word of
// the connection: a process that shares it and is stopped, the other end that is stopped, or one
// that writes there whatever it likes.
#include <netinet/tcp.h>

#include "stopped.h"

namespace clan::test {
namespace {

/// Of a call that waits a fifth of a second at most, on a very busy machine.
constexpr double kOfAll = 4;

// Takes the connection back to TCP, clean for a program that knows nothing of pipes.
void take_back(int fd) { (void)set(fd, IPPROTO_TCP, TCP_REPAIR, 0); }

bool was_reset(int fd) {
  char byte;
  return poll_one(fd, POLLIN, 3000) != 0 && ::recv(fd, &byte, 1, MSG_DONTWAIT) == -1 &&
         errno == ECONNRESET;
}

TEST(HeldUp, AShutdownReturnsWhileASharerIsStoppedInASend) {
  Peer peer([](int fd) { return echo(fd); });
  const int fd = peer.fd;
  const Stopped sharer = stopped_in_a_copy(fd, true);
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(::shutdown(fd, SHUT_WR), 0); }), kSoon);
  EXPECT_EQ(::send(fd, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_NE(poll_one(fd, POLLOUT, 0) & POLLOUT, 0);
  const GoesOnLater later(sharer);
  char byte;
  EXPECT_EQ(::recv(fd, &byte, 1, 0), 0) << "its peer closes when it has been told";
}

TEST(HeldUp, AShutdownReturnsWhileAWordNamesAnotherProcess) {
  Peer peer([](int fd) { return echo(fd); });
  if (preloaded()) end_of(peer.fd)->sender.lock = lock_word_of(peer.pid);
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(::shutdown(peer.fd, SHUT_WR), 0); }), kSoon);
  if (preloaded()) end_of(peer.fd)->sender.lock = 0;
  char byte;
  EXPECT_EQ(::recv(peer.fd, &byte, 1, 0), 0);
}

TEST(HeldUp, UrgentDataGoesWhenAStoppedSharerGoesOn) {
  Peer peer([](int fd) { return echo(fd); });
  const int fd = peer.fd;
  const Stopped sharer = stopped_in_a_copy(fd, true);
  ssize_t sent = 0;
  EXPECT_LT(seconds_of([&] {
              sent = ::send(fd, "!", 1, MSG_OOB | MSG_DONTWAIT | MSG_NOSIGNAL);
              EXPECT_TRUE(sent == 1 || (sent == -1 && errno == EAGAIN));
            }),
            kSoon);
  const GoesOnLater later(sharer);
  // One alone: with a second one the first is read as data, where the peer has not come to it.
  if (sent != 1) {
    EXPECT_EQ(::send(fd, "!", 1, MSG_OOB | MSG_NOSIGNAL), 1);
  }
  put(fd, "more");
  EXPECT_EQ(get(fd, 4), "more");
}

// Longer than any time after which the connection is reset.
TEST(HeldUp, AWayBackToTcpWaitsForASharerThatIsStopped) {
  Peer peer([](int fd) { return echo(fd); });
  const int fd = peer.fd;
  const Stopped sharer = stopped_in_a_copy(fd, true);
  const GoesOnLater later(sharer, 11'000'000);
  take_back(fd);
  put(fd, "more");
  EXPECT_EQ(get(fd, 4), "more");
}

int stopped_in_its_own_copy(int fd) {
  if (preloaded()) end_of(fd)->sender.lock = lock_word_of(::getpid());
  ::raise(SIGSTOP);
  return 0;
}

TEST(HeldUp, AWayBackToTcpIsNotHeldUpByAPeerThatIsStopped) {
  Peer peer(stopped_in_its_own_copy);
  int status = 0;
  ASSERT_EQ(::waitpid(peer.pid, &status, WUNTRACED), peer.pid);
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_LT(seconds_of([&] { take_back(peer.fd); }), kOfAll);
  ::kill(peer.pid, SIGCONT);
}

// By words that the other end can write, naming itself or a thread that has nothing to do with the
// connection.
TEST(HeldUp, AWayBackToTcpEndsInAResetSoonWhereThePeerLies) {
  using namespace socket_face;
  if (!preloaded()) GTEST_SKIP() << "the kernel's has no such words";
  const std::function<void(int, pid_t)> lies[] = {
      [](int fd, pid_t other) { end_of(fd)->sender.lock = lock_word_of(other); },
      [](int fd, pid_t other) { end_of(fd)->receiver.lock = lock_word_of(other); },
      [](int fd, pid_t other) {
        face_of(fd)->words[kBells] =
            static_cast<std::uint64_t>(other) << kRinger | kRingerSends | kSendsDoorbell | 1;
      },
  };
  for (const auto& lie : lies) {
    for (const bool of_peer : {true, false}) {
      Peer peer([](int fd) {
        (void)echo(fd);
        return 0;
      });
      lie(peer.fd, of_peer ? peer.pid : ::getppid());
      EXPECT_LT(seconds_of([&] { take_back(peer.fd); }), kOfAll);
      EXPECT_TRUE(was_reset(peer.fd)) << &lie - lies;
    }
  }
}

// Its own thread would be at it.
TEST(HeldUp, ASendIsResetAtOnceWhereThePeerSaysThatThisEndHasLeft) {
  Peer peer([](int fd) { return echo(fd) == (preloaded() ? 1 : 0) ? 0 : 1; });  // it is reset, too
  if (preloaded()) end_of(peer.fd)->sender.ended = 2;
  EXPECT_LT(seconds_of([&] {
              const ssize_t n = ::send(peer.fd, "x", 1, MSG_NOSIGNAL);
              EXPECT_EQ(n, preloaded() ? -1 : 1);
            }),
            kSoon);
}

// A rhythm of taking a lock, and letting go when a call has given up.
TEST(HeldUp, ManyCallsAreHeldUpForAFifthOfASecondInAll) {
  Peer peer([](int fd) { return echo(fd); });
  if (!preloaded()) GTEST_SKIP() << "the kernel's has no such words";
  PipePage::End& end = *end_of(peer.fd);
  EXPECT_LT(seconds_of([&] {
              for (int k = 0; k < 500; ++k) {
                end.sender.lock = lock_word_of(peer.pid);
                EXPECT_EQ(::send(peer.fd, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL), -1);
                EXPECT_EQ(errno, EAGAIN);
                end.sender.lock = 0;
                EXPECT_EQ(::send(peer.fd, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL), 1);
              }
            }),
            8);
  EXPECT_EQ(get(peer.fd, 500), std::string(500, 'x'));
}

}  // namespace
}  // namespace clan::test
