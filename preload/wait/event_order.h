// The order of the events that one epoll_wait() answers: that in which they became ready, as in the
// kernel.
//
// The kernel keeps a list. A descriptor enters it when it becomes ready, and one that has been
// reported by level enters it again at that moment, behind those that are still to be reported.
// Sockets that have moved carry the time at which their bytes were written (PipeStamp), so they are
// put in order among themselves. The kernel gives only the order of the others among themselves,
// and that they became ready after it was last asked. Between the two kinds come:
//
//   - a ring in the kernel's answer: what it lists in front was ready before the ring was
//     rung. A socket that has migrated and whose news are still TCP's (its bytes, its end) is there
//     itself, as a plain one
//   - what the writer of a record says of itself: when it last wrote past pipes. A plain descriptor
//     that became ready since the kernel was last asked is put there.
//
// So the writes of one thread are reported in their order. Writes of two threads that do not
// synchronize have no order.
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <cstdint>

#include "clan/detail/cpu.h"
#include "clan/face/pipe.h"

namespace clan::preload {

struct Interest;

/// Up to where the edges of a socket have been reported.
struct ReportedEdges {
  std::uint64_t in = ~std::uint64_t{0};  ///< in_stamp()
  std::uint32_t full = 0;                ///< Socket::full
  bool out = false;                      ///< room has been reported
};

/// A descriptor that is ready, while one answer is put together. Times: order_stamp(), 48 bits.
struct ReadyEvent {
  Interest* interest = nullptr;  ///< none: only the kernel knows of it
  epoll_event event{};
  std::uint64_t since = 0;        ///< ready, or reported last
  std::uint64_t edge = 0;         ///< what changes with each edge
  std::uint64_t floor = 0;        ///< not ready before this time; 0: unknown
  bool by_kernel = false;         ///< the kernel says where it is
  PipeStamp last_kernel_write{};  ///< of the record in front
  std::uint32_t index = 0;        ///< scratch of put_in_order()
};

/// When bytes became readable: written at `stamp`, asked for since `since`.
inline std::uint64_t later(PipeStamp stamp, std::uint64_t since) {
  return stamp.word == 0 || PipeStamp::before(stamp.time(), since) ? since : stamp.time();
}

/// The times of one answer of the kernel's, taken in from its front to its end.
class KernelOrder {
 public:
  explicit KernelOrder(std::uint64_t now) : now_(now & PipeStamp::kTimeMask) {}
  /// What only the kernel knows of: at the latest it was ready when the kernel answered.
  void place(ReadyEvent& found) const {
    found.since = now_;
    found.floor = floor_;
    found.by_kernel = true;
  }
  /// A plain descriptor.
  ReadyEvent plain(const epoll_event& event) const {
    ReadyEvent found;
    found.event = event;
    place(found);
    return found;
  }
  /// A ring for what was written at `time`. [first, last): what was in front of it.
  void ring(ReadyEvent* first, ReadyEvent* last, std::uint64_t time) {
    for (; first != last; ++first) {
      if (first->by_kernel && PipeStamp::before(time, first->since)) first->since = time - 1;
    }
    floor_ = (time + 1) & PipeStamp::kTimeMask;
  }

 private:
  std::uint64_t now_, floor_ = 0;
};

/// Puts `count` of them in order. `low`: before that none of the plain ones was ready.
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
  // Whatever is known of single ones, the kernel's own order holds among them.
  const ReadyEvent* last = nullptr;
  for (std::uint32_t p = 0; p < count; ++p) {
    if (!found[p].by_kernel) continue;
    if (last != nullptr && PipeStamp::before(found[p].since, last->since))
      found[p].since = last->since;
    last = found + p;
  }
  // Ages instead of times, which wrap: they have an order whatever a writer has said.
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
