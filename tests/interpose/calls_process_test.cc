// Calls that make, name, pass on and end sockets, streams on them, and processes that share them:
// on connections that have moved, with what the kernel does by itself expected. Run with the
// interposer preloaded, and without: both have to pass. The table "Calls" of docs/interposition.md
// names the tests of each row.
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/un.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

#include "connection.h"

namespace clan::test {
namespace {

// Executed anew by a test, this program only echoes on the socket that this variable names.
constexpr char kEchoOn[] = "CLAN_TEST_ECHO_ON";
constexpr char kAcceptOn[] = "CLAN_TEST_ACCEPT_ON";    ///< or on what it accepts there,
constexpr char kConnectTo[] = "CLAN_TEST_CONNECT_TO";  ///< or is connected to at this port
constexpr char kClose[] = "CLAN_TEST_CLOSE";           ///< and closes this one first
constexpr char kTakeFrom[] = "CLAN_TEST_TAKE_FROM";    ///< or on what it receives there
int take(int through, int flags = 0);
const bool is_a_test = [] {
  if (const char* fd = std::getenv(kTakeFrom)) ::_exit(echo(take(std::atoi(fd))));
  if (const char* fd = std::getenv(kAcceptOn)) ::_exit(echo(::accept(std::atoi(fd), nullptr, nullptr)));
  if (const char* port = std::getenv(kConnectTo)) {
    ::_exit(echo(connect_to(static_cast<std::uint16_t>(std::atoi(port)))));
  }
  if (const char* fd = std::getenv(kClose)) ::close(std::atoi(fd));
  if (const char* fd = std::getenv(kEchoOn)) ::_exit(echo(std::atoi(fd)));
  return Watchdog::start();
}();

int set(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof value);
}
int option(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, level, name, &value, &size) == 0 ? value : -1;
}
short poll_one(int fd, short events, int timeout_ms) {
  pollfd p{fd, events, 0};
  return ::poll(&p, 1, timeout_ms) < 0 ? static_cast<short>(-1) : p.revents;
}
sockaddr_in name_of(int fd, bool peer) {
  sockaddr_in name{};
  socklen_t size = sizeof name;
  auto* to = reinterpret_cast<sockaddr*>(&name);
  EXPECT_EQ(peer ? ::getpeername(fd, to, &size) : ::getsockname(fd, to, &size), 0);
  EXPECT_EQ(size, sizeof name);
  return name;
}
bool same(const sockaddr_in& a, const sockaddr_in& b) {
  return a.sin_family == b.sin_family && a.sin_port == b.sin_port &&
         a.sin_addr.s_addr == b.sin_addr.s_addr;
}
/// Reads to the end: how it was.
bool ends(int fd) {
  char byte;
  return poll_one(fd, POLLIN, 3000) != 0 && ::read(fd, &byte, 1) == 0;
}

// --- making connections ------------------------------------------------------------------------

