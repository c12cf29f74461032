// Completed descriptors: Done and Wait of a VI.
#include "segments.h"
#include "vi.h"

namespace clan::via {
namespace {

enum class Look { kGlance, kWhole };

// Takes the first descriptor of a queue. Only the first: they complete in the order of posting.
[[gnu::always_inline]] inline VIP_RETURN take(Vi& vi, WorkQueue Vi::*member,
                                              VIP_DESCRIPTOR** descriptor, Look how) {
  WorkQueue& queue = vi.*member;
  if (queue.completed == 0) {
    const bool eighth = ++vi.looks % 8 == 0;
    if (how == Look::kWhole || eighth || !vi.is_quiet())
      vi.progress(&queue == &vi.receives ? Vi::Until::kReceived : Vi::Until::kEmpty);
    if (queue.posted.empty()) return VIP_DESCRIPTOR_ERROR;
    if (queue.completed == 0) {
      // A peer that copies a long message to this process has it done sooner by two, all the more
      // if the second begins at once.
      const bool is_long = &queue == &vi.receives && queue.posted.front().space > kCopyLimit;
      if (eighth || is_long) RdmaQueue::help(provider()->context);
      return VIP_NOT_DONE;
    }
  }
  *descriptor = queue.posted.front().descriptor;
  const bool known = vi.is_there(queue.posted.front());
  queue.posted.pop();
  --queue.completed;
  if (&queue == &vi.sends) {
    --vi.started;
  } else if (vi.told > 0) {
    --vi.told;
  }
  const std::uint32_t status = known ? (*descriptor)->CS.Status : VIP_STATUS_PROTECTION_ERROR;
  return (status & VIP_STATUS_ERROR_MASK) == 0 ? VIP_SUCCESS : VIP_DESCRIPTOR_ERROR;
}

// What wait_for() does once the first look has found nothing.
VIP_RETURN wait_longer(Vi& vi, WorkQueue Vi::*member, std::uint64_t deadline_ns,
                       const std::atomic<bool>* ends, VIP_DESCRIPTOR** descriptor) {
  VIP_RETURN rc = VIP_NOT_DONE;
  const auto look_as = [&](Look how) {
    if (ends != nullptr && dekker::load(*ends)) return true;
    const Held held(vi);
    if (vi.magic == 0) rc = VIP_INVALID_PARAMETER;
    if (rc != VIP_NOT_DONE) return true;
    // If the call waits for the sake of a handler, a descriptor may be posted later.
    if (ends != nullptr && (vi.*member).posted.empty()) return false;
    rc = take(vi, member, descriptor, how);
    return rc != VIP_NOT_DONE;
  };
  if (vi.waiter.spin([&] { return look_as(Look::kGlance); }, {}, deadline_ns))
    return rc == VIP_NOT_DONE ? VIP_TIMEOUT : rc;
  Place* place = nullptr;
  {
    const Held held(vi);
    place = vi.place_of(vi.*member);
  }
  if (place == nullptr) return VIP_ERROR_RESOURCE;
  const auto serve = [&](std::span<const Event> events) {
    Cq* const cq = (vi.*member).cq;
    if (cq == nullptr) return;
    cq->serve(events);
    while (cq->more()) cq->serve({});  // this thread does not check its other VIs again
  };
  const auto expect = [&](bool events) {
    if (Cq* const cq = (vi.*member).cq; cq != nullptr) return events ? cq->expect_events() : void();
    const Held held(vi);
    if (vi.receives.cq == nullptr) vi.expect_events(events);
  };
  (void)place->wait(
      deadline_ns, [&] { return look_as(Look::kWhole); }, serve, expect);
  vi.waiter.slept();
  return rc == VIP_NOT_DONE ? VIP_TIMEOUT : rc;
}

[[gnu::always_inline]] inline VIP_RETURN done(VIP_VI_HANDLE handle, WorkQueue Vi::*member,
                                              VIP_DESCRIPTOR** descriptor) {
  Vi* vi = nullptr;
  if (const VIP_RETURN rc = find(handle, &vi); rc != VIP_SUCCESS) return rc;
  if (descriptor == nullptr) return VIP_INVALID_PARAMETER;
  *descriptor = nullptr;
  const Held held(*vi);
  return take(*vi, member, descriptor, Look::kGlance);
}

VIP_RETURN wait(VIP_VI_HANDLE handle, WorkQueue Vi::*member, VIP_ULONG timeout_ms,
                VIP_DESCRIPTOR** descriptor) {
  Vi* vi = nullptr;
  if (const VIP_RETURN rc = find(handle, &vi); rc != VIP_SUCCESS) return rc;
  if (descriptor == nullptr) return VIP_INVALID_PARAMETER;
  *descriptor = nullptr;
  return wait_for(*vi, member, deadline_of(timeout_ms), nullptr, descriptor);
}

}  // namespace

VIP_RETURN wait_for(Vi& vi, WorkQueue Vi::*member, std::uint64_t deadline_ns,
                    const std::atomic<bool>* ends, VIP_DESCRIPTOR** descriptor) {
  VIP_RETURN rc = VIP_NOT_DONE;
  {
    const Held held(vi);
    if (ends == nullptr) rc = take(vi, member, descriptor, Look::kGlance);
    if (rc != VIP_NOT_DONE) return rc;
    ++vi.users;
  }
  rc = wait_longer(vi, member, deadline_ns, ends, descriptor);
  leave(vi);
  return rc;
}

}  // namespace clan::via

using namespace clan::via;

extern "C" CLAN_EXPORT VIP_RETURN VipSendDone(VIP_VI_HANDLE vi, VIP_DESCRIPTOR** descriptor) {
  return done(vi, &Vi::sends, descriptor);
}
extern "C" CLAN_EXPORT VIP_RETURN VipRecvDone(VIP_VI_HANDLE vi, VIP_DESCRIPTOR** descriptor) {
  return done(vi, &Vi::receives, descriptor);
}
extern "C" CLAN_EXPORT VIP_RETURN VipSendWait(VIP_VI_HANDLE vi, VIP_ULONG timeout_ms,
                                              VIP_DESCRIPTOR** descriptor) {
  return clan::via::wait(vi, &Vi::sends, timeout_ms, descriptor);
}
extern "C" CLAN_EXPORT VIP_RETURN VipRecvWait(VIP_VI_HANDLE vi, VIP_ULONG timeout_ms,
                                              VIP_DESCRIPTOR** descriptor) {
  return clan::via::wait(vi, &Vi::receives, timeout_ms, descriptor);
}
