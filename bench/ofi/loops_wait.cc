// Waiting at the queue's descriptor, and the same with nothing but an eventfd.
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "side.h"

namespace clan::bench::ofi {

void Side::sleep_until_received() {
  while (!take(received_, "a message")) {
    fid* waited = &received_->fid;
    const int rc = fi_trywait(fabric_, &waited, 1);
    if (rc == -FI_EAGAIN) continue;
    must(rc, "fi_trywait");
    pollfd p{fd_, POLLIN, 0};
    if (::poll(&p, 1, static_cast<int>(kPatience * 1000)) == 0)
      give_up("a message", "has not come in time");
  }
}

/// Microseconds of CPU time in two seconds, on the side that used more.
double Side::idle() {
  meet();
  const double used = cpu_ns(), until = now() + 2;
  for (double left = 2; left > 0; left = until - now()) {
    fid* waited = &received_->fid;
    if (fi_trywait(fabric_, &waited, 1) == 0) {
      pollfd p{fd_, POLLIN, 0};
      (void)::poll(&p, 1, static_cast<int>(left * 1000) + 1);
    }
    if (take(received_, "nothing")) give_up("idle", "a message that nobody sent");
  }
  double mine = (cpu_ns() - used) * 1e-9, other = 0;
  channel_.send(&mine, sizeof mine);
  channel_.receive(&other, sizeof other);
  return std::max(mine, other);
}

double Side::eventfd(const Order& order) {
  const int mine = eventfds_[client_ ? 1 : 0], theirs = eventfds_[client_ ? 0 : 1];
  const auto ring = [&] {
    if (::eventfd_write(theirs, 1) != 0) give_up("eventfd", std::strerror(errno));
  };
  meet();
  const double began = now();
  for (std::uint64_t i = 0; i < order.times; ++i) {
    if (client_) ring();
    pollfd p{mine, POLLIN, 0};
    eventfd_t value;
    if (::poll(&p, 1, static_cast<int>(kPatience * 1000)) != 1 ||
        ::eventfd_read(mine, &value) != 0) {
      give_up("eventfd", "has not come in time");
    }
    if (!client_) ring();
  }
  return (now() - began) / 2;
}

}  // namespace clan::bench::ofi