TEST(Connect, PortsAreTheKernelsToGive) {
  const int listening = listener();
  const sockaddr_in taken = loopback(port_of(listening));
  const int other = ::socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(::bind(other, reinterpret_cast<const sockaddr*>(&taken), sizeof taken), -1);
  EXPECT_EQ(errno, EADDRINUSE);
  EXPECT_EQ(option(listening, SOL_SOCKET, SO_ACCEPTCONN), 1);
  EXPECT_EQ(option(other, SOL_SOCKET, SO_ACCEPTCONN), 0);
  EXPECT_EQ(::listen(-1, 1), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(::socket(AF_INET, SOCK_STREAM, IPPROTO_UDP), -1);
  EXPECT_EQ(errno, EPROTONOSUPPORT);
  ::close(other);
  ::close(listening);
}

TEST(Connect, BlockingItIsThereOrRefused) {
  Pair pair;  // and has moved
  const int listening = listener();
  const std::uint16_t port = port_of(listening);
  ::close(listening);
  EXPECT_EQ(connect_to(port), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  const sockaddr_in again = name_of(pair.near, true);
  EXPECT_EQ(::connect(pair.near, reinterpret_cast<const sockaddr*>(&again), sizeof again), -1);
  EXPECT_EQ(errno, EISCONN);
  pair.talk();
}

TEST(Connect, ToNowhereResetsTheConnectionAndTheNextOneIsNew) {
  const sockaddr nowhere{AF_UNSPEC, {}};
  for (const bool moved : {true, false}) {
    Pair pair(moved);
    if (!moved) pair.talk(2);  // the offer has been made
    put(pair.near, "still read");
    ASSERT_EQ(::connect(pair.near, &nowhere, sizeof nowhere), 0);
    EXPECT_EQ(get(pair.far, 10), "still read");
    char byte;
    EXPECT_EQ(::read(pair.far, &byte, 1), -1);
    EXPECT_EQ(errno, ECONNRESET);
    EXPECT_EQ(::read(pair.near, &byte, 1), -1);
    EXPECT_EQ(errno, ECONNRESET);
    EXPECT_EQ(::read(pair.near, &byte, 1), -1);
    EXPECT_EQ(errno, ENOTCONN);
    const int listening = listener();
    const sockaddr_in there = loopback(port_of(listening));
    ASSERT_EQ(::connect(pair.near, reinterpret_cast<const sockaddr*>(&there), sizeof there), 0)
        << std::strerror(errno);
    pair.close_far();
    pair.far = ::accept(listening, nullptr, nullptr);
    ::close(listening);
    pair.talk();
    EXPECT_EQ(poll_one(pair.near, POLLIN, 0), 0);
    put(pair.far, "xyz");
    EXPECT_EQ(poll_one(pair.near, POLLIN, 1000), POLLIN);
    EXPECT_EQ(get(pair.near, 3), "xyz");
    EXPECT_TRUE(same(name_of(pair.near, true), there));
    pair.close_far();
    EXPECT_TRUE(ends(pair.near));
  }
}

TEST(Connect, WithoutWaitingSoErrorTellsHowItEnded) {
  const int listening = listener();
  sockaddr_in there = loopback(port_of(listening));
  int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int rc = ::connect(fd, reinterpret_cast<const sockaddr*>(&there), sizeof there);
  EXPECT_TRUE(rc == 0 || errno == EINPROGRESS);
  EXPECT_EQ(poll_one(fd, POLLOUT, 1000), POLLOUT);
  EXPECT_EQ(option(fd, SOL_SOCKET, SO_ERROR), 0);
  {
    Pair pair(fd, ::accept(listening, nullptr, nullptr));
    char byte;
    EXPECT_EQ(::read(pair.near, &byte, 1), -1);
    EXPECT_EQ(errno, EAGAIN);
    ASSERT_EQ(::fcntl(pair.near, F_SETFL, 0), 0);
    pair.move();
  }
  ::close(listening);
  fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&there), sizeof there) < 0 &&
      errno == EINPROGRESS) {
    EXPECT_NE(poll_one(fd, POLLOUT, 1000), 0);
    EXPECT_EQ(option(fd, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
    EXPECT_EQ(option(fd, SOL_SOCKET, SO_ERROR), 0) << "it is told once";
  } else {
    EXPECT_EQ(errno, ECONNREFUSED);
  }
  ::close(fd);
}

TEST(Connect, AcceptSaysWhoAndTakesFlags) {
  const int listening = listener();
  for (const int flags : {0, SOCK_NONBLOCK | SOCK_CLOEXEC}) {
    const int near = connect_to(port_of(listening));
    sockaddr_in from{};
    socklen_t size = sizeof from;
    auto* name = reinterpret_cast<sockaddr*>(&from);
    const int far =
        flags == 0 ? ::accept(listening, name, &size) : ::accept4(listening, name, &size, flags);
    ASSERT_GE(far, 0);
    EXPECT_TRUE(same(from, name_of(near, false)));
    EXPECT_EQ((::fcntl(far, F_GETFL) & O_NONBLOCK) != 0, flags != 0);
    EXPECT_EQ((::fcntl(far, F_GETFD) & FD_CLOEXEC) != 0, flags != 0);
    Pair pair(near, far);
    pair.move();
    char byte;
    if (flags != 0) {
      EXPECT_EQ(::read(far, &byte, 1), -1);
      EXPECT_EQ(errno, EAGAIN);
    }
  }
  ASSERT_EQ(::fcntl(listening, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(::accept(listening, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(::accept4(listening, nullptr, nullptr, 0x12345), -1);
  EXPECT_EQ(errno, EINVAL);
  ::close(listening);
}

TEST(Connect, NamesStayThoseOfTheConnection) {
  Pair pair(false);
  const sockaddr_in near = name_of(pair.near, false), far = name_of(pair.far, false);
  EXPECT_TRUE(same(near, name_of(pair.far, true)));
  pair.move();
  EXPECT_TRUE(same(near, name_of(pair.near, false)));
  EXPECT_TRUE(same(near, name_of(pair.far, true)));
  EXPECT_TRUE(same(far, name_of(pair.near, true)));
  sockaddr_in part{};
  socklen_t size = 4;
  EXPECT_EQ(::getsockname(pair.near, reinterpret_cast<sockaddr*>(&part), &size), 0);
  EXPECT_EQ(size, sizeof part) << "cut, and how long it would be";
  const int single = ::socket(AF_INET, SOCK_STREAM, 0);
  size = sizeof part;
  EXPECT_EQ(::getpeername(single, reinterpret_cast<sockaddr*>(&part), &size), -1);
  EXPECT_EQ(errno, ENOTCONN);
  ::close(single);
}

TEST(Connect, ResolvedNamesLeadThere) {
  const int listening = listener();
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  ASSERT_EQ(::getaddrinfo("127.0.0.1", std::to_string(port_of(listening)).c_str(), &hints, &found),
            0);
  const int near = ::socket(found->ai_family, found->ai_socktype, found->ai_protocol);
  ASSERT_EQ(::connect(near, found->ai_addr, found->ai_addrlen), 0);
  char host[64], service[16];
  EXPECT_EQ(::getnameinfo(found->ai_addr, found->ai_addrlen, host, sizeof host, service,
                          sizeof service, NI_NUMERICHOST | NI_NUMERICSERV),
            0);
  EXPECT_STREQ(host, "127.0.0.1");
  ::freeaddrinfo(found);
  Pair(near, ::accept(listening, nullptr, nullptr)).move();
  ::close(listening);
}

TEST(Connect, OtherKindsOfSocketsAreLeftAlone) {
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM}) {
    int two[2];
    ASSERT_EQ(::socketpair(AF_UNIX, type, 0, two), 0);
    for (int i = 0; i < 50; ++i) {
      put(two[0], "there");
      EXPECT_EQ(get(two[1], 5), "there");
      put(two[1], "back");
      EXPECT_EQ(get(two[0], 4), "back");
    }
    ::close(two[0]);
    ::close(two[1]);
  }
  const int one = ::socket(AF_INET, SOCK_DGRAM, 0), other = ::socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in name = loopback(0);
  for (const int fd : {one, other}) {
    ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  }
  sockaddr_in to = name_of(other, false);
  ASSERT_EQ(::connect(one, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  for (int i = 0; i < 50; ++i) {
    put(one, "datagram");
    char in[20];
    sockaddr_in from{};
    socklen_t size = sizeof from;
    EXPECT_EQ(::recvfrom(other, in, sizeof in, 0, reinterpret_cast<sockaddr*>(&from), &size), 8);
    EXPECT_TRUE(same(from, name_of(one, false)));
  }
  ::close(one);
  ::close(other);
  EXPECT_TRUE(pipes().empty());
}

TEST(Options, OfASocketAreTheKernels) {
  Pair pair(false);
  std::uint64_t before = 0, after = 1;
  socklen_t size = sizeof before;
  ASSERT_EQ(::getsockopt(pair.near, SOL_SOCKET, SO_COOKIE, &before, &size), 0);
  pair.move();
  size = sizeof after;
  ASSERT_EQ(::getsockopt(pair.near, SOL_SOCKET, SO_COOKIE, &after, &size), 0);
  EXPECT_EQ(before, after);
  EXPECT_EQ(option(pair.near, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
  EXPECT_EQ(option(pair.near, SOL_SOCKET, SO_DOMAIN), AF_INET);
  EXPECT_EQ(option(pair.near, SOL_SOCKET, SO_PROTOCOL), IPPROTO_TCP);
  EXPECT_EQ(option(pair.near, SOL_SOCKET, SO_ERROR), 0);
  EXPECT_EQ(set(pair.near, SOL_SOCKET, SO_KEEPALIVE, 1), 0);
  EXPECT_EQ(option(pair.near, SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(set(pair.near, IPPROTO_TCP, TCP_KEEPIDLE, 77), 0);
  EXPECT_EQ(option(pair.near, IPPROTO_TCP, TCP_KEEPIDLE), 77);
  EXPECT_EQ(set(pair.near, SOL_SOCKET, 9999, 1), -1);
  EXPECT_EQ(errno, ENOPROTOOPT);
  pair.talk();
}

// Level and type of the control data that comes with one byte, which is read.
std::pair<int, int> control_of_a_byte(int fd) {
  char byte;
  iovec io{&byte, 1};
  alignas(cmsghdr) char control[200];
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  EXPECT_EQ(::recvmsg(fd, &message, 0), 1);
  const cmsghdr* c = CMSG_FIRSTHDR(&message);
  return c == nullptr ? std::pair{-1, -1} : std::pair{c->cmsg_level, c->cmsg_type};
}

TEST(Options, ThoseThatTellOfBytesOrChangeThemFallBack) {
  Pair stamped, counted, layered;
  put(stamped.near, "before");
  ASSERT_EQ(set(stamped.far, SOL_SOCKET, SO_TIMESTAMP, 1), 0);
  EXPECT_EQ(get(stamped.far, 6), "before");
  stamped.talk();
  // The kernel begins to stamp what arrives a moment after it has been asked to.
  EXPECT_TRUE(comes_true([&] {
    put(stamped.near, "x");
    return control_of_a_byte(stamped.far) == std::pair<int, int>(SOL_SOCKET, SO_TIMESTAMP);
  }));
  ASSERT_EQ(set(counted.far, IPPROTO_TCP, TCP_INQ, 1), 0);
  counted.talk();
  put(counted.near, "x");
  EXPECT_EQ(control_of_a_byte(counted.far), (std::pair<int, int>(IPPROTO_TCP, TCP_CM_INQ)));
  put(layered.near, "before");
  (void)::setsockopt(layered.far, IPPROTO_TCP, TCP_ULP, "tls", 3);  // the kernel may not have it
  EXPECT_EQ(get(layered.far, 6), "before");
  layered.talk();
  for (const Pair* pair : {&stamped, &counted, &layered}) EXPECT_TRUE(by_tcp(pair->far));
}

// --- going back --------------------------------------------------------------------------------

/// A descriptor of the same socket that the library does not know.
int behind_its_back(int fd) {
  const int self = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  const int copy = static_cast<int>(::syscall(SYS_pidfd_getfd, self, fd, 0));
  ::close(self);
  return copy;
}

// A thread is stopped after it has counted a doorbell and before it rings, or is killed there, and another
// one takes the connection back to TCP.
TEST(GoingBack, ADoorbellThatIsUnderWayIsWaitedFor) {
  if (!preloaded()) return;
  using namespace socket_face;
  Pair pair;
  const int copy = behind_its_back(pair.near);
  ASSERT_GE(copy, 0) << std::strerror(errno);
  PipePage::Face* face = face_of(pair.near);
  ASSERT_NE(face, nullptr);
  const std::uint64_t ringer = static_cast<std::uint64_t>(::gettid()) << kRinger | 1;
  face->words[kBells].fetch_add(ringer);
  face->words[kDoorbells].fetch_add(1);
  put(pair.near, "by the pipe, ");
  {
    Thread leaver([&] {
      EXPECT_EQ(set(pair.near, SOL_SOCKET, SO_TIMESTAMP, 1), 0);
      put(pair.near, "by TCP");
    });
    ::usleep(400'000);
    EXPECT_FALSE(leaver.done());
    EXPECT_EQ(::write(copy, "", 1), 1);
    face->words[kBells].fetch_sub(ringer);
    EXPECT_TRUE(leaver.ends());
  }
  EXPECT_EQ(get(pair.far, 19), "by the pipe, by TCP");
  EXPECT_TRUE(silent(pair.far));
  ::close(copy);
}

TEST(GoingBack, ADoorbellThatWasNeverRungIsNoByteOfTheApplications) {
  if (!preloaded()) return;
  using namespace socket_face;
  Pair pair;
  PipePage::Face* face = face_of(pair.near);
  ASSERT_NE(face, nullptr);
  const pid_t dead = child([] { return 0; });
  EXPECT_EQ(result_of(dead), 0);
  face->words[kBells].fetch_add(static_cast<std::uint64_t>(dead) << kRinger | 1);
  face->words[kDoorbells].fetch_add(1);
  put(pair.near, "by the pipe, ");
  EXPECT_EQ(set(pair.near, SOL_SOCKET, SO_TIMESTAMP, 1), 0);
  put(pair.near, "by TCP");
  EXPECT_EQ(get(pair.far, 19), "by the pipe, by TCP");
  EXPECT_TRUE(silent(pair.far));
  EXPECT_TRUE(by_tcp(pair.far));
}

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

TEST(End, ShutdownOfReadingLeavesWhatHasCome) {
  Pair pair;
  put(pair.near, "ab");
  ASSERT_EQ(::shutdown(pair.far, SHUT_RD), 0);
  EXPECT_EQ(get(pair.far, 2), "ab");
  EXPECT_TRUE(ends(pair.far));
  put(pair.far, "cd");
  EXPECT_EQ(get(pair.near, 2), "cd");
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

// In the pipe, where a peer that polls sees it before the kernel has been asked. What is only one of several
// holders' close is not, nor what is to be a reset.
TEST(End, OfAProcessThatExitsAfterItWasWokenIsNoReset) {
  Peer peer([](int fd) {
    char byte;
    return ::read(fd, &byte, 1) == 1 ? 0 : 1;
  });
  ::usleep(50'000);  // it sleeps
  EXPECT_EQ(::write(peer.fd, "x", 1), 1);
  EXPECT_EQ(peer.result(), 0);
  tcp_info info{};
  socklen_t size = sizeof info;
  EXPECT_EQ(::getsockopt(peer.fd, IPPROTO_TCP, TCP_INFO, &info, &size), 0);
  EXPECT_EQ(info.tcpi_state, TCP_CLOSE_WAIT);  // for ss, and for whoever goes on by TCP
  EXPECT_TRUE(ends(peer.fd));
}

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
    const pid_t holder = child([&] {
      ::usleep(200'000);
      put(pair.near, "by a child");
      return 0;
    });
    pair.close_near();
    EXPECT_TRUE(!preloaded() || !ended());
    EXPECT_EQ(get(pair.far, 10), "by a child");
    EXPECT_EQ(result_of(holder), 0);
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

TEST(End, ClosedWithLingerOfASecondItIsOrderly) {
  Pair pair;
  const linger second{1, 1};
  ASSERT_EQ(::setsockopt(pair.near, SOL_SOCKET, SO_LINGER, &second, sizeof second), 0);
  put(pair.near, "ab");
  pair.close_near();
  EXPECT_EQ(get(pair.far, 2), "ab");
  EXPECT_TRUE(ends(pair.far));
}

// --- descriptors -------------------------------------------------------------------------------

TEST(Descriptors, TellHowMuchIsToBeRead) {
  Pair pair;
  for (const unsigned long request :
       {static_cast<unsigned long>(FIONREAD), static_cast<unsigned long>(SIOCINQ)}) {
    int n = -1;
    EXPECT_EQ(::ioctl(pair.far, request, &n), 0);
    EXPECT_EQ(n, 0);
    put(pair.near, "abc");
    put(pair.near, "de");
    EXPECT_TRUE(comes_true([&] { return ::ioctl(pair.far, request, &n) == 0 && n == 5; })) << n;
    EXPECT_EQ(get(pair.far, 4), "abcd");
    EXPECT_EQ(::ioctl(pair.far, request, &n), 0);
    EXPECT_EQ(n, 1);
    EXPECT_EQ(get(pair.far, 1), "e");
  }
}

TEST(Descriptors, TellThatAllThatWasSentHasArrived) {
  Pair pair;
  put(pair.near, "abc");
  EXPECT_TRUE(comes_true([&] {
    int n = -1;
    return ::ioctl(pair.near, SIOCOUTQ, &n) == 0 && n == 0;
  }));
}

TEST(Descriptors, CopiesAreTheSameConnectionUntilTheLastIsClosed) {
  using Copy = int (*)(int fd);
  const Copy kCopies[] = {
      [](int fd) { return ::dup(fd); },
      [](int fd) { return ::dup2(fd, 200); },
      [](int fd) { return ::dup3(fd, 201, O_CLOEXEC); },
      [](int fd) { return ::fcntl(fd, F_DUPFD, 202); },
      [](int fd) { return ::fcntl(fd, F_DUPFD_CLOEXEC, 203); },
  };
  Pair pair;
  std::vector<int> copies;
  for (const Copy copy : kCopies) copies.push_back(copy(pair.near));
  EXPECT_EQ(copies[1], 200);
  EXPECT_EQ(copies[2], 201);
  EXPECT_GE(copies[3], 202);
  EXPECT_NE(::fcntl(copies[4], F_GETFD) & FD_CLOEXEC, 0);
  pair.close_near();
  for (const int copy : copies) {
    EXPECT_TRUE(silent(pair.far));
    EXPECT_TRUE(by_pipe(copy));
    put(copy, "copy");
    EXPECT_EQ(get(pair.far, 4), "copy");
    put(pair.far, "back");
    EXPECT_EQ(get(copy, 4), "back");
    ::close(copy);
  }
  EXPECT_TRUE(ends(pair.far));
}

TEST(Descriptors, ADuplicateOntoASocketClosesThat) {
  for (int by_dup3 = 0; by_dup3 < 2; ++by_dup3) {
    Pair pair, other;
    const int replaced = pair.near;
    ASSERT_EQ(by_dup3 != 0 ? ::dup3(other.near, replaced, 0) : ::dup2(other.near, replaced),
              replaced);
    EXPECT_TRUE(ends(pair.far));
    put(replaced, "x");
    EXPECT_EQ(get(other.far, 1), "x");
    EXPECT_EQ(::dup2(-1, replaced), -1);
    EXPECT_EQ(errno, EBADF);
    put(replaced, "y");
    EXPECT_EQ(get(other.far, 1), "y");
  }
}

TEST(Descriptors, ADuplicateThatFailsClosesNothing) {
  Pair pair;
  EXPECT_EQ(::dup3(0, pair.near, 0x1234567), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::dup2(-1, pair.near), -1);
  EXPECT_EQ(errno, EBADF);
  pair.talk();
  EXPECT_TRUE(by_pipe(pair.near));
}

TEST(Descriptors, DoNotWaitHoweverThatIsSaid) {
  using Say = void (*)(int fd, bool waits);
  const std::pair<const char*, Say> kRoutes[] = {
      {"fcntl", [](int fd, bool waits) { ::fcntl(fd, F_SETFL, waits ? 0 : O_NONBLOCK); }},
      {"ioctl",
       [](int fd, bool waits) {
         int on = waits ? 0 : 1;
         ::ioctl(fd, FIONBIO, &on);
       }},
      {"fcntl by number",
       [](int fd, bool waits) { ::syscall(SYS_fcntl, fd, F_SETFL, waits ? 0 : O_NONBLOCK); }},
      {"of a copy",
       [](int fd, bool waits) {
         const int copy = ::dup(fd);
         ::fcntl(copy, F_SETFL, waits ? 0 : O_NONBLOCK);
         ::close(copy);
       }},
      {"by a child",
       [](int fd, bool waits) {
         EXPECT_EQ(result_of(child([&] { return ::fcntl(fd, F_SETFL, waits ? 0 : O_NONBLOCK); })),
                   0);
       }},
  };
  for (const auto& [name, say] : kRoutes) {
    SCOPED_TRACE(name);
    Pair pair;
    char byte;
    say(pair.far, false);
    EXPECT_EQ(::read(pair.far, &byte, 1), -1);
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_NE(::fcntl(pair.far, F_GETFL) & O_NONBLOCK, 0);
    say(pair.far, true);
    ssize_t n = 0;
    Thread reader([&, far = pair.far] { n = ::read(far, &byte, 1); });
    EXPECT_TRUE(reader.falls_asleep());
    put(pair.near, "x");
    reader.join();
    EXPECT_EQ(n, 1);
  }
}

std::atomic<int> signals{0};

TEST(Descriptors, SignalsTellOfWhatComesWhenThatIsAsked) {
  struct sigaction counts {
  }, before{};
  counts.sa_handler = [](int) { signals.fetch_add(1); };
  counts.sa_flags = SA_RESTART;
  ::sigaction(SIGIO, &counts, &before);
  for (int by_ioctl = 0; by_ioctl < 2; ++by_ioctl) {
    Pair pair;
    put(pair.near, "before");
    ASSERT_EQ(::fcntl(pair.far, F_SETOWN, ::getpid()), 0);
    int on = 1;
    ASSERT_EQ(
        by_ioctl != 0 ? ::ioctl(pair.far, FIOASYNC, &on) : ::fcntl(pair.far, F_SETFL, O_ASYNC), 0);
    EXPECT_EQ(get(pair.far, 6), "before");
    for (int i = 0; i < 5; ++i) {
      signals = 0;
      put(pair.near, "x");
      EXPECT_TRUE(comes_true([] { return signals.load() > 0; })) << "round " << i;
      EXPECT_EQ(get(pair.far, 1), "x");
    }
    EXPECT_TRUE(by_tcp(pair.far));
  }
  ::sigaction(SIGIO, &before, nullptr);
}

TEST(Descriptors, CloseRangeEndsConnections) {
  for (const int way : {0, 1, 2}) {
    Peer peer([way](int fd) {
      if (way == 0) ::close_range(static_cast<unsigned>(fd), static_cast<unsigned>(fd), 0);
      if (way == 1) ::close_range(3, ~0u, 0);
      if (way == 2) ::closefrom(3);
      // Until the test has seen the end.
      return ::usleep(300'000);
    });
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(ends(peer.fd)) << way;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(250));
  }
}

int open_descriptors() {
  int n = 0;
  for (int fd = 0; fd < 1024; ++fd) n += ::fcntl(fd, F_GETFD) >= 0;
  return n;
}

// In a child, as its limit is lower from then on.
TEST(Descriptors, OfALimitedNumberTheProgramGetsAllAndItsConnectionsGoOn) {
  EXPECT_EQ(result_of(child([] {
              constexpr int kLimit = 256;
              const rlimit limit{kLimit, kLimit};
              if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
              const int before = open_descriptors();
              const int listening = listener();
              const std::uint16_t port = port_of(listening);
              std::vector<std::unique_ptr<Pair>> pairs;
              const int expected = (kLimit - before - 1) / 2;
              for (int i = 0; i < expected; ++i) {
                const int near = connect_to(port);
                if (near < 0) return 2;
                const int far = ::accept(listening, nullptr, nullptr);
                if (far < 0) return 3;
                pairs.push_back(std::make_unique<Pair>(near, far));
                pairs.back()->talk();
              }
              for (const auto& pair : pairs) pair->talk();
              const int rest = kLimit - before - 1 - 2 * expected;
              for (int i = 0; i < rest; ++i) {
                if (::open("/dev/null", O_RDONLY) < 0) return 4;
              }
              if (::open("/dev/null", O_RDONLY) >= 0 || errno != EMFILE) return 5;
              pairs.erase(pairs.begin(), pairs.begin() + expected / 2);
              for (int i = 0; i < expected / 2 * 2; ++i) {
                if (::open("/dev/null", O_RDONLY) < 0) return 6;
              }
              for (const auto& pair : pairs) pair->talk();
              return ::testing::Test::HasFailure() ? 7 : 0;
            })),
            0);
}

TEST(Descriptors, WithANumberThatTheLibraryUsesAreTheProgramsOnce) {
  EXPECT_EQ(result_of(child([] {
              constexpr int kLimit = 256;
              const rlimit limit{kLimit, kLimit};
              if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
              Pair taken, closed, kept;
              const std::vector<int> numbers = pipes();
              struct stat wanted {}, found {};
              ::stat("/dev/null", &wanted);
              const int null = ::open("/dev/null", O_RDONLY);
              for (const int number : numbers) {
                if (::dup2(null, number) != number) return 2;
              }
              taken.talk();
              taken.close_near();
              taken.close_far();
              for (const int number : numbers) {
                if (::fstat(number, &found) != 0 || found.st_rdev != wanted.st_rdev) return 3;
              }
              Pair other;
              for (const int number : pipes()) ::close(number);
              while (::open("/dev/null", O_RDONLY) >= 0) {
              }
              for (Pair* pair : {&closed, &kept, &other}) pair->talk();
              const int before = open_descriptors();
              closed.close_near();
              closed.close_far();
              if (open_descriptors() != before - 2) return 4;
              kept.talk();
              return ::testing::Test::HasFailure() ? 5 : 0;
            })),
            0);
}

TEST(Descriptors, WhatIsNotClosedGoesOnWithoutTheLibrarysOwn) {
  Peer peer([](int fd) {
    if (::dup2(fd, 3) != 3) return 1;
    if (fd != 3) ::close(fd);
    ::closefrom(4);
    if (const int code = echo(3); code != 0) return code;
    return ::close_range(0, 2, CLOSE_RANGE_CLOEXEC);
  });
  ping(peer.fd, 50);
  EXPECT_TRUE(by_pipe(peer.fd));
}

// --- streams of the C library ------------------------------------------------------------------

TEST(Stdio, AStreamOnASocketReadsAndWrites) {
  Pair pair;
  FILE* in = ::fdopen(::dup(pair.far), "r");
  FILE* out = ::fdopen(::dup(pair.far), "w");
  FILE* both = ::fdopen(::dup(pair.far), "r+");
  ASSERT_TRUE(in != nullptr && out != nullptr && both != nullptr);
  ASSERT_EQ(std::setvbuf(out, nullptr, _IOLBF, 0), 0);
  put(pair.near, "one\ntwo\nthree");
  char line[100];
  ASSERT_NE(std::fgets(line, sizeof line, in), nullptr);
  EXPECT_STREQ(line, "one\n");
  EXPECT_EQ(std::fgetc(in), 't');
  EXPECT_EQ(std::fscanf(in, "wo\n%5s", line), 1);
  EXPECT_STREQ(line, "three");
  EXPECT_EQ(std::fprintf(out, "%d bottles\n", 99), 11);
  EXPECT_EQ(get(pair.near, 11), "99 bottles\n");
  put(pair.near, "42\n");
  ASSERT_NE(std::fgets(line, sizeof line, both), nullptr);
  EXPECT_STREQ(line, "42\n");
  EXPECT_GE(std::fputs("answer", both), 0);
  EXPECT_TRUE(silent(pair.near)) << "still in the stream";
  EXPECT_EQ(std::fflush(both), 0);
  EXPECT_EQ(get(pair.near, 6), "answer");
  EXPECT_GE(::fileno(in), 0);
  for (FILE* stream : {in, out, both}) EXPECT_EQ(std::fclose(stream), 0);
  EXPECT_TRUE(by_pipe(pair.near));
  put(pair.near, "x");
  EXPECT_EQ(get(pair.far, 1), "x");
}

TEST(Stdio, DprintfWritesToTheConnection) {
  Pair pair;
  EXPECT_EQ(::dprintf(pair.far, "%s %d\n", "bottles", 99), 11);
  EXPECT_EQ(get(pair.near, 11), "bottles 99\n");
  const std::string much(100'000, 'm');
  Thread writer([&] { EXPECT_EQ(::dprintf(pair.far, "%s", much.c_str()), 100'000); });
  EXPECT_TRUE(get(pair.near, much.size()) == much);
  writer.join();
  EXPECT_TRUE(silent(pair.near));
  pair.talk();
  EXPECT_TRUE(by_pipe(pair.near));
}

TEST(Stdio, StandardStreamsOnASocketReadAndWrite) {
  Peer peer([](int fd) {
    ::dup2(fd, STDIN_FILENO);
    ::dup2(fd, STDOUT_FILENO);
    ::close(fd);
    char line[100];
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
      std::printf("you said %s", line);
      std::fflush(stdout);
    }
    return std::ferror(stdin) != 0 ? 1 : 0;
  });
  for (int i = 0; i < 50; ++i) {
    const std::string line = "line " + std::to_string(1000 + i) + "\n";
    put(peer.fd, line);
    ASSERT_EQ(get(peer.fd, 19), "you said " + line);
  }
}

TEST(Stdio, AConnectionThatIsAStandardStreamFromTheBeginningStaysOnTcp) {
  const int listening = listener();
  const pid_t server = child([&] {
    ::close(STDIN_FILENO);
    if (::accept(listening, nullptr, nullptr) != STDIN_FILENO) return 1;
    char line[20];
    for (int i = 0; i < 40; ++i) {
      if (::recv(STDIN_FILENO, line, 10, MSG_WAITALL) != 10) return 2;
      if (::write(STDIN_FILENO, line, 10) != 10) return 3;
    }
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
      if (::write(STDIN_FILENO, line, 10) != 10) return 4;
    }
    return std::ferror(stdin) != 0 ? 5 : 0;
  });
  const int fd = connect_to(port_of(listening));
  for (int i = 0; i < 80; ++i) {
    const std::string line = "line " + std::to_string(1000 + i) + "\n";
    put(fd, line);
    ASSERT_EQ(get(fd, 10), line);
  }
  EXPECT_TRUE(by_tcp(fd));
  ::close(fd);
  ::close(listening);
  EXPECT_EQ(result_of(server), 0);
}

/// Until it takes no more. What it took.
std::size_t fill(int fd) {
  const std::string much(65536, 'f');
  std::size_t sum = 0;
  for (int idle = 0; idle < 3;) {
    const ssize_t n = ::send(fd, much.data(), much.size(), MSG_DONTWAIT);
    n > 0 ? (sum += static_cast<std::size_t>(n), idle = 0) : (++idle, ::usleep(1000));
  }
  return sum;
}

TEST(Stdio, AWriteThatASignalInterruptsFails) {
  Pair pair;
  FILE* out = ::fdopen(::dup(pair.near), "w");
  ASSERT_NE(out, nullptr);
  ASSERT_EQ(std::setvbuf(out, nullptr, _IONBF, 0), 0);
  (void)fill(pair.near);
  struct sigaction act {}, old {};
  act.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &act, &old), 0);
  std::size_t written = 9;
  int error = 0;
  Thread writer([&] {
    written = std::fwrite("x", 1, 1, out);
    error = errno;
  });
  EXPECT_TRUE(writer.falls_asleep());
  ::pthread_kill(writer.handle(), SIGUSR1);
  EXPECT_TRUE(writer.ends());
  EXPECT_EQ(written, 0u);
  EXPECT_EQ(error, EINTR);
  EXPECT_NE(std::ferror(out), 0);
  pair.close_far();  // and who still writes fails
  writer.join();
  std::fclose(out);
  ::sigaction(SIGUSR1, &old, nullptr);
}

TEST(Stdio, ClosedWithWhatCannotBeWrittenAStreamLosesThatAndNothingElse) {
  Pair pair;
  FILE* out = ::fdopen(::dup(pair.near), "w");
  ASSERT_NE(out, nullptr);
  ASSERT_EQ(::fcntl(pair.near, F_SETFL, O_NONBLOCK), 0);
  const std::size_t filled = fill(pair.near);
  ASSERT_EQ(std::fputs("lost", out), 1);
  EXPECT_EQ(std::fclose(out), EOF);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(get(pair.far, filled), std::string(filled, 'f'));
  EXPECT_EQ(poll_one(pair.far, POLLIN, 50), 0) << "nothing comes behind it";
  EXPECT_TRUE(silent(pair.far));
  ASSERT_EQ(::fcntl(pair.near, F_SETFL, 0), 0);
  pair.talk();
}

// --- processes ---------------------------------------------------------------------------------

TEST(Processes, ParentAndChildShareAConnection) {
  Peer peer([](int fd) { return echo(fd); });
  const int fd = peer.fd;
  EXPECT_EQ(result_of(child([&] {
              put(fd, "from the child");
              return get(fd, 14) == "from the child" ? 0 : 1;
            })),
            0);
  put(fd, "from the parent");
  EXPECT_EQ(get(fd, 15), "from the parent");
  const pid_t other = child([&] {
    for (int i = 0; i < 200; ++i) {
      put(fd, "c");
      ::usleep(10);
    }
    return 0;
  });
  for (int i = 0; i < 200; ++i) put(fd, "p");
  const std::string back = get(fd, 400);
  EXPECT_EQ(std::count(back.begin(), back.end(), 'c'), 200);
  EXPECT_EQ(std::count(back.begin(), back.end(), 'p'), 200);
  EXPECT_EQ(result_of(other), 0);
  EXPECT_TRUE(by_pipe(fd));
}

// What parent and child count for their later children must not be the same.
TEST(Processes, EachWithChildrenOfItsOwnKeepsItsConnectionsApart) {
  Pair before;
  int to_parent[2], to_child[2];
  ASSERT_EQ(::pipe(to_parent), 0);
  ASSERT_EQ(::pipe(to_child), 0);
  auto helper = [] {
    return child(
        [] {
          ::pause();
          return 0;
        },
        3);
  };
  char byte = 0;
  const pid_t other = child([&] {
    Pair own(false);
    const pid_t pid = helper();
    if (::write(to_parent[1], "1", 1) != 1 || ::read(to_child[0], &byte, 1) != 1) return 1;
    own.talk(40);
    if (::write(to_parent[1], "2", 1) != 1 || ::read(to_child[0], &byte, 1) != 1) return 2;
    own.talk(40);
    ::kill(pid, SIGKILL);
    (void)result_of(pid);
    return ::testing::Test::HasFailure() ? 3 : 0;
  });
  ASSERT_EQ(::read(to_parent[0], &byte, 1), 1);
  Pair own(false);
  const pid_t pid = helper();
  ASSERT_EQ(::write(to_child[1], "1", 1), 1);
  ASSERT_EQ(::read(to_parent[0], &byte, 1), 1);
  own.talk(40);
  ASSERT_EQ(::write(to_child[1], "2", 1), 1);
  EXPECT_EQ(result_of(other), 0);
  ::kill(pid, SIGKILL);
  (void)result_of(pid);
  for (const int fd : {to_parent[0], to_parent[1], to_child[0], to_child[1]}) ::close(fd);
}

TEST(Processes, MayHaveThreadsWithSmallStacks) {
  for (std::size_t kilobytes = 16; kilobytes <= 64; kilobytes *= 2) {
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ASSERT_EQ(::pthread_attr_setstacksize(&attributes, kilobytes * 1024), 0);
    pthread_t thread;
    auto run = [](void*) -> void* { return nullptr; };
    EXPECT_EQ(::pthread_create(&thread, &attributes, run, nullptr), 0) << kilobytes;
    ::pthread_join(thread, nullptr);
    ::pthread_attr_destroy(&attributes);
  }
}

TEST(Processes, OfTwoAsleepOnOneConnectionEachWakes) {
  for (const bool polls : {false, true}) {
    Pair pair;
    auto wait = [&] {
      char byte;
      if (polls && poll_one(pair.far, POLLIN, -1) != POLLIN) return 1;
      return ::read(pair.far, &byte, 1) == 1 ? 0 : 2;
    };
    const std::atomic<pid_t> one{child(wait, 10)};
    EXPECT_TRUE(sleeps(one));
    const std::atomic<pid_t> two{child(wait, 10)};
    EXPECT_TRUE(sleeps(two));
    put(pair.near, "x");
    ::usleep(5000);
    put(pair.near, "y");
    EXPECT_EQ(result_of(one), 0);
    EXPECT_EQ(result_of(two), 0);
    EXPECT_TRUE(by_pipe(pair.near));
  }
}

/// Bytes to read, by a set that holds the only socket.
bool tells(int set, int timeout_ms) {
  epoll_event event{};
  return ::epoll_wait(set, &event, 1, timeout_ms) == 1 && event.events == EPOLLIN && event.data.u64 == 7;
}
int set_of(int fd) {
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{EPOLLIN, {.u64 = 7}};
  EXPECT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
  return set;
}

TEST(Processes, OfTwoAsleepInOneSetEachIsTold) {
  for (const bool first_is_child : {false, true}) {
    Peer peer([](int fd) { return echo(fd); });
    const int set = set_of(peer.fd);
    auto wait = [&] { return tells(set, 5000) ? 0 : 1; };
    const std::atomic<pid_t> one{child(wait, 10)};
    EXPECT_TRUE(sleeps(one));
    const std::atomic<pid_t> two{first_is_child ? child(wait, 10) : 0};
    if (first_is_child) {
      EXPECT_TRUE(sleeps(two));
    }
    Thread here([&] { EXPECT_TRUE(first_is_child || tells(set, 5000)); });
    EXPECT_TRUE(first_is_child || here.falls_asleep());
    ::usleep(20'000);
    const auto start = std::chrono::steady_clock::now();
    put(peer.fd, "x");
    EXPECT_EQ(result_of(one), 0);
    if (first_is_child) {
      EXPECT_EQ(result_of(two), 0);
    }
    here.join();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
    EXPECT_EQ(get(peer.fd, 1), "x");
    put(peer.fd, "back");
    EXPECT_EQ(get(peer.fd, 4), "back");
    ::close(set);
  }
}

TEST(Processes, ASetOfTheParentGoesOnInTheParentAlone) {
  Peer peer([](int fd) { return echo(fd); });
  const int set = set_of(peer.fd);
  int end[2];
  ASSERT_EQ(::pipe(end), 0);
  const pid_t bystander = child([&] {
    ::close(end[1]);
    char byte;
    return ::read(end[0], &byte, 1) == 0 ? 0 : 1;
  });
  ::close(end[0]);
  for (int i = 0; i < 50; ++i) {
    put(peer.fd, "x");
    EXPECT_TRUE(tells(set, 1000));
    EXPECT_EQ(get(peer.fd, 1), "x");
    EXPECT_FALSE(tells(set, 0));
  }
  EXPECT_TRUE(by_pipe(peer.fd));
  ::close(end[1]);
  EXPECT_EQ(result_of(bystander), 0);
  ::close(set);
}

TEST(Processes, WhatOneHasMovedTheOthersSetTellsOf) {
  for (const bool forked_with_set : {false, true}) {
    Peer peer([](int fd) { return echo(fd); }, false);
    int orders[2], done[2];
    ASSERT_EQ(::pipe(orders) | ::pipe(done), 0);
    int set = forked_with_set ? set_of(peer.fd) : -1;
    const pid_t mover = child([&] {
      char byte = 'x';
      ping(peer.fd, 40);
      if (!by_pipe(peer.fd)) return 1;
      (void)!::write(done[1], &byte, 1);
      (void)!::read(orders[0], &byte, 1);
      put(peer.fd, "abc");
      if (get(peer.fd, 1) != "a") return 2;
      (void)!::write(done[1], &byte, 1);
      (void)!::read(orders[0], &byte, 1);
      return 0;
    });
    if (!forked_with_set) set = set_of(peer.fd);
    char byte;
    ASSERT_EQ(::read(done[0], &byte, 1), 1);
    EXPECT_FALSE(tells(set, 0)) << "of what the other one has read";
    ASSERT_EQ(::write(orders[1], "x", 1), 1);
    ASSERT_EQ(::read(done[0], &byte, 1), 1);
    EXPECT_TRUE(tells(set, 1000));
    int left = -1;
    EXPECT_TRUE(comes_true([&] { return ::ioctl(peer.fd, FIONREAD, &left) == 0 && left == 2; }));
    EXPECT_EQ(get(peer.fd, 1), "b");
    EXPECT_TRUE(tells(set, 1000));
    EXPECT_EQ(get(peer.fd, 1), "c");
    EXPECT_FALSE(tells(set, 0));
    ASSERT_EQ(::write(orders[1], "x", 1), 1);
    EXPECT_EQ(result_of(mover), 0);
    EXPECT_TRUE(by_pipe(peer.fd));
    for (const int fd : {orders[0], orders[1], done[0], done[1], set}) ::close(fd);
  }
}

TEST(Processes, TheEndComesWhenTheLastOfThemHasClosed) {
  Pair pair;
  const int near = pair.near;
  int go[2];
  ASSERT_EQ(::pipe(go), 0);
  const pid_t pid = child([&] {
    char byte;
    (void)!::read(go[0], &byte, 1);
    put(near, "late");
    return 0;
  });
  pair.close_near();
  EXPECT_TRUE(silent(pair.far));
  ASSERT_EQ(::write(go[1], "x", 1), 1);
  EXPECT_EQ(get(pair.far, 4), "late");
  EXPECT_TRUE(ends(pair.far));
  EXPECT_EQ(result_of(pid), 0);
  ::close(go[0]);
  ::close(go[1]);
}

TEST(Processes, AnOfferThatIsTakenButNeverUsedIsGivenUp) {
  Pair pair(false);
  char byte = 0;
  Thread reader([&] { EXPECT_EQ(::read(pair.near, &byte, 1), 1); });  // in the way of every move
  EXPECT_TRUE(reader.falls_asleep());
  for (int i = 0; i < 10'000; ++i) {
    put(pair.near, "there");
    ASSERT_EQ(get(pair.far, 5), "there");
  }
  const Way way = way_of(pair.far);
  EXPECT_FALSE(way.sends_by_pipe || way.receives_by_pipe);
  for (const int memfd : pipes()) {
    PipePage* page = page_of(memfd);
    EXPECT_NE(page->ends[1].face.words[socket_face::kState].load() & socket_face::kGone, 0u);
    ::munmap(page, sizeof *page);
  }
  put(pair.far, "x");
  reader.join();
  EXPECT_EQ(byte, 'x');
  pair.talk();
}

TEST(Processes, OneThatHasMovedItMayCloseWhileAnotherHasYetToFollow) {
  Peer peer(
      [](int fd) {
        const pid_t first = child([&] {
          char buffer[1000];
          for (int i = 0; i < 50; ++i) {
            if (::recv(fd, buffer, sizeof buffer, MSG_WAITALL) != 1000) return 1;
            if (::write(fd, buffer, sizeof buffer) != 1000) return 2;
          }
          ::close(fd);
          return 0;
        });
        if (const int result = result_of(first); result != 0) return result;
        return echo(fd);
      },
      false);
  ping(peer.fd, 50);
  EXPECT_TRUE(by_pipe(peer.fd));
  ::usleep(20'000);  // whoever reads there sleeps
  ping(peer.fd, 50);
  EXPECT_TRUE(by_pipe(peer.fd));
}

TEST(Processes, ADuplicatedDescriptorIsOneHolderToAChild) {
  Pair pair;
  const int copy = ::dup(pair.far);
  EXPECT_EQ(result_of(child([&] {
              ::close(copy);
              pair.close_far();
              return 0;
            })),
            0);
  ::close(copy);
  put(pair.near, "unread");
  pair.close_far();
  char byte;
  EXPECT_EQ(::read(pair.near, &byte, 1), -1);
  EXPECT_EQ(errno, ECONNRESET);
  int closed = 0;
  for (const int memfd : pipes()) {
    PipePage* page = page_of(memfd);
    for (const auto& end : page->ends) {
      if ((end.face.words[socket_face::kState].load() & socket_face::kClosed) != 0) ++closed;
    }
    ::munmap(page, sizeof *page);
  }
  EXPECT_EQ(closed, preloaded() ? 1 : 0);
}

TEST(Processes, AServerHandsConnectionsToChildren) {
  for (const bool moved_before : {false, true}) {
    const int listening = listener();
    const pid_t server = child([&] {
      const int fd = ::accept(listening, nullptr, nullptr);
      char buffer[1000];
      for (int i = 0; moved_before && i < 50; ++i) {
        if (::recv(fd, buffer, sizeof buffer, MSG_WAITALL) != 1000) return 1;
        if (::write(fd, buffer, sizeof buffer) != 1000) return 2;
      }
      const pid_t pid = child([&] { return echo(fd); });
      ::close(fd);
      return result_of(pid);
    });
    const int fd = connect_to(port_of(listening));
    ping(fd, 50);
    ping(fd, 100);
    EXPECT_TRUE(by_pipe(fd)) << moved_before;
    ::close(fd);
    EXPECT_EQ(result_of(server), 0);
    ::close(listening);
  }
}

TEST(Processes, AnyOfSeveralMayAccept) {
  for (const bool each_listens : {false, true}) {
    const int listening = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(set(listening, SOL_SOCKET, SO_REUSEPORT, 1), 0);
    sockaddr_in name = loopback(0);
    ASSERT_EQ(::bind(listening, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
    name = name_of(listening, false);
    ASSERT_EQ(::listen(listening, 20), 0);
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    std::vector<pid_t> servers;
    for (int i = 0; i < 3; ++i) {
      servers.push_back(child([&] {
        int own = listening;
        if (each_listens) {
          own = ::socket(AF_INET, SOCK_STREAM, 0);
          set(own, SOL_SOCKET, SO_REUSEPORT, 1);
          if (::bind(own, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) return 1;
          if (::listen(own, 20) != 0) return 2;
          ::close(listening);
        }
        (void)!::write(ready[1], "x", 1);
        for (;;) {
          const int fd = ::accept(own, nullptr, nullptr);
          if (const int code = echo(fd); code != 0) return code;
          ::close(fd);
        }
      }));
    }
    char byte;
    for (int i = 0; i < 3; ++i) ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    if (each_listens) ::close(listening);  // nobody accepts there
    for (int i = 0; i < 9; ++i) {
      const int fd = connect_to(ntohs(name.sin_port));
      ASSERT_GE(fd, 0);
      ping(fd, 50);
      EXPECT_TRUE(by_pipe(fd));
      ::close(fd);
    }
    if (!each_listens) ::close(listening);
    for (const pid_t pid : servers) {
      ::kill(pid, SIGTERM);
      EXPECT_EQ(result_of(pid), -SIGTERM);
    }
    ::close(ready[0]);
    ::close(ready[1]);
  }
}

char* const* environment_without_library() {
  static std::vector<char*> list;
  list.clear();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "LD_PRELOAD=", 11) != 0) list.push_back(*entry);
  }
  list.push_back(nullptr);
  return list.data();
}

int onto_standard(int fd) {
  ::dup2(fd, STDIN_FILENO);
  ::dup2(fd, STDOUT_FILENO);
  ::close(fd);
  return 0;
}

TEST(Exec, OfAProgramThatLoadsTheLibraryGoesOn) {
  Peer peer([](int fd) {
    ::setenv(kEchoOn, std::to_string(fd).c_str(), 1);
    ::execl("/proc/self/exe", "echo", nullptr);
    return 1;
  });
  ping(peer.fd, 100);
  EXPECT_TRUE(by_pipe(peer.fd));
}

TEST(Exec, WithADuplicateThatItClosesItGoesOn) {
  Peer peer([](int fd) {
    const int copy = ::dup(fd);
    ::setenv(kEchoOn, std::to_string(fd).c_str(), 1);
    ::setenv(kClose, std::to_string(copy).c_str(), 1);
    ::execl("/proc/self/exe", "echo", nullptr);
    return 1;
  });
  ping(peer.fd, 50);
  ::usleep(20'000);
  ping(peer.fd, 50);
  EXPECT_TRUE(by_pipe(peer.fd));
}

TEST(Exec, WithTheSocketAsStandardStreamsItGoesOnByTcp) {
  Peer peer([](int fd) {
    onto_standard(fd);
    ::execl("/bin/cat", "cat", nullptr);
    return 1;
  });
  ping(peer.fd, 100);
  EXPECT_TRUE(by_tcp(peer.fd));
}

TEST(Exec, OfAProgramThatReadsByStreamsGoesOn) {
  Peer peer([](int fd) {
    onto_standard(fd);
    ::execlp("sed", "sed", "-u", "s/^/got /", nullptr);
    return 1;
  });
  for (int i = 0; i < 50; ++i) {
    put(peer.fd, "line " + std::to_string(1000 + i) + "\n");
    ASSERT_EQ(get(peer.fd, 14), "got line " + std::to_string(1000 + i) + "\n");
  }
}

TEST(Exec, OfAProgramWithoutTheLibraryGoesOnByTcp) {
  Peer peer([](int fd) {
    onto_standard(fd);
    char name[] = "cat";
    char* const arguments[] = {name, nullptr};
    ::execve("/bin/cat", arguments, environment_without_library());
    return 1;
  });
  put(peer.fd, "under way");  // may still lie in the pipe
  EXPECT_EQ(get(peer.fd, 9), "under way");
  ping(peer.fd, 100);
  EXPECT_TRUE(by_tcp(peer.fd));
}

/// Takes all from this process that would let it do the other end's part in going back to TCP.
void give_up_privileges() {
  struct {
    std::uint32_t version = _LINUX_CAPABILITY_VERSION_3;
    int pid = 0;
  } head;
  std::uint32_t none[6] = {};
  ::syscall(SYS_capset, &head, none);
}

TEST(Exec, WhatHasNotBeenReadComesThoughItsSenderEnds) {
  enum class How { kExit, kClosed, kExec, kForked };
  for (const How how : {How::kExit, How::kClosed, How::kExec, How::kForked}) {
    int sent[2], counted[2];
    ASSERT_EQ(::pipe(sent) | ::pipe(counted), 0);
    Peer peer([&](int fd) {
      ::prctl(PR_SET_DUMPABLE, 0);
      EXPECT_EQ(set(fd, SOL_SOCKET, SO_SNDBUF, 16384), 0);
      std::string block(10'000, 'x');
      std::uint64_t bytes = 0;
      for (ssize_t n; (n = ::send(fd, block.data(), block.size(), MSG_DONTWAIT)) > 0;)
        bytes += static_cast<std::uint64_t>(n);
      (void)!::write(sent[1], &bytes, sizeof bytes);
      for (int i = 0; i < 500 && preloaded() && !by_tcp(fd); ++i) {
        pollfd p{fd, POLLIN, 0};
        ::poll(&p, 1, 10);
      }
      if (how == How::kClosed) ::close(fd);
      if (how == How::kForked) {
        const pid_t pid = child([&] {
          ::send(fd, "last", 4, 0);
          return 0;
        });
        ::usleep(100'000);
        return result_of(pid);
      }
      if (how == How::kExec) ::execl("/bin/true", "true", nullptr);
      return 0;
    });
    std::uint64_t bytes = 0;
    ASSERT_EQ(::read(sent[0], &bytes, sizeof bytes), static_cast<ssize_t>(sizeof bytes));
    const pid_t counter = child([&] {
      give_up_privileges();
      ::dup2(peer.fd, STDIN_FILENO);
      ::dup2(counted[1], STDOUT_FILENO);
      ::unsetenv("LD_PRELOAD");
      ::execl("/bin/sh", "sh", "-c", "sleep 0.3; wc -c", nullptr);
      return 1;
    });
    peer.close();
    ::close(counted[1]);
    char text[32] = {};
    EXPECT_GT(::read(counted[0], text, sizeof text - 1), 0);
    EXPECT_EQ(std::strtoull(text, nullptr, 10), bytes + (how == How::kForked ? 4 : 0))
        << static_cast<int>(how);
    EXPECT_EQ(result_of(counter), 0);
    for (const int fd : {sent[0], sent[1], counted[0]}) ::close(fd);
  }
}

// The other end has come into the pipe and sent nothing there, not even a doorbell: there is nothing to wait for.
TEST(Exec, AfterAResetByWhoOnlyReadDoesNotWait) {
  constexpr int kMessages = 18;  // few enough that it has no room to ring for
  const int listening = listener();
  const pid_t reader = child([&] {
    const int fd = ::accept(listening, nullptr, nullptr);
    for (int i = 0; i < kMessages; ++i) {
      if (get(fd, 1) != "x") return 1;
    }
    ::usleep(50'000);
    const linger at_once{1, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    return ::close(fd);
  });
  const int fd = connect_to(port_of(listening));
  ::close(listening);
  for (int i = 0; i < kMessages; ++i) {
    put(fd, "x");
    ::usleep(1000);
  }
  EXPECT_TRUE(!preloaded() || (way_of(fd).sends_by_pipe && !way_of(fd).receives_by_pipe));
  EXPECT_EQ(result_of(reader), 0);
  char byte;
  EXPECT_EQ(::read(fd, &byte, 1), -1);
  EXPECT_EQ(errno, ECONNRESET);
  ::fcntl(fd, F_SETFD, 0);
  const pid_t other = child(
      [] {
        char name[] = "true";
        char* const arguments[] = {name, nullptr};
        return ::execve("/bin/true", arguments, environment_without_library());
      },
      5);
  EXPECT_EQ(result_of(other), 0);
  ::close(fd);
}

TEST(Exec, ClosesWhatIsToBeClosed) {
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  Peer peer([&](int fd) {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    ::dup2(hold[0], STDIN_FILENO);
    ::close(hold[0]);
    ::close(hold[1]);
    ::execl("/bin/cat", "cat", nullptr);
    return 1;
  });
  EXPECT_TRUE(ends(peer.fd));
  EXPECT_EQ(::waitpid(peer.pid, nullptr, WNOHANG), 0) << "the program runs";
  ::close(hold[0]);
  ::close(hold[1]);
}

TEST(Exec, ThatFailsChangesNothing) {
  Peer peer([](int fd) {
    ::execl("/no/such/program", "program", nullptr);
    return errno == ENOENT ? echo(fd) : 1;
  });
  ping(peer.fd, 50);
}

TEST(Exec, AfterVforkTheChildHasTheSocketAndTheParentKeepsIt) {
  Peer peer([](int fd) {
    const pid_t pid = ::vfork();
    if (pid == 0) {
      ::dup2(fd, STDOUT_FILENO);
      ::close(fd);
      ::execl("/bin/echo", "echo", "hello", nullptr);
      ::_exit(1);
    }
    if (result_of(pid) != 0) return 1;
    return echo(fd);
  });
  EXPECT_EQ(get(peer.fd, 6), "hello\n");
  ping(peer.fd, 50);
}

TEST(Spawn, GivesTheProgramTheSocket) {
  Peer peer([](int fd) {
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, fd, STDOUT_FILENO);
    char name[] = "echo", text[] = "hello";
    char* const arguments[] = {name, text, nullptr};
    pid_t pid = -1;
    for (int searched = 0; searched < 2; ++searched) {
      const int rc = searched != 0
                         ? ::posix_spawnp(&pid, "echo", &actions, nullptr, arguments, environ)
                         : ::posix_spawn(&pid, "/bin/echo", &actions, nullptr, arguments, environ);
      if (rc != 0 || result_of(pid) != 0) return 1;
    }
    ::posix_spawn_file_actions_destroy(&actions);
    return echo(fd);
  });
  EXPECT_EQ(get(peer.fd, 12), "hello\nhello\n");
  ping(peer.fd, 50);
  EXPECT_TRUE(by_tcp(peer.fd));
}

TEST(Spawn, ShellCommandsHaveTheSocketToo) {
  Peer peer([](int fd) {
    const std::string command = "echo hello >&" + std::to_string(fd);
    if (::system(command.c_str()) != 0) return 1;
    FILE* out = ::popen(("cat >&" + std::to_string(fd)).c_str(), "w");
    if (out == nullptr || std::fputs("popen\n", out) < 0 || ::pclose(out) != 0) return 2;
    return echo(fd);
  });
  EXPECT_EQ(get(peer.fd, 12), "hello\npopen\n");
  ping(peer.fd, 50);
}

// --- passing descriptors -----------------------------------------------------------------------

bool pass(int through, int fd) {
  char byte = 'p';
  iovec io{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  return ::sendmsg(through, &message, 0) == 1;
}

int take(int through, int flags) {
  char byte;
  iovec io{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(through, &message, flags) != 1) return -1;
  const cmsghdr* c = CMSG_FIRSTHDR(&message);
  if (c == nullptr || c->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(c), sizeof fd);
  return fd;
}

TEST(Passing, AMovedConnectionGoesOnAtTheReceiver) {
  const int listening = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  ASSERT_EQ(::bind(listening, reinterpret_cast<const sockaddr*>(&name), sizeof(sa_family_t)), 0);
  ASSERT_EQ(::listen(listening, 1), 0);
  socklen_t size = sizeof name;
  ASSERT_EQ(::getsockname(listening, reinterpret_cast<sockaddr*>(&name), &size), 0);
  const pid_t receiver = child([&] {
    const int through = ::accept(listening, nullptr, nullptr);
    const int fd = take(through);
    return fd < 0 ? 1 : echo(fd);
  });
  Peer peer([&](int fd) {
    const int through = ::socket(AF_UNIX, SOCK_STREAM, 0);
    if (::connect(through, reinterpret_cast<const sockaddr*>(&name), size) != 0) return 1;
    return pass(through, fd) ? 0 : 2;
  });
  put(peer.fd, "under way");
  EXPECT_EQ(get(peer.fd, 9), "under way");
  ping(peer.fd, 100);
  EXPECT_TRUE(by_pipe(peer.fd));
  peer.close();
  EXPECT_EQ(result_of(receiver), 0);
  ::close(listening);
}

/// A child that takes a connection from `two[1]` and echoes on it: by exec if it is given an environment.
pid_t receiver_of(const int (&two)[2], char* const* environment = nullptr) {
  return child([&] {
    ::close(two[0]);
    if (environment == nullptr) {
      const int fd = take(two[1]);
      return fd < 0 ? 1 : echo(fd);
    }
    std::vector<char*> list;
    for (char* const* entry = environment; *entry != nullptr; ++entry) list.push_back(*entry);
    std::string from = std::string(kTakeFrom) + "=" + std::to_string(two[1]);
    list.push_back(from.data());
    list.push_back(nullptr);
    ::fcntl(two[1], F_SETFD, 0);
    char* const arguments[] = {const_cast<char*>("echo"), nullptr};
    ::execve("/proc/self/exe", arguments, list.data());
    return 1;
  });
}

std::vector<char*> environment_with(char* more) {
  std::vector<char*> list;
  for (char** entry = environ; *entry != nullptr; ++entry) list.push_back(*entry);
  list.push_back(more);
  list.push_back(nullptr);
  return list;
}

TEST(Passing, ByASocketPairAMovedConnectionGoesOnByTcp) {
  int two[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, two), 0);
  const pid_t receiver = receiver_of(two);
  Peer peer([&](int fd) { return pass(two[0], fd) ? 0 : 2; });
  ping(peer.fd, 100);
  EXPECT_TRUE(by_tcp(peer.fd));
  peer.close();
  EXPECT_EQ(result_of(receiver), 0);
  ::close(two[0]);
  ::close(two[1]);
}

TEST(Passing, BeforeItHasMovedAConnectionMovesAtTheReceiver) {
  for (const bool executed : {false, true}) {
    int two[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, two), 0);
    const pid_t receiver = receiver_of(two, executed ? environ : nullptr);
    Pair pair(false);
    ASSERT_TRUE(pass(two[0], pair.far));
    pair.close_far();
    ping(pair.near, 100);
    EXPECT_TRUE(by_pipe(pair.near));
    pair.close_near();
    EXPECT_EQ(result_of(receiver), 0);
    ::close(two[0]);
    ::close(two[1]);
  }
}

TEST(Passing, SenderAndReceiverMayBothGoOnWithIt) {
  int two[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, two), 0);
  const pid_t receiver = child([&] {
    const int fd = take(two[1]);
    char buffer[1000];
    for (int i = 0; i < 60; ++i) {
      if (::recv(fd, buffer, 1000, MSG_WAITALL) != 1000 || ::write(fd, buffer, 1000) != 1000) return 1;
    }
    ::close(fd);
    return ::write(two[1], "x", 1) == 1 ? 0 : 2;
  });
  Pair pair(false);
  pair.talk(2);
  ASSERT_TRUE(pass(two[0], pair.far));
  ping(pair.near, 60);
  EXPECT_TRUE(by_pipe(pair.near));
  EXPECT_EQ(get(two[0], 1), "x");
  pair.talk();
  EXPECT_TRUE(by_pipe(pair.near));
  EXPECT_EQ(result_of(receiver), 0);
  ::close(two[0]);
  ::close(two[1]);
}

TEST(Passing, TheEndThatHasConnectedMovesToo) {
  int two[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, two), 0);
  const pid_t receiver = receiver_of(two);
  Pair pair(false);
  pair.talk(1);  // an offer that has been taken up belongs to the process that made it
  ASSERT_TRUE(pass(two[0], pair.near));
  pair.close_near();
  ping(pair.far, 100);
  EXPECT_TRUE(by_pipe(pair.far));
  pair.close_far();
  EXPECT_EQ(result_of(receiver), 0);
  ::close(two[0]);
  ::close(two[1]);
}

TEST(Passing, ToWhoDoesNotKnowOfItAConnectionStaysOnTcp) {
  static char disabled[] = "CLAN_DISABLE=1";
  std::vector<char*> disabling = environment_with(disabled);
  for (const bool disables : {true, false}) {
    char* const* environment = disables ? disabling.data() : environment_without_library();
    for (const bool sender_stays : {false, true}) {
      int two[2];
      ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, two), 0);
      const pid_t receiver = receiver_of(two, environment);
      Pair pair(false);
      ASSERT_TRUE(pass(two[0], pair.far));
      if (!sender_stays) pair.close_far();
      ping(pair.near, 100);
      EXPECT_TRUE(by_tcp(pair.near));
      pair.close_near();
      EXPECT_EQ(result_of(receiver), 0);
      ::close(two[0]);
      ::close(two[1]);
    }
  }
}

TEST(Passing, WhatWasOnlyPeekedAtStaysOnTcp) {
  int two[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, two), 0);
  Pair pair(false);
  ASSERT_TRUE(pass(two[0], pair.far));
  const int peeked = take(two[1], MSG_PEEK), taken = take(two[1]);
  ASSERT_TRUE(peeked >= 0 && taken >= 0);
  pair.talk();
  for (const int fd : {peeked, taken}) {
    put(pair.near, "abc");
    EXPECT_EQ(get(fd, 3), "abc");
  }
  EXPECT_TRUE(by_tcp(pair.near));
  for (const int fd : {peeked, taken, two[0], two[1]}) ::close(fd);
}

TEST(Passing, AMovedConnectionGoesBackForAReceiverThatIsDisabled) {
  const int listening = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  ASSERT_EQ(::bind(listening, reinterpret_cast<const sockaddr*>(&name), sizeof(sa_family_t)), 0);
  ASSERT_EQ(::listen(listening, 1), 0);
  socklen_t size = sizeof name;
  ASSERT_EQ(::getsockname(listening, reinterpret_cast<sockaddr*>(&name), &size), 0);
  const int through = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  static char disabled[] = "CLAN_DISABLE=1";
  std::vector<char*> disabling = environment_with(disabled);
  const int sides[2] = {listening, through};
  // Who executes it connects, and so the kernel says.
  const pid_t receiver = child([&] {
    if (::connect(through, reinterpret_cast<const sockaddr*>(&name), size) != 0) return 3;
    std::string from = std::string(kTakeFrom) + "=" + std::to_string(sides[1]);
    disabling.insert(disabling.begin(), from.data());
    ::fcntl(through, F_SETFD, 0);
    char* const arguments[] = {const_cast<char*>("echo"), nullptr};
    ::execve("/proc/self/exe", arguments, disabling.data());
    return 1;
  });
  const int accepted = ::accept(listening, nullptr, nullptr);
  Pair pair;
  put(pair.near, "under way");
  ASSERT_TRUE(pass(accepted, pair.far));
  pair.close_far();
  EXPECT_EQ(get(pair.near, 9), "under way");
  ping(pair.near, 100);
  EXPECT_TRUE(by_tcp(pair.near));
  pair.close_near();
  EXPECT_EQ(result_of(receiver), 0);
  for (const int fd : {listening, through, accepted}) ::close(fd);
}

TEST(Passing, ManyConnectionsOneAfterTheOtherAllMove) {
  int two[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, two), 0);
  const pid_t receiver = child([&] {
    ::close(two[0]);
    for (int fd; (fd = take(two[1])) >= 0; ::close(fd)) {
      if (const int result = echo(fd); result != 0) return result;
    }
    return 0;
  });
  const int listening = listener();
  int moved = 0;
  constexpr int kMany = 700;
  for (int i = 0; i < kMany; ++i) {
    const int connected = connect_to(port_of(listening));
    Pair pair(connected, ::accept(listening, nullptr, nullptr));
    ASSERT_TRUE(pass(two[0], pair.far));
    pair.close_far();
    ping(pair.near, 20);
    if (by_pipe(pair.near)) ++moved;
  }
  EXPECT_EQ(moved, kMany);
  ::close(two[0]);
  EXPECT_EQ(result_of(receiver), 0);
  ::close(two[1]);
  ::close(listening);
}

// --- sandboxes ---------------------------------------------------------------------------------

sock_fprog allow_all() {
  static sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  return {1, allow};
}

TEST(Sandbox, InOneConnectionsAreTcp) {
  using Enter = bool (*)();
  const std::pair<const char*, Enter> kWays[] = {
      {"prctl",
       [] {
         const sock_fprog program = allow_all();
         return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
       }},
      {"seccomp",
       [] {
         const sock_fprog program = allow_all();
         return ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
       }},
      {"a limit of file sizes",
       [] {
         const rlimit small{4096, 4096};
         return ::setrlimit(RLIMIT_FSIZE, &small) == 0;
       }},
  };
  for (const auto& [name, enter] : kWays) {
    SCOPED_TRACE(name);
    Peer peer([enter = enter](int fd) {
      ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
      if (!enter()) return 1;
      return echo(fd);
    });
    ping(peer.fd, 100);
    EXPECT_TRUE(by_tcp(peer.fd));
  }
}

/// Refuses one system call, and the program that is executed does not see it happen.
bool refuse(std::uint32_t number) {
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{4, filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(Sandbox, FromBeforeExecThatRefusesACallAPipeNeedsKeepsConnectionsOnTcp) {
  for (const std::uint32_t number : {SYS_sendmsg, SYS_recvmsg, SYS_recvfrom, SYS_ioctl}) {
    for (const bool accepts : {true, false}) {
      const int listening = listener();
      const pid_t pid = child([&] {
        ::fcntl(listening, F_SETFD, 0);
        ::setenv(accepts ? kAcceptOn : kConnectTo,
                 std::to_string(accepts ? listening : port_of(listening)).c_str(), 1);
        if (refuse(number)) ::execl("/proc/self/exe", "echo", nullptr);
        return 1;
      });
      const int fd = accepts ? connect_to(port_of(listening)) : ::accept(listening, nullptr, nullptr);
      ping(fd, 100);
      EXPECT_TRUE(by_tcp(fd));
      ::close(fd);
      ::close(listening);
      EXPECT_EQ(result_of(pid), 0) << number;
    }
  }
}

TEST(Sandbox, AConnectionMadeInOneDoesNotMove) {
  Peer peer(
      [](int fd) {
        ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        const sock_fprog program = allow_all();
        if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return 1;
        return echo(fd);
      },
      false);
  ping(peer.fd, 100);
  EXPECT_TRUE(by_tcp(peer.fd));
}

}  // namespace
}  // namespace clan::test
