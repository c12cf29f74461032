// Orders the events of one epoll_wait() as they became ready, like the kernel.
//
// The kernel keeps a list: a descriptor enters it when it becomes ready, and again, at the end,
// when it is reported level-triggered. Moved sockets carry the time at which their bytes were
// written (PipeStamp), which orders them among themselves. For plain descriptors the kernel gives
// only their order, and that they became ready after it was last asked. What relates the two:
//
//   - a ring in the kernel's answer: what is listed before it was ready before the ring. A moved
//     socket with news on TCP (bytes or the end) is in the list itself, like a plain one
//   - a record says when its writer last wrote past pipes: a plain descriptor that became ready
//     since the kernel was last asked is put at that time
//
// So one thread's writes are reported in order. Unsynchronized writes of two threads have none.
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <cstdint>

#include "clan/detail/cpu.h"
#include "clan/face/pipe.h"

namespace clan::preload {

struct Interest;

/// How far the edges of a socket have been reported.
struct ReportedEdges {
  std::uint64_t in = ~std::uint64_t{0};  ///< in_stamp()
  std::uint32_t full = 0;                ///< Socket::full
  bool out = false;                      ///< room has been reported
};

/// A ready descriptor of the answer under way. Times: order_stamp(), 48 bits.
struct ReadyEvent {
  Interest* interest = nullptr;  ///< null: only the kernel knows it
  epoll_event event{};
  std::uint64_t since = 0;        ///< when it became ready, or was last reported
  std::uint64_t edge = 0;         ///< changes with each edge
  std::uint64_t floor = 0;        ///< it was not ready before; 0: unknown
  bool by_kernel = false;         ///< the kernel's order places it
  PipeStamp last_kernel_write{};  ///< from the record in front
  std::uint32_t index = 0;        ///< scratch of put_in_order()
};

/// Returns when bytes written at `stamp` became readable for one that asked at `since`.
inline std::uint64_t later(PipeStamp stamp, std::uint64_t since) {
  return stamp.word == 0 || PipeStamp::before(stamp.time(), since) ? since : stamp.time();
}

/// The times of one answer of the kernel, taken in from front to end.
class KernelOrder {
 public:
  explicit KernelOrder(std::uint64_t now) : now_(now & PipeStamp::kTimeMask) {}
  /// Places what only the kernel knows: it was ready when the kernel answered, at the latest.
  void place(ReadyEvent& found) const {
    found.since = now_;
    found.floor = floor_;
    found.by_kernel = true;
  }
  ReadyEvent plain(const epoll_event& event) const {
    ReadyEvent found;
    found.event = event;
    place(found);
    return found;
  }
  /// Takes in a ring for bytes written at `time`. [first, last): what came before it.
  void ring(ReadyEvent* first, ReadyEvent* last, std::uint64_t time) {
    for (; first != last; ++first) {
      if (first->by_kernel && PipeStamp::before(time, first->since)) first->since = time - 1;
    }
    floor_ = (time + 1) & PipeStamp::kTimeMask;
  }

 private:
  std::uint64_t now_, floor_ = 0;
};

/// Puts `count` events in order. `low`: no plain one was ready before that.
inline void put_in_order(ReadyEvent* found, std::uint32_t count, std::uint64_t low) {
  constexpr std::uint64_t kMask = PipeStamp::kTimeMask;
  for (std::uint32_t k = 0; k < count; ++k) {
    const PipeStamp stamp = found[k].last_kernel_write;
    if (found[k].interest == nullptr || stamp.word == 0 || !stamp.has_kernel_write()) continue;
    const std::uint64_t wrote = stamp.last_kernel_write();
    if (PipeStamp::before(wrote, low)) continue;
    for (std::uint32_t p = 0; p < count; ++p) {
      ReadyEvent& plain = found[p];
      if (!plain.by_kernel || !PipeStamp::before(wrote, plain.since)) continue;
      plain.since = plain.floor != 0 && PipeStamp::before(wrote, plain.floor) ? plain.floor : wrote;
    }
  }
  // In any case the kernel's own order holds among its events.
  const ReadyEvent* last = nullptr;
  for (std::uint32_t p = 0; p < count; ++p) {
    if (!found[p].by_kernel) continue;
    if (last != nullptr && PipeStamp::before(found[p].since, last->since))
      found[p].since = last->since;
    last = found + p;
  }
  // Ages have an order whatever a writer claims; times wrap.
  const std::uint64_t now = order_stamp() & kMask;
  for (std::uint32_t k = 0; k < count; ++k) {
    const std::uint64_t age = (now - found[k].since) & kMask;
    found[k].since = age > kMask / 2 ? 0 : age;
    found[k].index = k;
  }
  std::sort(found, found + count, [](const ReadyEvent& a, const ReadyEvent& b) {
    return a.since != b.since ? a.since > b.since : a.index < b.index;
  });
}

}  // namespace clan::preload
