// VipPostSend() and VipPostRecv().
#include "segments.h"
#include "vi.h"

namespace clan::via {
namespace {

// Whether the descriptor lies where its handle says; a program that errs gets an error both ways.
[[gnu::always_inline]] inline bool is_readable(Vi& vi, VIP_DESCRIPTOR* descriptor,
                                               VIP_MEM_HANDLE handle) {
  const Region* const region = vi.memory.find(handle);
  if (region != nullptr && covers(*region, descriptor, sizeof(VIP_DESCRIPTOR))) {
    const std::size_t segments = descriptor->CS.SegCount;
    const std::size_t bytes =
        sizeof(VIP_CONTROL_SEGMENT) + segments * sizeof(VIP_DESCRIPTOR_SEGMENT);
    if (segments > kMostSegments || covers(*region, descriptor, bytes)) return true;
  }
  vi.report(VIP_ERROR_POST_DESC, VIP_RESOURCE_DESCRIPTOR, descriptor);
  return false;
}

bool is_aligned(const VIP_DESCRIPTOR* descriptor) {
  return descriptor != nullptr &&
         reinterpret_cast<std::uintptr_t>(descriptor) % VIP_DESCRIPTOR_ALIGNMENT == 0;
}

[[gnu::always_inline]] inline Work& add_work(Vi& vi, WorkQueue& queue, VIP_DESCRIPTOR* descriptor,
                                             VIP_MEM_HANDLE handle) {
  Work& work = queue.posted.push();
  work.changes = vi.memory.changes();
  work.descriptor = descriptor;
  work.handle = handle;
  work.bad = work.segments = 0;
  work.counted = 0;
  descriptor->CS.Status = 0;
  return work;
}

}  // namespace
}  // namespace clan::via

using namespace clan::via;

extern "C" CLAN_EXPORT VIP_RETURN VipPostSend(VIP_VI_HANDLE handle, VIP_DESCRIPTOR* descriptor,
                                              VIP_MEM_HANDLE memory) {
  Vi* vi = nullptr;
  if (const VIP_RETURN rc = find(handle, &vi); rc != VIP_SUCCESS) return rc;
  if (!is_aligned(descriptor)) return VIP_INVALID_PARAMETER;
  const Held held(*vi);
  if (vi->state != VIP_STATE_CONNECTED && vi->state != VIP_STATE_ERROR) return VIP_INVALID_STATE;
  if (vi->sends.posted.size() >= kMostDescriptors) return VIP_ERROR_RESOURCE;
  if (!is_readable(*vi, descriptor, memory)) return VIP_INVALID_PARAMETER;
  add_work(*vi, vi->sends, descriptor, memory);
  vi->pump();
  vi->attend();
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipPostRecv(VIP_VI_HANDLE handle, VIP_DESCRIPTOR* descriptor,
                                              VIP_MEM_HANDLE memory) {
  Vi* vi = nullptr;
  if (const VIP_RETURN rc = find(handle, &vi); rc != VIP_SUCCESS) return rc;
  if (!is_aligned(descriptor)) return VIP_INVALID_PARAMETER;
  const Held held(*vi);
  if (vi->receives.posted.size() >= kMostDescriptors) return VIP_ERROR_RESOURCE;
  if (!is_readable(*vi, descriptor, memory)) return VIP_INVALID_PARAMETER;
  Work& work = add_work(*vi, vi->receives, descriptor, memory);
  if (vi->state == VIP_STATE_ERROR) {
    vi->flush();
    return VIP_SUCCESS;
  }
  work.bad = (descriptor->CS.Control & VIP_CONTROL_OP_MASK) != VIP_CONTROL_OP_SENDRECV
                 ? VIP_STATUS_FORMAT_ERROR
                 : vi->check_receive(*descriptor, &work.space);
  if (work.bad != 0) vi->end_bad_receives();
  if (vi->stream) vi->tell_buffers();
  vi->attend();
  return VIP_SUCCESS;
}
