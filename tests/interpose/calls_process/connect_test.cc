// Making and naming connections, and options of sockets.
#include <linux/tls.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/un.h>

#include <algorithm>
#include <chrono>

#include "helpers.h"

namespace clan::test {
namespace {

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

TEST(Options, PeekingOnFromWhereItEndedFallsBack) {
  Pair pair;
  put(pair.near, "ab");
  if (set(pair.far, SOL_SOCKET, SO_PEEK_OFF, 0) != 0) GTEST_SKIP() << "of TCP since Linux 6.9";
  put(pair.near, "cd");
  for (const char* const part : {"ab", "cd"}) {
    char in[2];
    ASSERT_EQ(::recv(pair.far, in, sizeof in, MSG_PEEK | MSG_WAITALL), 2);
    EXPECT_EQ(std::string(in, sizeof in), part);
  }
  EXPECT_EQ(get(pair.far, 4), "abcd");
  EXPECT_TRUE(by_tcp(pair.far));
}

/// What both ends encrypt and decrypt with; one key is enough here.
int set_key(int fd, int direction) {
  tls12_crypto_info_aes_gcm_128 key{};
  key.info.version = TLS_1_2_VERSION;
  key.info.cipher_type = TLS_CIPHER_AES_GCM_128;
  std::memcpy(key.key, "a key of the test", sizeof key.key);
  return ::setsockopt(fd, SOL_TLS, direction, &key, sizeof key);
}

TEST(Options, KernelTlsWorksAsWithoutTheLibrary) {
  bool has_tls = true;
  for (const bool moves : {true, false}) {
    Pair pair(moves);
    for (const int fd : {pair.near, pair.far}) {
      const int set_up = ::setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", sizeof "tls" - 1);
      has_tls = set_up == 0;
      EXPECT_TRUE(has_tls || errno == ENOENT) << std::strerror(errno);
    }
    for (const int fd : {pair.near, pair.far}) {
      for (const int direction : {TLS_TX, TLS_RX}) {
        EXPECT_TRUE(!has_tls || set_key(fd, direction) == 0) << std::strerror(errno);
      }
    }
    pair.talk(60);  // often enough for one that may move
    for (const int fd : {pair.near, pair.far}) EXPECT_TRUE(by_tcp(fd)) << moves;
  }
  if (!has_tls) GTEST_SKIP() << "this kernel has no TLS (the module tls): it stayed on TCP";
}

}  // namespace
}  // namespace clan::test
