#include "stream/far_wait.h"

#include <atomic>
#include <cstddef>

#include "far/carrier.h"

namespace clan::preload {
namespace {

static_assert(PacketSleep::kMost == PacketFds::kMost);
/// A program has closed what is watched: the carrier's thread sees to it alone.
std::atomic<bool> is_lost{false};

}  // namespace

bool fetch_packets() { return look_at_network(); }

PacketSleep::PacketSleep(bool carried, May may) {
  if (!carried) [[likely]]
    return;
  PacketFds watched;
  // relaxed: a hint
  const bool fetches = may == May::kFetch && !is_lost.load(std::memory_order_relaxed);
  begun_ = begin_network_sleep(fetches, &watched);
  has_come_ = !begun_;
  for (; begun_ && count_ < watched.count; ++count_) fds_[count_] = watched.fd[count_];
}

PacketSleep::~PacketSleep() {
  if (begun_) [[unlikely]]
    (void)end_network_sleep(false);
}

nfds_t PacketSleep::watch(pollfd* at) const {
  for (nfds_t i = 0; i < count_; ++i) at[i] = {fds_[i], POLLIN, 0};
  return count_;
}

bool PacketSleep::ready(const pollfd* at) const {
  bool ready = false;
  for (nfds_t i = 0; i < count_; ++i) {
    ready |= at[i].revents != 0;
    // relaxed: as above
    if ((at[i].revents & POLLNVAL) != 0) is_lost.store(true, std::memory_order_relaxed);
  }
  return ready;
}

bool PacketSleep::fetch() {
  begun_ = false;
  return end_network_sleep(true);
}

}  // namespace clan::preload
