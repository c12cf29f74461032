// Options by which TCP bounds bytes, or looks into them: the connection goes back to TCP, or stays
// there.
#include <linux/filter.h>
#include <netinet/tcp.h>

#include <chrono>

#include "helpers.h"

namespace clan::test {
namespace {

constexpr int kTxDelay = 37;          // TCP_TX_DELAY
constexpr int kRate = 1'000'000'000;  // bytes a second
constexpr int kTimeoutMs = 60'000;

struct Option {
  const char* what;
  int (*set)(int fd);
  /// One that a socket has from its listener, as far as the kernel tells.
  bool inherited;
};

int attach_filter(int fd) {
  sock_filter accept_all[] = {BPF_STMT(BPF_RET | BPF_K, 0xffff'ffff)};
  const sock_fprog program{1, accept_all};
  return ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

constexpr Option kOptions[] = {
    {"TCP_USER_TIMEOUT", [](int fd) { return set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kTimeoutMs); },
     true},
    {"SO_MAX_PACING_RATE", [](int fd) { return set(fd, SOL_SOCKET, SO_MAX_PACING_RATE, kRate); },
     true},
    {"TCP_WINDOW_CLAMP", [](int fd) { return set(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, 1 << 20); },
     false},
    {"TCP_TX_DELAY", [](int fd) { return set(fd, IPPROTO_TCP, kTxDelay, 1); }, true},
    {"SO_ATTACH_FILTER", attach_filter, true},
    {"SO_TIMESTAMP", [](int fd) { return set(fd, SOL_SOCKET, SO_TIMESTAMP, 1); }, true},
};

TEST(OptionsOfTcp, TakeAConnectionBack) {
  for (const Option& option : kOptions) {
    SCOPED_TRACE(option.what);
    Pair pair;
    put(pair.near, "before");
    ASSERT_EQ(option.set(pair.near), 0) << std::strerror(errno);
    EXPECT_EQ(get(pair.far, 6), "before");
    pair.talk();
    EXPECT_TRUE(by_tcp(pair.near));
  }
}

TEST(OptionsOfTcp, KeepAConnectionOnTcp) {
  for (const Option& option : kOptions) {
    SCOPED_TRACE(option.what);
    Pair pair(false);
    ASSERT_EQ(option.set(pair.far), 0) << std::strerror(errno);
    pair.talk(50);
    EXPECT_TRUE(by_tcp(pair.near));
  }
}

TEST(OptionsOfTcp, OfAListenerKeepWhatItAcceptsOnTcp) {
  for (const Option& option : kOptions) {
    if (!option.inherited) continue;
    SCOPED_TRACE(option.what);
    const int listening = listener();
    ASSERT_EQ(option.set(listening), 0) << std::strerror(errno);
    const int connected = connect_to(port_of(listening));
    Pair pair(connected, ::accept(listening, nullptr, nullptr));
    ::close(listening);
    pair.talk(50);
    EXPECT_TRUE(by_tcp(pair.near));
  }
}

TEST(OptionsOfTcp, WithValuesThatDoNothingLeaveItWhereItIs) {
  Pair pair(false);
  ASSERT_EQ(set(pair.near, IPPROTO_TCP, TCP_USER_TIMEOUT, 0), 0);
  ASSERT_EQ(set(pair.near, SOL_SOCKET, SO_MAX_PACING_RATE, -1), 0);
  pair.move();
  ASSERT_EQ(set(pair.near, IPPROTO_TCP, TCP_USER_TIMEOUT, 0), 0);
  pair.talk();
  EXPECT_TRUE(by_pipe(pair.near));
}

TEST(OptionsOfTcp, ATimeOutEndsASendThatNobodyReads) {
  Pair pair;
  ASSERT_EQ(set(pair.near, IPPROTO_TCP, TCP_USER_TIMEOUT, 300), 0);
  const std::string much(1 << 20, 'u');
  while (::send(pair.near, much.data(), much.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
  }
  EXPECT_NE(poll_one(pair.near, POLLIN, -1) & POLLERR, 0);
  EXPECT_EQ(option(pair.near, SOL_SOCKET, SO_ERROR), ETIMEDOUT);
}

TEST(OptionsOfTcp, ARateBoundsASend) {
  constexpr std::size_t kBytes = 1'000'000;
  Pair pair;
  ASSERT_EQ(set(pair.near, SOL_SOCKET, SO_MAX_PACING_RATE, 4'000'000), 0);
  const auto begin = std::chrono::steady_clock::now();
  std::thread sender([&] { put(pair.near, std::string(kBytes, 'r')); });
  EXPECT_EQ(get(pair.far, kBytes).size(), kBytes);
  sender.join();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(150));
}

}  // namespace
}  // namespace clan::test
