// Processes that share connections.
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "helpers.h"

namespace clan::test {
namespace {

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
  return ::epoll_wait(set, &event, 1, timeout_ms) == 1 && event.events == EPOLLIN &&
         event.data.u64 == 7;
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

TEST(Processes, AChildThatClosesItsCopiesLeavesTheParentsSetAsItWas) {
  Peer peer([](int fd) {
    for (int k = 0; k < 2; ++k) {
      if (get(fd, 1) != "x") return 1;
      ::usleep(200'000);
      put(fd, "y");
    }
    return get(fd, 1).empty() ? 0 : 2;  // its end would wake the set
  });
  const int set = set_of(peer.fd);
  put(peer.fd, "x");
  EXPECT_TRUE(tells(set, 5000));
  EXPECT_EQ(get(peer.fd, 1), "y");
  put(peer.fd, "x");
  EXPECT_FALSE(tells(set, 20));
  EXPECT_EQ(result_of(child([&] {
              ::close(peer.fd);
              return 0;
            })),
            0);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(tells(set, 30'000));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(get(peer.fd, 1), "y");
  ::close(set);
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

TEST(Processes, WhatOneLeavesUnreadTheOthersSetTellsOf) {
  for (const bool forked_with_set : {false, true}) {
    Peer peer([](int fd) { return echo(fd); });
    int orders[2], done[2];
    ASSERT_EQ(::pipe(orders) | ::pipe(done), 0);
    int set = forked_with_set ? set_of(peer.fd) : -1;
    const pid_t sharer = child([&] {
      char byte = 'x';
      ::close(done[0]);
      ::close(orders[1]);
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
    ::close(done[1]);  // one that has failed is not waited for
    ::close(orders[0]);
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
    EXPECT_EQ(result_of(sharer), 0);
    EXPECT_TRUE(by_pipe(peer.fd));
    for (const int fd : {orders[1], done[0], set}) ::close(fd);
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

TEST(Processes, MoveAConnectionWhenOneOfThemHasItAlone) {
  for (const bool exits : {false, true}) {
    Peer peer(
        [&](int fd) {
          const pid_t first = child([&] {
            char buffer[1000];
            for (int i = 0; i < 50; ++i) {
              if (::recv(fd, buffer, sizeof buffer, MSG_WAITALL) != 1000) return 1;
              if (::write(fd, buffer, sizeof buffer) != 1000) return 2;
            }
            if (!exits) ::close(fd);
            return 0;
          });
          if (const int result = result_of(first); result != 0) return result;
          return echo(fd);
        },
        false);
    ping(peer.fd, 50);
    EXPECT_TRUE(by_tcp(peer.fd));
    ping(peer.fd, 50);
    EXPECT_TRUE(by_pipe(peer.fd));
  }
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

}  // namespace
}  // namespace clan::test
