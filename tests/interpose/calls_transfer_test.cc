// Calls that move bytes: each on a connection that has moved, with what the kernel would have done
// by itself expected of it. Run with the interposer preloaded, and without: both have to pass.
// preload/calls.def names the test of each call.
#include <time.h>
// It wants struct timespec.
#include <linux/errqueue.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#include <algorithm>
#include <csignal>

#include "connection.h"

// The names by which the headers of the C library call the same when _FORTIFY_SOURCE is set.
extern "C" {
ssize_t __read_chk(int fd, void* buffer, size_t n, size_t room);
ssize_t __recv_chk(int fd, void* buffer, size_t n, size_t room, int flags);
ssize_t __recvfrom_chk(int fd, void* buffer, size_t n, size_t room, int flags, sockaddr* from,
                       socklen_t* size);
int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t room);
int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask,
                size_t room);
}

namespace clan::test {
namespace {

const bool watched = Watchdog::start();

std::vector<iovec> buffers_of(std::vector<std::string>& parts) {
  std::vector<iovec> buffers;
  for (auto& part : parts) buffers.push_back({part.data(), part.size()});
  return buffers;
}

/// A file that has no name any more.
int file_of(std::string_view text) {
  const int fd = ::memfd_create("calls", MFD_CLOEXEC);
  EXPECT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::lseek(fd, 0, SEEK_SET);
  return fd;
}

std::string pattern(std::size_t n) {
  std::string text(n, 0);
  for (std::size_t i = 0; i < n; ++i) text[i] = static_cast<char>('a' + (i * 7 + i / 251) % 26);
  return text;
}

int set(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof value);
}

// --- read and write ----------------------------------------------------------------------------

TEST(Transfer, ReadAndItsKinGetWhatThereIsInOrder) {
  Pair pair;
  put(pair.near, "one two three four");
  char in[4] = {};
  ASSERT_EQ(::read(pair.far, in, 4), 4);
  EXPECT_EQ(std::string(in, 4), "one ");
  ASSERT_EQ(::recv(pair.far, in, 4, 0), 4);
  EXPECT_EQ(std::string(in, 4), "two ");
  sockaddr_in from{};
  socklen_t size = sizeof from;
  ASSERT_EQ(::recvfrom(pair.far, in, 4, 0, reinterpret_cast<sockaddr*>(&from), &size), 4);
  EXPECT_EQ(std::string(in, 4), "thre");
  EXPECT_EQ(size, 0u) << "TCP tells no address";
  std::vector<std::string> parts = {std::string(2, 0), "", std::string(100, 0)};
  const auto buffers = buffers_of(parts);
  ASSERT_EQ(::readv(pair.far, buffers.data(), 3), 6) << "less than there is room for";
  EXPECT_EQ(parts[0] + parts[2].substr(0, 4), "e four");
  EXPECT_EQ(::recv(pair.far, in, 0, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  pair.expect_carried(18, 0);
}

TEST(Transfer, WriteAndItsKinSendAllInOrder) {
  Pair pair;
  ASSERT_EQ(::write(pair.far, "one ", 4), 4);
  ASSERT_EQ(::send(pair.far, "two ", 4, 0), 4);
  // The address is ignored once a stream is connected.
  const sockaddr_in nowhere = loopback(9);
  ASSERT_EQ(::sendto(pair.far, "three ", 6, 0, reinterpret_cast<const sockaddr*>(&nowhere),
                     sizeof nowhere),
            6);
  std::vector<std::string> parts = {"fo", "", "ur"};
  const auto buffers = buffers_of(parts);
  ASSERT_EQ(::writev(pair.far, buffers.data(), 3), 4);
  EXPECT_EQ(::write(pair.far, "", 0), 0);
  EXPECT_EQ(get(pair.near, 18), "one two three four");
  EXPECT_TRUE(silent(pair.near));
  pair.expect_carried(0, 18);
}

TEST(Transfer, WrongVectorsFailAndMoveNothing) {
  Pair pair;
  put(pair.near, "x");
  std::vector<iovec> many(2000);
  EXPECT_EQ(::readv(pair.far, many.data(), 2000), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::writev(pair.near, many.data(), 2000), -1);
  EXPECT_EQ(errno, EINVAL);
  msghdr message{};
  message.msg_iov = many.data();
  message.msg_iovlen = 2000;
  EXPECT_EQ(::sendmsg(pair.near, &message, 0), -1);
  EXPECT_EQ(errno, EMSGSIZE);
  EXPECT_EQ(::recvmsg(pair.far, &message, 0), -1);
  EXPECT_EQ(errno, EMSGSIZE);
  EXPECT_EQ(get(pair.far, 1), "x");
}

TEST(Transfer, VectorsWithoutBytesMoveNoneAtOnce) {
  Pair pair;
  char byte = 'x';
  const iovec none{&byte, 0};
  EXPECT_EQ(::readv(pair.far, &none, 1), 0);
  EXPECT_EQ(::preadv2(pair.far, &none, 1, -1, 0), 0);
  ASSERT_EQ(::shutdown(pair.far, SHUT_WR), 0);
  EXPECT_EQ(::writev(pair.far, &none, 1), 0);
  EXPECT_EQ(::pwritev2(pair.far, &none, 1, -1, 0), 0);
}

TEST(Transfer, ANullBufferIsNotThereAndTakesNothing) {
  Pair pair;
  put(pair.near, "abc");
  char byte = 0;
  iovec vector[] = {{nullptr, 2}, {&byte, 1}};
  msghdr message{};
  message.msg_iov = vector;
  message.msg_iovlen = 2;
  void* volatile null = nullptr;  // compilers warn of one that they see
  EXPECT_EQ(::read(pair.far, null, 2), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(::recv(pair.far, null, 2, MSG_PEEK), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(::readv(pair.far, vector, 2), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(::recvmsg(pair.far, &message, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(get(pair.far, 3), "abc");
  pair.expect_carried(3, 0);
}

TEST(Transfer, AThousandBuffersAreOneVector) {
  Pair pair;
  std::vector<std::string> parts(1000), in(1000, std::string(3, 0));
  std::string all;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i] = std::to_string(100 + i % 900);
    all += parts[i];
  }
  ASSERT_EQ(::writev(pair.near, buffers_of(parts).data(), 1000), 3000);
  ASSERT_EQ(::readv(pair.far, buffers_of(in).data(), 1000), 3000);
  EXPECT_EQ(in, parts);
  pair.expect_carried(3000, 0);
}

TEST(Transfer, MoreThanThereIsRoomForGoesWhileItIsRead) {
  constexpr std::size_t kBytes = 8 << 20;
  const std::string all = pattern(kBytes);
  Peer peer([&](int fd) {
    for (std::size_t at = 0; at < all.size();) {
      const std::string part = get(fd, std::min<std::size_t>(100'000, all.size() - at));
      if (part.empty() || part != std::string_view(all).substr(at, part.size())) return 1;
      at += part.size();
    }
    return ::write(fd, "ok", 2) == 2 ? 0 : 2;
  });
  ASSERT_EQ(::write(peer.fd, all.data(), all.size()), static_cast<ssize_t>(all.size()));
  EXPECT_EQ(get(peer.fd, 2), "ok");
  EXPECT_TRUE(by_pipe(peer.fd));
}

TEST(Transfer, AFullConnectionTakesNoMoreWithoutWaiting) {
  Pair pair;
  const std::string block(50'000, 'f');
  std::size_t sent = 0;
  ssize_t n;
  while ((n = ::send(pair.near, block.data(), block.size(), MSG_DONTWAIT)) > 0) {
    sent += static_cast<std::size_t>(n);
    ASSERT_LT(sent, 200u << 20);
  }
  EXPECT_EQ(errno, EAGAIN);
  pollfd p{pair.near, POLLOUT, 0};
  EXPECT_EQ(::poll(&p, 1, 0), 0);
  EXPECT_EQ(get(pair.far, sent).size(), sent);
  EXPECT_EQ(::poll(&p, 1, 1000), 1);
  EXPECT_EQ(p.revents, POLLOUT);
  pair.expect_carried(sent, 0);
}

// --- sendmsg and recvmsg -----------------------------------------------------------------------

TEST(Message, ControlDataAndNamesComeBackEmpty) {
  Pair pair;
  std::vector<std::string> parts = {"head", "body"};
  auto buffers = buffers_of(parts);
  sockaddr_in name = loopback(9);
  msghdr out{};
  out.msg_name = &name;
  out.msg_namelen = sizeof name;
  out.msg_iov = buffers.data();
  out.msg_iovlen = 2;
  ASSERT_EQ(::sendmsg(pair.near, &out, 0), 8);
  char in[100], control[100];
  iovec io{in, sizeof in};
  msghdr message{};
  message.msg_name = &name;
  message.msg_namelen = sizeof name;
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  message.msg_flags = -1;
  ASSERT_EQ(::recvmsg(pair.far, &message, 0), 8);
  EXPECT_EQ(std::string(in, 8), "headbody");
  EXPECT_EQ(message.msg_namelen, 0u);
  EXPECT_EQ(message.msg_controllen, 0u);
  EXPECT_EQ(message.msg_flags & ~MSG_CMSG_CLOEXEC, 0);
  EXPECT_EQ(::recvmsg(pair.far, &message, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  pair.expect_carried(8, 0);
}

TEST(Message, ControlDataOfAWrongLengthIsRefused) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  char byte = 'x';
  iovec io{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  for (const std::size_t length : {std::size_t{0}, CMSG_LEN(0) - 1, std::size_t{1} << 40}) {
    head->cmsg_len = length;
    EXPECT_EQ(::sendmsg(ends[0], &message, 0), -1);
    EXPECT_EQ(errno, EINVAL);
  }
  for (const int fd : ends) ::close(fd);
}

struct Messages {
  std::vector<std::string> parts;
  std::vector<iovec> buffers;
  std::vector<mmsghdr> headers;
  explicit Messages(std::vector<std::string> texts)
      : parts(std::move(texts)), buffers(buffers_of(parts)) {
    headers.resize(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      headers[i].msg_hdr.msg_iov = &buffers[i];
      headers[i].msg_hdr.msg_iovlen = 1;
    }
  }
};

TEST(Message, ManySentInOneCallComeAsOneStream) {
  Pair pair;
  Messages out({"abc", "de", "fghi"});
  ASSERT_EQ(::sendmmsg(pair.near, out.headers.data(), 3, 0), 3);
  EXPECT_EQ(out.headers[0].msg_len, 3u);
  EXPECT_EQ(out.headers[1].msg_len, 2u);
  EXPECT_EQ(out.headers[2].msg_len, 4u);
  EXPECT_EQ(get(pair.far, 9), "abcdefghi");
  pair.expect_carried(9, 0);
}

TEST(Message, ManyAreReceivedEachWithWhatFits) {
  Pair pair;
  put(pair.near, "abcdefg");
  Messages in({"....", "....", "....", "...."});
  ASSERT_EQ(::recvmmsg(pair.far, in.headers.data(), 4, MSG_WAITFORONE, nullptr), 2);
  EXPECT_EQ(in.headers[0].msg_len, 4u);
  EXPECT_EQ(in.headers[1].msg_len, 3u);
  EXPECT_EQ(in.parts[0] + in.parts[1], "abcdefg.");
  EXPECT_EQ(::recvmmsg(pair.far, in.headers.data(), 4, MSG_DONTWAIT, nullptr), -1);
  EXPECT_EQ(errno, EAGAIN);
  pair.expect_carried(7, 0);
}

TEST(Message, OfManyNoMoreAreWaitedForWhenTheTimeIsOver) {
  Pair pair;
  Messages in({"....", "....", "...."});
  for (const long ns : {0L, 1L}) {
    put(pair.near, "abcdefgh");
    timespec limit{0, ns};
    ASSERT_EQ(::recvmmsg(pair.far, in.headers.data(), 3, 0, &limit), 1);
    EXPECT_EQ(limit.tv_sec, 0);
    EXPECT_EQ(limit.tv_nsec, 0);
    EXPECT_EQ(get(pair.far, 4), "efgh");
  }
  put(pair.near, "abcdef");
  timespec minute{60, 0};
  ASSERT_EQ(::recvmmsg(pair.far, in.headers.data(), 2, 0, &minute), 2);
  EXPECT_EQ(minute.tv_sec, 59);
  timespec wrong{0, 1'000'000'000};
  EXPECT_EQ(::recvmmsg(pair.far, in.headers.data(), 2, MSG_DONTWAIT, &wrong), -1);
  EXPECT_EQ(errno, EINVAL);
  pair.expect_carried(22, 0);
}

TEST(Message, AtTheEndOfTheStreamEveryMessageIsEmpty) {
  Pair pair;
  put(pair.near, "abc");
  pair.close_near();
  Messages in({"....", "....", "...."});
  ASSERT_EQ(::recvmmsg(pair.far, in.headers.data(), 3, 0, nullptr), 3);
  EXPECT_EQ(in.headers[0].msg_len, 3u);
  EXPECT_EQ(in.headers[1].msg_len, 0u);
  EXPECT_EQ(in.headers[2].msg_len, 0u);
}

TEST(Message, NothingIsSentBehindOneThatDidNotFit) {
  Pair pair;
  ASSERT_EQ(::fcntl(pair.near, F_SETFL, O_NONBLOCK), 0);
  Messages out({pattern(30 << 20), "tail"});
  ASSERT_EQ(::sendmmsg(pair.near, out.headers.data(), 2, 0), 1);
  const std::size_t sent = out.headers[0].msg_len;
  ASSERT_LT(sent, out.parts[0].size());
  EXPECT_TRUE(get(pair.far, sent) == out.parts[0].substr(0, sent));
  EXPECT_TRUE(silent(pair.far));
}

// --- preadv2 and positions ---------------------------------------------------------------------

TEST(Position, MinusOneIsNoPositionAndAnyOtherFails) {
  Pair pair;
  char text[] = "abcd", in[8];
  iovec out{text, 4}, io{in, sizeof in};
  ASSERT_EQ(::pwritev2(pair.near, &out, 1, -1, 0), 4);
  ASSERT_EQ(::preadv2(pair.far, &io, 1, -1, 0), 4);
  EXPECT_EQ(std::string(in, 4), "abcd");
  pair.expect_carried(4, 0);
  EXPECT_EQ(::preadv2(pair.far, &io, 1, 0, 0), -1);
  EXPECT_EQ(errno, ESPIPE);
  EXPECT_EQ(::pread(pair.far, in, 4, 0), -1);
  EXPECT_EQ(errno, ESPIPE);
  EXPECT_EQ(::pwrite(pair.near, in, 4, 0), -1);
  EXPECT_EQ(errno, ESPIPE);
  EXPECT_EQ(::lseek(pair.far, 0, SEEK_CUR), -1);
  EXPECT_EQ(errno, ESPIPE);
}

TEST(Position, PreadvWithNowaitDoesNotWait) {
  Pair pair;
  char in[8];
  iovec io{in, sizeof in};
  const ssize_t n = ::preadv2(pair.far, &io, 1, -1, RWF_NOWAIT);
  EXPECT_EQ(n, -1);
  EXPECT_EQ(errno, EAGAIN);
}

// --- flags -------------------------------------------------------------------------------------

TEST(Flags, PeekLeavesWhatItShows) {
  Pair pair;
  put(pair.near, "abcdef");
  char in[8] = {};
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(::recv(pair.far, in, 4, MSG_PEEK), 4);
    EXPECT_EQ(std::string(in, 4), "abcd");
  }
  put(pair.near, "gh");
  ASSERT_EQ(::recv(pair.far, in, 8, MSG_PEEK | MSG_WAITALL), 8);
  EXPECT_EQ(std::string(in, 8), "abcdefgh") << "also of the second write";
  EXPECT_EQ(get(pair.far, 8), "abcdefgh");
  EXPECT_EQ(::recv(pair.far, in, 8, MSG_PEEK | MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  pair.expect_carried(8, 0);
}

TEST(Flags, WaitallWaitsForAllOfIt) {
  Pair pair;
  char in[10] = {};
  ssize_t got = -2;
  put(pair.near, "abc");
  Thread reader([&] { got = ::recv(pair.far, in, 10, MSG_WAITALL); });
  EXPECT_TRUE(reader.falls_asleep());
  put(pair.near, "defg");
  EXPECT_TRUE(reader.falls_asleep());
  put(pair.near, "hijk");
  reader.join();
  EXPECT_EQ(got, 10);
  EXPECT_EQ(std::string(in, 10), "abcdefghij");
  EXPECT_EQ(get(pair.far, 1), "k");
  pair.expect_carried(11, 0);
}

TEST(Flags, WaitallIsContentWithLessAtTheEnd) {
  Pair pair;
  char in[10] = {};
  put(pair.near, "abc");
  ASSERT_EQ(::shutdown(pair.near, SHUT_WR), 0);
  EXPECT_EQ(::recv(pair.far, in, 10, MSG_WAITALL), 3);
  EXPECT_EQ(::recv(pair.far, in, 10, MSG_WAITALL), 0);
}

TEST(Flags, DontwaitDoesNotWaitOnABlockingSocket) {
  Pair pair;
  char in[4];
  EXPECT_EQ(::recv(pair.far, in, 4, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  put(pair.near, "ab");
  EXPECT_EQ(::recv(pair.far, in, 4, MSG_DONTWAIT), 2);
  EXPECT_EQ(::recv(pair.far, in, 4, MSG_DONTWAIT | MSG_WAITALL), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST(Flags, TruncThrowsBytesAway) {
  Pair pair;
  put(pair.near, "abcdef");
  char in[8] = "-------";
  ASSERT_EQ(::recv(pair.far, in, 4, MSG_TRUNC), 4);
  EXPECT_EQ(std::string(in, 4), "----") << "not written to";
  EXPECT_EQ(get(pair.far, 2), "ef");
  pair.expect_carried(6, 0);
}

std::atomic<int> pipe_signals{0};

TEST(Flags, SigpipeComesUnlessNosignalSaysNo) {
  struct sigaction counts {};
  counts.sa_handler = [](int) { pipe_signals.fetch_add(1); };
  struct sigaction before {};
  ::sigaction(SIGPIPE, &counts, &before);
  Pair pair;
  ASSERT_EQ(::shutdown(pair.near, SHUT_WR), 0);
  pipe_signals = 0;
  EXPECT_EQ(::send(pair.near, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(pipe_signals.load(), 0);
  EXPECT_EQ(::send(pair.near, "x", 1, 0), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(pipe_signals.load(), 1);
  EXPECT_EQ(::write(pair.near, "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(pipe_signals.load(), 2);
  ::sigaction(SIGPIPE, &before, nullptr);
}

TEST(Flags, WritingToAPeerThatHasClosedBecomesEpipe) {
  Pair pair;
  pair.close_far();
  int error = 0;
  for (int i = 0; i < 2000 && error != EPIPE; ++i) {
    if (::send(pair.near, "x", 1, MSG_NOSIGNAL) < 0) {
      error = errno;
      EXPECT_TRUE(error == EPIPE || error == ECONNRESET) << std::strerror(error);
    }
    ::usleep(100);
  }
  EXPECT_EQ(error, EPIPE);
}

TEST(Flags, SigpipeKillsWhoDoesNotExpectIt) {
  Peer peer([](int fd) {
    ::signal(SIGPIPE, SIG_DFL);
    ::shutdown(fd, SHUT_WR);
    (void)!::write(fd, "x", 1);
    return 0;
  });
  EXPECT_EQ(peer.result(), -SIGPIPE);
}

TEST(Flags, MoreCorkAndNodelayAreTakenAndNothingStaysBehind) {
  Pair pair;
  EXPECT_EQ(set(pair.near, IPPROTO_TCP, TCP_CORK, 1), 0);
  put(pair.near, "ab");
  EXPECT_EQ(set(pair.near, IPPROTO_TCP, TCP_CORK, 0), 0);
  EXPECT_EQ(set(pair.near, IPPROTO_TCP, TCP_NODELAY, 1), 0);
  ASSERT_EQ(::send(pair.near, "cd", 2, MSG_MORE), 2);
  ASSERT_EQ(::send(pair.near, "ef", 2, 0), 2);
  EXPECT_EQ(get(pair.far, 6), "abcdef");
  char none;
  EXPECT_EQ(::setsockopt(pair.near, IPPROTO_TCP, TCP_NODELAY, &none, 1), -1);
  EXPECT_EQ(errno, EINVAL);
  pair.expect_carried(6, 0);
}

TEST(Flags, WhatIsReadBackOfCorkAndNodelayIsWhatWasSet) {
  Pair pair;
  for (const int name : {TCP_CORK, TCP_NODELAY}) {
    for (const int value : {1, 0}) {
      int read = -1;
      socklen_t size = sizeof read;
      ASSERT_EQ(set(pair.near, IPPROTO_TCP, name, value), 0);
      ASSERT_EQ(::getsockopt(pair.near, IPPROTO_TCP, name, &read, &size), 0);
      EXPECT_EQ(read != 0, value != 0) << (name == TCP_CORK ? "TCP_CORK" : "TCP_NODELAY");
    }
  }
}

TEST(Flags, CorkAndNodelayAreAsTheProgramHasThemWhenTheConnectionIsBackOnTcp) {
  const auto read_back = [](int fd, int name) {
    int value = -1;
    socklen_t size = sizeof value;
    EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, name, &value, &size), 0);
    return value != 0;
  };
  for (const int nodelay : {0, 1}) {
    Pair pair;
    for (const int cork : {1, 0})
      ASSERT_EQ(set(pair.near, IPPROTO_TCP, TCP_CORK, nodelay != 0 ? 0 : cork), 0);
    ASSERT_EQ(set(pair.near, IPPROTO_TCP, TCP_NODELAY, nodelay), 0);
    ASSERT_EQ(::send(pair.near, "!", 1, MSG_OOB), 1);
    EXPECT_EQ(read_back(pair.near, TCP_NODELAY), nodelay != 0);
    ASSERT_EQ(set(pair.far, IPPROTO_TCP, TCP_CORK, 1), 0);
    EXPECT_TRUE(read_back(pair.far, TCP_CORK));
    ASSERT_EQ(set(pair.far, IPPROTO_TCP, TCP_CORK, 0), 0);
    char urgent;
    EXPECT_TRUE(comes_true([&] { return ::recv(pair.far, &urgent, 1, MSG_OOB) == 1; }));
    pair.talk();
    EXPECT_TRUE(by_tcp(pair.near));
    EXPECT_EQ(read_back(pair.near, TCP_NODELAY), nodelay != 0);
    EXPECT_FALSE(read_back(pair.far, TCP_NODELAY));
    EXPECT_FALSE(read_back(pair.near, TCP_CORK) || read_back(pair.far, TCP_CORK));
    ASSERT_EQ(set(pair.near, IPPROTO_TCP, TCP_NODELAY, 1 - nodelay), 0);
    EXPECT_EQ(read_back(pair.near, TCP_NODELAY), nodelay == 0);
  }
}

// --- urgent data, zero copy, errors ------------------------------------------------------------

TEST(Urgent, GoesByTcpAndKeepsItsPlace) {
  Pair pair;
  put(pair.near, "before");
  ASSERT_EQ(::send(pair.near, "!", 1, MSG_OOB), 1);
  put(pair.near, "after");
  pollfd p{pair.far, POLLPRI, 0};
  ASSERT_EQ(::poll(&p, 1, 2000), 1);
  EXPECT_EQ(p.revents & POLLPRI, POLLPRI);
  char urgent = 0;
  EXPECT_EQ(::recv(pair.far, &urgent, 1, MSG_OOB), 1);
  EXPECT_EQ(urgent, '!');
  EXPECT_EQ(get(pair.far, 6), "before");
  EXPECT_EQ(get(pair.far, 5), "after");
  put(pair.far, "back");
  EXPECT_EQ(get(pair.near, 4), "back");
  EXPECT_TRUE(by_tcp(pair.near));
}

TEST(Urgent, SentByThePeerLeavesNoSendShortThatWaits) {
  Pair pair;
  const std::string all = pattern(16 << 20);
  std::thread sender([&] {
    EXPECT_EQ(::write(pair.near, all.data(), all.size()), static_cast<ssize_t>(all.size()));
    ::shutdown(pair.near, SHUT_WR);
  });
  pollfd p{pair.far, POLLIN, 0};
  EXPECT_EQ(::poll(&p, 1, 2000), 1);
  ASSERT_EQ(::send(pair.far, "!", 1, MSG_OOB), 1);
  std::string come;
  char bytes[65536];
  for (ssize_t n; (n = ::read(pair.far, bytes, sizeof bytes)) > 0;)
    come.append(bytes, static_cast<std::size_t>(n));
  sender.join();
  EXPECT_TRUE(come == all) << come.size();
}

TEST(Urgent, TheMarkIsWhereItWasSent) {
  Pair pair;
  put(pair.near, "before");
  ASSERT_EQ(::send(pair.near, "!", 1, MSG_OOB), 1);
  put(pair.near, "after");
  EXPECT_EQ(::sockatmark(pair.far), 0);
  EXPECT_EQ(get(pair.far, 6), "before") << "reading stops at the mark";
  EXPECT_TRUE(comes_true([&] { return ::sockatmark(pair.far) == 1; }));
  int at = 0;
  EXPECT_EQ(::ioctl(pair.far, SIOCATMARK, &at), 0);
  EXPECT_EQ(at, 1);
  EXPECT_EQ(get(pair.far, 5), "after") << "without the urgent byte";
}

TEST(Urgent, InlineItIsAByteAmongTheOthers) {
  Pair pair;
  ASSERT_EQ(set(pair.far, SOL_SOCKET, SO_OOBINLINE, 1), 0);
  put(pair.near, "ab");
  ASSERT_EQ(::send(pair.near, "!", 1, MSG_OOB), 1);
  put(pair.near, "cd");
  EXPECT_EQ(get(pair.far, 2), "ab");
  std::string rest;
  while (rest.size() < 3) rest += get(pair.far, 3 - rest.size());
  EXPECT_EQ(rest, "!cd");
}

// Its completions: how many sends they report.
unsigned completions(int fd, unsigned wanted) {
  unsigned done = 0;
  (void)comes_true([&] {
    char control[200];
    msghdr message{};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (::recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return false;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      sock_extended_err error;
      std::memcpy(&error, CMSG_DATA(c), sizeof error);
      if (error.ee_origin == SO_EE_ORIGIN_ZEROCOPY) done += error.ee_data - error.ee_info + 1;
    }
    return done >= wanted;
  });
  return done;
}

TEST(ZeroCopy, IsTcpsAndTellsWhenItIsDone) {
  for (const bool moved_before : {true, false}) {
    Pair pair(moved_before);
    if (set(pair.near, SOL_SOCKET, SO_ZEROCOPY, 1) != 0) GTEST_SKIP() << std::strerror(errno);
    pair.talk();
    const std::string out = pattern(100'000);
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(::send(pair.near, out.data(), out.size(), MSG_ZEROCOPY), 100'000)
          << std::strerror(errno);
      EXPECT_TRUE(get(pair.far, out.size()) == out);
    }
    EXPECT_EQ(completions(pair.near, 3), 3u) << (moved_before ? "moved" : "had not moved");
    pair.talk();
  }
}

TEST(ErrorQueue, IsTheKernelsAndEmpty) {
  Pair pair;
  put(pair.near, "ab");
  char in[8], control[100];
  iovec io{in, sizeof in};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  EXPECT_EQ(::recvmsg(pair.far, &message, MSG_ERRQUEUE), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(::recv(pair.far, in, sizeof in, MSG_ERRQUEUE), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(::recvfrom(pair.far, in, sizeof in, MSG_ERRQUEUE, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EAGAIN);
  Messages one({"...."});
  EXPECT_EQ(::recvmmsg(pair.far, one.headers.data(), 1, MSG_ERRQUEUE, nullptr), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(get(pair.far, 2), "ab");
  pair.expect_carried(2, 0);
}

// --- fortified ---------------------------------------------------------------------------------

TEST(Fortified, DoesAsThePlainOnes) {
  Pair pair;
  put(pair.near, "abcdefgh");
  char in[4];
  pollfd p{pair.far, POLLIN, 0};
  EXPECT_EQ(__poll_chk(&p, 1, 1000, sizeof p), 1);
  EXPECT_EQ(p.revents, POLLIN);
  const timespec second{1, 0};
  EXPECT_EQ(__ppoll_chk(&p, 1, &second, nullptr, sizeof p), 1);
  EXPECT_EQ(p.revents, POLLIN);
  ASSERT_EQ(__read_chk(pair.far, in, 4, sizeof in), 4);
  EXPECT_EQ(std::string(in, 4), "abcd");
  ASSERT_EQ(__recv_chk(pair.far, in, 2, sizeof in, 0), 2);
  EXPECT_EQ(std::string(in, 2), "ef");
  ASSERT_EQ(__recvfrom_chk(pair.far, in, 2, sizeof in, 0, nullptr, nullptr), 2);
  EXPECT_EQ(std::string(in, 2), "gh");
  pair.expect_carried(8, 0);
}

TEST(Fortified, WithTooSmallABufferTheProcessAborts) {
  using Call = void (*)(int fd, char* buffer);
  static const Call kCalls[] = {
      [](int fd, char* buffer) { (void)!__read_chk(fd, buffer, 5, 4); },
      [](int fd, char* buffer) { (void)!__recv_chk(fd, buffer, 5, 4, 0); },
      [](int fd, char* buffer) { (void)!__recvfrom_chk(fd, buffer, 5, 4, 0, nullptr, nullptr); },
      [](int fd, char*) {
        pollfd p{fd, POLLIN, 0};
        (void)!__poll_chk(&p, 2, 0, sizeof p);
      },
      [](int fd, char*) {
        pollfd p{fd, POLLIN, 0};
        const timespec none{0, 0};
        (void)!__ppoll_chk(&p, 2, &none, nullptr, sizeof p);
      },
  };
  for (const Call call : kCalls) {
    Pair pair;
    put(pair.near, "abcdefgh");
    const pid_t pid = child([&] {
      const int quiet = ::open("/dev/null", O_WRONLY);
      ::dup2(quiet, STDERR_FILENO);
      char in[8];
      call(pair.far, in);
      return 0;
    });
    EXPECT_EQ(result_of(pid), -SIGABRT);
  }
}

// --- files and pipes ---------------------------------------------------------------------------

TEST(SendFile, SendsAFileAndMovesTheOffsetThatIsMeant) {
  Pair pair;
  const std::string text = pattern(70'000);
  const int file = file_of(text);
  ASSERT_EQ(::sendfile(pair.near, file, nullptr, 10'000), 10'000);
  EXPECT_EQ(::lseek(file, 0, SEEK_CUR), 10'000);
  EXPECT_TRUE(get(pair.far, 10'000) == text.substr(0, 10'000));
  off_t offset = 20'000;
  ASSERT_EQ(::sendfile(pair.near, file, &offset, 100'000), 50'000) << "as much as there is";
  EXPECT_EQ(offset, 70'000);
  EXPECT_EQ(::lseek(file, 0, SEEK_CUR), 10'000);
  EXPECT_TRUE(get(pair.far, 50'000) == text.substr(20'000));
  EXPECT_EQ(::sendfile(pair.near, file, &offset, 10), 0);
  EXPECT_EQ(::sendfile(pair.near, -1, nullptr, 10), -1);
  EXPECT_EQ(errno, EBADF);
  ::close(file);
  pair.expect_carried(60'000, 0);
}

TEST(SendFile, OfTooMuchWithoutWaitingSendsAPart) {
  Pair pair;
  const std::string text = pattern(30 << 20);
  const int file = file_of(text);
  ASSERT_EQ(::fcntl(pair.near, F_SETFL, O_NONBLOCK), 0);
  std::size_t sent = 0;
  ssize_t n;
  while ((n = ::sendfile(pair.near, file, nullptr, text.size())) > 0)
    sent += static_cast<std::size_t>(n);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_LT(sent, text.size());
  EXPECT_EQ(::lseek(file, 0, SEEK_CUR), static_cast<off_t>(sent));
  EXPECT_TRUE(get(pair.far, sent) == text.substr(0, sent));
  EXPECT_TRUE(silent(pair.far));
  ::close(file);
}

TEST(SendFile, FromASocketFails) {
  Pair pair;
  put(pair.near, "ab");
  const int file = file_of("");
  EXPECT_EQ(::sendfile(file, pair.far, nullptr, 2), -1);
  EXPECT_EQ(errno, EINVAL);
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  ASSERT_EQ(::write(pipe[1], "cd", 2), 2);
  for (const int from : {pair.far, pipe[0]}) {
    EXPECT_EQ(::sendfile(pair.far, from, nullptr, 2), -1);
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(get(pair.far, 2), "ab");
  EXPECT_TRUE(silent(pair.near));
  for (const int fd : {file, pipe[0], pipe[1]}) ::close(fd);
}

TEST(Splice, TakesFromASocketAndPutsIntoOne) {
  Pair pair;
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  put(pair.near, "abcdef");
  ASSERT_EQ(::splice(pair.far, nullptr, pipe[1], nullptr, 100, 0), 6);
  ASSERT_EQ(::splice(pipe[0], nullptr, pair.far, nullptr, 100, 0), 6);
  EXPECT_EQ(get(pair.near, 6), "abcdef");
  EXPECT_EQ(::splice(pipe[0], nullptr, pair.far, nullptr, 100, SPLICE_F_NONBLOCK), -1);
  EXPECT_EQ(errno, EAGAIN);
  pair.expect_carried(6, 6);
  pair.close_near();
  EXPECT_EQ(::splice(pair.far, nullptr, pipe[1], nullptr, 100, 0), 0) << "the end";
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(Splice, WaitsForASocketUnlessThatDoesNotWait) {
  Pair pair;
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  ssize_t got = -2;
  Thread mover(
      [&] { got = ::splice(pair.far, nullptr, pipe[1], nullptr, 100, SPLICE_F_NONBLOCK); });
  EXPECT_TRUE(mover.falls_asleep()) << "SPLICE_F_NONBLOCK is for the pipe";
  put(pair.near, "abc");
  mover.join();
  EXPECT_EQ(got, 3);
  ASSERT_EQ(::fcntl(pair.far, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(::splice(pair.far, nullptr, pipe[1], nullptr, 100, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(Splice, BeforeItHasMovedAConnectionStaysOnTcpForAllWhoHaveIt) {
  Pair pair(false);
  int pipe[2], go[2];
  ASSERT_EQ(::pipe(pipe), 0);
  ASSERT_EQ(::pipe(go), 0);
  const pid_t other = child([&] {
    pair.close_near();
    char byte;
    return ::read(go[0], &byte, 1) == 1 ? echo(pair.far) : 3;
  });
  put(pair.near, "abc");
  ASSERT_EQ(::splice(pair.far, nullptr, pipe[1], nullptr, 3, 0), 3);
  ASSERT_EQ(::write(go[1], "x", 1), 1);
  ping(pair.near, 50);
  EXPECT_TRUE(by_tcp(pair.near));
  pair.close_near();
  EXPECT_EQ(result_of(other), 0);
  for (const int fd : {pipe[0], pipe[1], go[0], go[1]}) ::close(fd);
}

TEST(Splice, IntoAFullPipeTakesNothing) {
  Pair pair;
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_NONBLOCK), 0);
  const std::string block(4096, 'f');
  while (::write(pipe[1], block.data(), block.size()) > 0) {
  }
  put(pair.near, "abc");
  EXPECT_EQ(::splice(pair.far, nullptr, pipe[1], nullptr, 100, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(get(pair.far, 3), "abc");
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(Splice, IntoAPipeWithOneBufferLeftTakesNoMoreThanThat) {
  Pair pair;
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_NONBLOCK), 0);
  const std::string part(3000, 'p'), text = pattern(20'000);
  while (::write(pipe[1], part.data(), part.size()) > 0) {
  }
  std::vector<char> in(1 << 20);
  ASSERT_EQ(::read(pipe[0], in.data(), part.size()), 3000);
  put(pair.near, text);
  const ssize_t n = ::splice(pair.far, nullptr, pipe[1], nullptr, text.size(), 0);
  ASSERT_GT(n, 0);
  std::string out;
  for (ssize_t k; (k = ::read(pipe[0], in.data(), in.size())) > 0;)
    out.append(in.data(), static_cast<std::size_t>(k));
  const auto moved = static_cast<std::size_t>(n);
  ASSERT_GE(out.size(), moved);
  EXPECT_TRUE(out.substr(out.size() - moved) == text.substr(0, moved));
  EXPECT_TRUE(get(pair.far, text.size() - moved) == text.substr(moved));
  for (const int fd : pipe) ::close(fd);
}

TEST(Splice, IntoAPipeThatNobodyReadsLosesNothing) {
  Pair pair;
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  ::close(pipe[0]);
  put(pair.near, "abc");
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  EXPECT_EQ(::splice(pair.far, nullptr, pipe[1], nullptr, 3, 0), -1);
  EXPECT_EQ(errno, EPIPE);
  ::signal(SIGPIPE, before);
  EXPECT_EQ(get(pair.far, 3), "abc");
  ::close(pipe[1]);
}

TEST(Splice, WantsAPipeAndDoesNotWaitForOneThatDoesNot) {
  Pair pair, other;
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_NONBLOCK), 0);
  EXPECT_EQ(::splice(pipe[0], nullptr, pair.near, nullptr, 0, 0), 0);
  EXPECT_EQ(::splice(pipe[0], nullptr, pair.near, nullptr, 100, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  put(pair.near, "abc");
  const int file = file_of("def");
  EXPECT_EQ(::splice(pair.far, nullptr, other.near, nullptr, 3, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::splice(file, nullptr, other.near, nullptr, 3, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(get(pair.far, 3), "abc");
  EXPECT_TRUE(silent(other.far));
  for (const int fd : {file, pipe[0], pipe[1]}) ::close(fd);
}

TEST(Splice, RoomAfterThereWasNoneIsAnEdge) {
  Pair pair;
  ASSERT_EQ(::fcntl(pair.near, F_SETFL, O_NONBLOCK), 0);
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_NONBLOCK), 0);
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLOUT | EPOLLET;
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, pair.near, &event), 0);
  EXPECT_EQ(::epoll_wait(set, &event, 1, 1000), 1);
  const std::string block(4096, 's');
  std::size_t sent = 0;
  for (ssize_t n = 1; n > 0; sent += n > 0 ? static_cast<std::size_t>(n) : 0) {
    ASSERT_GT(::write(pipe[1], block.data(), block.size()), 0);
    n = ::splice(pipe[0], nullptr, pair.near, nullptr, block.size(), 0);
  }
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(get(pair.far, sent).size(), sent);
  EXPECT_EQ(::epoll_wait(set, &event, 1, 1000), 1);
  EXPECT_EQ(event.events, static_cast<std::uint32_t>(EPOLLOUT));
  for (const int fd : {set, pipe[0], pipe[1]}) ::close(fd);
}

TEST(Splice, MuchGoesThroughAPipeUnchanged) {
  const std::string all = pattern(3 << 20);
  Peer peer([&](int fd) {  // echoes by splice
    int pipe[2];
    if (::pipe(pipe) != 0) return 1;
    for (;;) {
      ssize_t n = ::splice(fd, nullptr, pipe[1], nullptr, 1 << 20, SPLICE_F_MOVE | SPLICE_F_MORE);
      if (n <= 0) return n == 0 ? 0 : 2;
      while (n > 0) {
        const ssize_t k = ::splice(pipe[0], nullptr, fd, nullptr, static_cast<std::size_t>(n), 0);
        if (k <= 0) return 3;
        n -= k;
      }
    }
  });
  Thread writer([&] { put(peer.fd, all); });
  EXPECT_TRUE(get(peer.fd, all.size()) == all);
  EXPECT_TRUE(by_pipe(peer.fd));
}

TEST(Splice, TeeAndVmspliceKnowNoSockets) {
  Pair pair;
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  char text[] = "abc";
  const iovec io{text, 3};
  EXPECT_EQ(::vmsplice(pair.near, &io, 1, 0), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(::tee(pair.near, pipe[1], 3, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  ASSERT_EQ(::vmsplice(pipe[1], &io, 1, 0), 3);
  ASSERT_EQ(::splice(pipe[0], nullptr, pair.near, nullptr, 3, 0), 3);
  EXPECT_EQ(get(pair.far, 3), "abc");
  ::close(pipe[0]);
  ::close(pipe[1]);
}

// --- by number ---------------------------------------------------------------------------------

TEST(ByNumber, SystemCallsMeanTheSameSockets) {
  Pair pair;
  char text[] = "abcd", in[8] = {};
  iovec out{text, 4}, io{in, sizeof in};
  msghdr send{}, receive{};
  send.msg_iov = &out;
  receive.msg_iov = &io;
  send.msg_iovlen = receive.msg_iovlen = 1;
  const int near = pair.near, far = pair.far;
  EXPECT_EQ(::syscall(SYS_write, near, text, 4), 4);
  EXPECT_EQ(::syscall(SYS_read, far, in, 8), 4);
  EXPECT_EQ(::syscall(SYS_sendto, near, text, 4, 0, nullptr, 0), 4);
  EXPECT_EQ(::syscall(SYS_recvfrom, far, in, 8, 0, nullptr, nullptr), 4);
  EXPECT_EQ(::syscall(SYS_writev, near, &out, 1), 4);
  EXPECT_EQ(::syscall(SYS_readv, far, &io, 1), 4);
  EXPECT_EQ(::syscall(SYS_sendmsg, near, &send, 0), 4);
  EXPECT_EQ(::syscall(SYS_recvmsg, far, &receive, 0), 4);
  EXPECT_EQ(std::string(in, 4), "abcd");
  EXPECT_EQ(::syscall(SYS_pwritev2, near, &out, 1, -1L, -1L, 0), 4);
  EXPECT_EQ(::syscall(SYS_preadv2, far, &io, 1, -1L, -1L, 0), 4);
  mmsghdr messages[2]{{send, 0}, {receive, 0}};
  EXPECT_EQ(::syscall(SYS_sendmmsg, near, messages, 1, 0), 1);
  EXPECT_EQ(::syscall(SYS_recvmmsg, far, messages + 1, 1, 0, nullptr), 1);
  EXPECT_EQ(messages[1].msg_len, 4u);
  const int file = file_of("efgh");
  EXPECT_EQ(::syscall(SYS_sendfile, near, file, nullptr, 4), 4);
  ::close(file);
  EXPECT_EQ(get(far, 4), "efgh");
  pollfd p{far, POLLIN, 0};
  const timespec none{0, 0}, brief{0, 2'000'000};
  EXPECT_EQ(::syscall(SYS_ppoll, &p, 1, &brief, nullptr, 8), 0);
  EXPECT_EQ(::syscall(SYS_write, near, text, 3), 3);
  int n = -1;
  EXPECT_TRUE(comes_true([&] { return ::syscall(SYS_ioctl, far, FIONREAD, &n) == 0 && n == 3; }))
      << n;
  p.revents = 0;
  EXPECT_EQ(::syscall(SYS_ppoll, &p, 1, &none, nullptr, 8), 1);
  EXPECT_EQ(p.revents, POLLIN);
  const int copy = static_cast<int>(::syscall(SYS_dup, far));
  EXPECT_EQ(get(copy, 3), "abc");
  pair.expect_carried(31, 0);
  EXPECT_EQ(::syscall(SYS_shutdown, near, SHUT_WR), 0);
  EXPECT_EQ(::syscall(SYS_read, copy, in, 8), 0);
  EXPECT_EQ(::syscall(SYS_close, copy), 0);
  EXPECT_EQ(::fcntl(copy, F_GETFD), -1);
}

}  // namespace
}  // namespace clan::test
