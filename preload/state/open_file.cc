#include "state/open_file.h"

#include <linux/bpf.h>
#include <linux/tcp.h>
#include <sched.h>

#include <cstdint>
#include <cstring>

#include "clan/clock.h"
#include "clan/dekker.h"
#include "os/signals.h"
#include "os/tcp.h"
#include "state/socket.h"

namespace clan::preload {
namespace {

// A thread that comes to the socket's own counters from now on sees that it has to look where they
// now. False: a call is under way.
bool close_for_good(Socket& s) {
  constexpr std::uint64_t kPatienceNs = 1'000'000'000;
  const std::uint64_t end = monotonic_ns() + kPatienceNs;
  Slot& own = s.own_slot;
  const std::int32_t me = closer_id();
  do {
    if (Slot::try_close(own.receives, me)) {
      if (Slot::try_close(own.sends, me)) return true;
      Slot::open(own.receives, me);
    }
    // relaxed: a look
    const std::uint64_t counted =
        own.receives.load(std::memory_order_relaxed) | own.sends.load(std::memory_order_relaxed);
    // Of a socket that has moved nobody is in the kernel, and a switch is soon over.
    if (!s.shared() && (counted & Slot::kClosed) == 0 && counted != 0) return false;
    // That may take long. PAIR preload.resending: sees whose it is
    if (s.resending.load(std::memory_order_acquire)) break;
    sched_yield();
  } while (monotonic_ns() < end);
  return false;
}

}  // namespace

std::int32_t closer_id() {
  return static_cast<std::int32_t>(sys::name_of(static_cast<std::uint32_t>(thread_id())));
}

bool closer_has_died(std::uint64_t word) {
  return sys::has_ended(static_cast<std::uint32_t>(word >> Slot::kCloser) &
                        ~static_cast<std::uint32_t>(Slot::kSendsAgain));
}

void count_bytes_before(int fd, Slot& slot) {
  tcp_info info{};
  std::size_t queued = 0;
  std::uint64_t sent = 0;
  if (!sent_by_tcp(fd, &sent) || !received_by_tcp(fd, &info, &queued)) return;
  // A FIN may be counted as a byte: what is too few by it does no harm.
  const std::uint64_t fin =
      info.tcpi_state != BPF_TCP_ESTABLISHED && info.tcpi_bytes_received > queued ? 1 : 0;
  // relaxed: read behind the closed gates
  slot.sent.store(sent, std::memory_order_relaxed);
  slot.received.store(info.tcpi_bytes_received - queued - fin, std::memory_order_relaxed);
}

bool share_slot(Socket& s, Slot* shared) {
  // A call that is under way in the kernel is counted there, and not here: no move, then.
  const bool closed = close_for_good(s);
  // PAIR preload.slot: read below
  if (!closed && !s.shared()) s.own_slot.pinned.store(1, std::memory_order_seq_cst);
  // PAIR preload.resending: sees whose it is: the new counter is opened
  if (!closed && s.resending.load(std::memory_order_acquire)) {
    while (!Slot::try_close(s.own_slot.receives, closer_id())) sched_yield();
    // relaxed: behind `resending`; published with `slot`, and by fork
    const std::uint64_t closed_by =
        s.own_slot.sends.load(std::memory_order_relaxed) & ~std::uint64_t{Slot::kClosed - 1};
    shared->sends.store(closed_by, std::memory_order_relaxed);  // relaxed: as above
  }
  // relaxed: nobody changes them behind the closed gates; what is shared has them since before
  const auto copy = [](auto& to, const auto& from) {
    to.store(from.load(std::memory_order_relaxed), std::memory_order_relaxed);
  };
  copy(shared->alone, s.own_slot.alone);
  copy(shared->sent, s.own_slot.sent);
  copy(shared->received, s.own_slot.received);
  copy(shared->pipe_pid, s.own_slot.pipe_pid);
  copy(shared->pipe_fd, s.own_slot.pipe_fd);
  copy(shared->pipe_end, s.own_slot.pipe_end);
  copy(shared->to_follow, s.own_slot.to_follow);
  copy(shared->again.name, s.own_slot.again.name);
  copy(shared->again.base, s.own_slot.again.base);
  copy(shared->again.resent, s.own_slot.again.resent);
  copy(shared->again.given, s.own_slot.again.given);
  copy(shared->again.file, s.own_slot.again.file);
  // PAIR preload.slot: what pins it from now on looks at `slot` again, see keep_on_tcp()
  const std::int32_t pinned = s.own_slot.pinned.load(std::memory_order_seq_cst);
  shared->pinned.store(pinned, std::memory_order_relaxed);  // relaxed: published with `slot`
  s.slot.store(shared, std::memory_order_seq_cst);  // PAIR preload.slot: publishes its counters
  return pinned == 0;
}

bool leave_slot(Socket& s) {
  Slot& slot = s.open_file();
  // PAIR preload.to_follow: this process is none of them
  if (!dekker::swap(s.not_to_follow, true)) dekker::subtract(slot.to_follow, 1);
  // PAIR preload.held: first, as one that arrives counts itself among those to follow before
  const bool on_its_way = Slot::on_its_way(dekker::look(slot.held)) > 0;
  // PAIR preload.to_follow
  const bool others = on_its_way || dekker::look(slot.to_follow) > 0;
  // PAIR preload.held: a user less
  if (!dekker::swap(s.left_slot, true)) dekker::subtract(slot.held, 1);
  return others;
}

}  // namespace clan::preload
