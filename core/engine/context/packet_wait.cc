#include "engine/context/packet_wait.h"

#include "base/futex.h"
#include "base/wait_call.h"
#include "clan/event_queue.h"
#include "link/udp/node/udp_node.h"

namespace clan::engine {

void PacketWait::fetch_slowly() {
  if (source_ != nullptr) source_->fetch();
}

static_assert(EventQueue::kMostFds == udp::Sleep::kMostFds);
int PacketWait::sleep_on(std::span<pollfd> fds, std::uint64_t deadline_ns) {
  if (!has_packets()) return sys::poll_until(fds, deadline_ns);
  return source_->sleep(
      {.fds = fds, .deadline_ns = deadline_ns, .locks = udp::Sleep::Locks::kNone});
}

int PacketWait::sleep_on(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                         std::uint64_t deadline_ns) {
  if (!has_packets()) return futex_wait(word, seen, deadline_ns);
  return source_->sleep(
      {.word = &word, .seen = seen, .deadline_ns = deadline_ns, .locks = udp::Sleep::Locks::kNone});
}

void PacketWait::wake_sleeper() {
  if (has_packets()) source_->wake_sleepers();
}

void PacketWait::leave_to_driver() {
  if (has_packets()) source_->keep_watching();
}

}  // namespace clan::engine
