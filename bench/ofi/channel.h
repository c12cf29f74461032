// The way out of a load program, its clocks, and the socket between client and server.
#pragma once

#include <poll.h>
#include <rdma/fi_errno.h>
#include <sys/socket.h>
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "order.h"

namespace clan::bench::ofi {

[[noreturn]] inline void give_up(const char* what, const char* why) {
  std::fprintf(stderr, "clan-ofi-load: %s: %s\n", what, why);
  std::exit(1);
}

template <typename T>
T must(T rc, const char* what) {
  if (rc < 0) give_up(what, fi_strerror(static_cast<int>(-rc)));
  return rc;
}
#define MUST(call) must((call), #call)

inline double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

/// Ends a loop whose event does not come; reads the clock only now and then.
class Patience {
 public:
  explicit Patience(const char* what) : what_(what) {}
  void operator()() {
    if ((++turns_ & 0xfffff) != 0) return;
    const double t = now();
    if (since_ == 0) since_ = t;
    if (t - since_ > kPatience) give_up(what_, "has not come in time");
  }

 private:
  const char* what_;
  std::uint32_t turns_ = 0;
  double since_ = 0;
};

/// The socket between the two: set-up and orders, nothing that is measured.
class Channel {
 public:
  explicit Channel(int fd) : fd_(fd) {}
  void send(const void* data, std::size_t bytes) const {
    if (::send(fd_, data, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes))
      give_up("channel", "closed");
  }
  void receive(void* data, std::size_t bytes) const {
    if (::recv(fd_, data, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes))
      give_up("channel", "closed");
  }
  bool ready() const {
    pollfd p{fd_, POLLIN, 0};
    return ::poll(&p, 1, 0) != 0;
  }

 private:
  int fd_;
};

}  // namespace clan::bench::ofi
