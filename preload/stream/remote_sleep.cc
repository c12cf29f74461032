#include "stream/remote_sleep.h"

#include <atomic>

namespace clan::preload {
namespace {

/// the program has closed a watched descriptor: only the component's thread fetches
std::atomic<bool> is_lost{false};

}  // namespace

PacketSleep::PacketSleep(bool remote, May may) {
  if (!remote) [[likely]]
    return;
  // relaxed: a hint
  const bool fetches = may == May::kFetch && !is_lost.load(std::memory_order_relaxed);
  begun_ = begin_packet_sleep(fetches, &watched_);
  has_come_ = !begun_;
}

PacketSleep::~PacketSleep() {
  if (begun_) [[unlikely]]
    (void)end_packet_sleep(false);
}

nfds_t PacketSleep::watch(pollfd* at) const {
  for (unsigned i = 0; i < watched_.count; ++i) at[i] = {watched_.fd[i], POLLIN, 0};
  return watched_.count;
}

bool PacketSleep::ready(const pollfd* at) const {
  bool ready = false;
  for (unsigned i = 0; i < watched_.count; ++i) {
    ready |= at[i].revents != 0;
    // relaxed: a hint
    if ((at[i].revents & POLLNVAL) != 0) is_lost.store(true, std::memory_order_relaxed);
  }
  return ready;
}

bool PacketSleep::fetch() {
  begun_ = false;
  return end_packet_sleep(true);
}

}  // namespace clan::preload
