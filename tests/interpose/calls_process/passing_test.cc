// Connections that are passed to other processes.
#include <sys/un.h>

#include "helpers.h"

namespace clan::test {
namespace {

/// A listening AF_UNIX socket with a name.
struct Rendezvous {
  int listening = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un name{};
  socklen_t size = sizeof name;
  Rendezvous() {
    name.sun_family = AF_UNIX;
    EXPECT_EQ(::bind(listening, reinterpret_cast<const sockaddr*>(&name), sizeof(sa_family_t)), 0);
    EXPECT_EQ(::listen(listening, 1), 0);
    EXPECT_EQ(::getsockname(listening, reinterpret_cast<sockaddr*>(&name), &size), 0);
  }
  ~Rendezvous() { ::close(listening); }
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  int connected() const {
    const int through = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(through, reinterpret_cast<const sockaddr*>(&name), size), 0);
    return through;
  }
};

std::string rest_of(int fd) {
  std::string all;
  char buffer[100];
  for (ssize_t n; (n = ::read(fd, buffer, sizeof buffer)) > 0;)
    all.append(buffer, static_cast<std::size_t>(n));
  return all;
}

TEST(Passing, AMovedConnectionGoesBackToTcp) {
  const Rendezvous meeting;
  const pid_t receiver = child([&] {
    const int fd = take(::accept(meeting.listening, nullptr, nullptr));
    return fd < 0 ? 1 : echo(fd);
  });
  Peer peer([&](int fd) { return pass(meeting.connected(), fd) ? 0 : 2; });
  put(peer.fd, "under way");
  EXPECT_EQ(get(peer.fd, 9), "under way");
  ping(peer.fd, 100);
  EXPECT_TRUE(by_tcp(peer.fd));
  peer.close();
  EXPECT_EQ(result_of(receiver), 0);
}

TEST(Passing, WhatAnEndWroteIsReadByTheReceiverThoughEverybodyElseHasEnded) {
  enum class How { kClose, kExit, kKill, kExec };
  for (const How how : {How::kClose, How::kExit, How::kKill, How::kExec}) {
    SCOPED_TRACE(static_cast<int>(how));
    Rendezvous meeting;
    int go[2];
    ASSERT_EQ(::pipe2(go, O_CLOEXEC), 0);
    const pid_t sender = child([&] {
      Pair pair;
      put(pair.near, "last words");
      const int through = meeting.connected();
      if (!pass(through, pair.far)) return 1;
      pair.close_near();
      ::close(through);
      if (how == How::kKill) ::kill(::getpid(), SIGKILL);
      if (how == How::kExec) ::execl("/bin/true", "true", nullptr);
      if (how == How::kExit) return 0;
      pair.close_far();
      ::close(go[1]);
      char byte;
      return ::read(go[0], &byte, 1) == 1 ? 0 : 2;
    });
    const int through = ::accept(meeting.listening, nullptr, nullptr);
    if (how == How::kClose) {
      ::usleep(50'000);
    } else {
      EXPECT_EQ(result_of(sender), how == How::kKill ? -SIGKILL : 0);
    }
    const int fd = take(through);
    EXPECT_GE(fd, 0);
    EXPECT_EQ(rest_of(fd), "last words");
    if (how == How::kClose) {
      EXPECT_EQ(::write(go[1], "x", 1), 1);
      EXPECT_EQ(result_of(sender), 0);
    }
    for (const int one : {fd, through, go[0], go[1]}) ::close(one);
  }
}

/// A child that takes a connection from `two[1]` and echoes on it: by exec if it is given an
/// environment.
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

TEST(Passing, BeforeItHasMovedAConnectionMovesAtTheReceiver) {
  for (const bool executed : {false, true}) {
    int two[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, two), 0);
    const pid_t receiver = receiver_of(two, executed ? environ : nullptr);
    Pair pair(false);
    ASSERT_TRUE(pass(two[0], pair.far));
    pair.close_far();
    EXPECT_TRUE(comes_true([&] {
      ping(pair.near, 100);
      return by_pipe(pair.near);
    }));
    pair.close_near();
    EXPECT_EQ(result_of(receiver), 0);
    ::close(two[0]);
    ::close(two[1]);
  }
}

TEST(Passing, SenderAndReceiverMayBothGoOnWithItUntilOneHasItAlone) {
  int two[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, two), 0);
  const pid_t receiver = child([&] {
    const int fd = take(two[1]);
    char buffer[1000];
    for (int i = 0; i < 60; ++i) {
      if (::recv(fd, buffer, 1000, MSG_WAITALL) != 1000 || ::write(fd, buffer, 1000) != 1000)
        return 1;
    }
    ::close(fd);
    return ::write(two[1], "x", 1) == 1 ? 0 : 2;
  });
  Pair pair(false);
  pair.talk(2);
  ASSERT_TRUE(pass(two[0], pair.far));
  ping(pair.near, 60);
  EXPECT_TRUE(by_tcp(pair.near));
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
