// An epoll set with ends of a connection that has migrated, for tests of the room `wait`.
#pragma once

#include <sys/epoll.h>

#include <vector>

#include "preload/tcp_pair.h"
#include "table/unseen_sets.h"
#include "wait/epoll_set.h"
#include "wait/set_lock.h"
#include "wait/waiting.h"

namespace clan::preload {

/// A copy: the structure is packed, and references to what is in it are not aligned.
inline std::uint64_t data_of(const epoll_event& event) { return event.data.u64; }

/// A new set, as the interposed call makes it.
inline int make_set() {
  const int epfd = ::epoll_create1(EPOLL_CLOEXEC);
  saw_set(epfd);
  return epfd;
}

struct EpollSet : testing::Test {
  EpollSet() {
    pair.migrate();
    EXPECT_EQ(pair.send(0, "x"), 1);
    EXPECT_EQ(pair.receive(1), "x");
    epfd = make_set();
  }
  ~EpollSet() override {
    forget_epoll(epfd);
    ::close(epfd);
  }
  int ask(int op, std::uint32_t events, int end = 1) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = 40 + static_cast<std::uint64_t>(end);
    return control(epfd, op, pair.fd(end), &event);
  }
  std::vector<epoll_event> wait(int timeout_ms = 0) {
    std::vector<epoll_event> events(8);
    const int n = wait_for_events(
        epfd, events.data(), 8, timeout_ms * std::int64_t{1'000'000},
        [this](epoll_event* to, int most, std::int64_t ns) {
          if (ns != 0) ++kernel_sleeps;
          return sys::epoll_wait(epfd, to, most, ns < 0 ? -1 : static_cast<int>(ns / 1'000'000));
        });
    events.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return events;
  }
  std::uint32_t told(int timeout_ms = 0) {
    const auto events = wait(timeout_ms);
    return events.size() == 1 && events[0].data.u64 == 41 ? events[0].events : 0;
  }

  TcpPair pair;
  int epfd;
  int kernel_sleeps = 0;  ///< in the kernel
};

}  // namespace clan::preload
