// Connections that are passed to other processes.
#include <sys/un.h>
#include <sys/epoll.h>

#include <chrono>
#include <functional>

#include "helpers.h"

namespace clan::test {
namespace {

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

// Then no process but the sender has the memory, and the sender closes before the receiver has looked.
TEST(Passing, WhatAnEndWroteBeforeItClosedIsReadByTheReceiver) {
  const int listening = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  ASSERT_EQ(::bind(listening, reinterpret_cast<const sockaddr*>(&name), sizeof(sa_family_t)), 0);
  ASSERT_EQ(::listen(listening, 1), 0);
  socklen_t size = sizeof name;
  ASSERT_EQ(::getsockname(listening, reinterpret_cast<sockaddr*>(&name), &size), 0);
  int go[2];
  ASSERT_EQ(::pipe(go), 0);
  const pid_t receiver = child([&] {
    const int through = ::accept(listening, nullptr, nullptr);
    char byte;
    if (::read(go[0], &byte, 1) != 1) return 1;
    const int fd = take(through);
    if (fd < 0) return 2;
    std::string all;
    char buffer[100];
    for (ssize_t n; (n = ::read(fd, buffer, sizeof buffer)) > 0;) all.append(buffer, static_cast<std::size_t>(n));
    ::close(fd);
    return all == "last words" ? 0 : 3;
  });
  Pair pair;
  put(pair.near, "last words");
  pair.close_near();
  const int through = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::connect(through, reinterpret_cast<const sockaddr*>(&name), size), 0);
  ASSERT_TRUE(pass(through, pair.far));
  pair.close_far();
  ASSERT_EQ(::write(go[1], "x", 1), 1);
  EXPECT_EQ(result_of(receiver), 0);
  for (const int fd : {listening, through, go[0], go[1]}) ::close(fd);
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

}  // namespace
}  // namespace clan::test
