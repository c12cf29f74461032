// VIs as objects: made, queried, changed and destroyed.
#include "address.h"
#include "notify.h"
#include "vi.h"

namespace clan::via {
namespace {

VIP_RETURN check(VIP_VI_ATTRIBUTES* attributes) {
  const std::uint16_t level = attributes->ReliabilityLevel;
  if (level != VIP_SERVICE_UNRELIABLE && level != VIP_SERVICE_RELIABLE_DELIVERY &&
      level != VIP_SERVICE_RELIABLE_RECEPTION) {
    return VIP_INVALID_RELIABILITY_LEVEL;
  }
  if (attributes->MaxTransferSize > limits().MaxTransferSize) return VIP_INVALID_MTU;
  if (attributes->MaxTransferSize == 0) attributes->MaxTransferSize = limits().MaxTransferSize;
  if (const VIP_RETURN rc = check_tag(attributes->Ptag); rc != VIP_SUCCESS) return rc;
  if (attributes->EnableRdmaRead && (limits().RDMAReadSupport & level) == 0)
    return VIP_INVALID_RDMAREAD;
  return VIP_SUCCESS;
}

// A null handle is no CQ.
VIP_RETURN find_cq(VIP_CQ_HANDLE handle, Cq** cq) {
  return handle == nullptr ? VIP_SUCCESS : find(handle, cq);
}

}  // namespace

void leave(Vi& vi) {
  bool is_last = false;
  {
    const Held held(vi);
    is_last = --vi.users == 0 && vi.magic == 0;
  }
  if (!is_last) return;
  if (vi.sends.cq != nullptr) vi.sends.cq->remove(vi, false);
  if (vi.receives.cq != nullptr) vi.receives.cq->remove(vi, true);
  provider()->bulk.remove(vi);
  leave_tag(vi.attributes.Ptag);
  vi.nic.leave();
  delete &vi;
}

}  // namespace clan::via

using namespace clan::via;
namespace words = clan::words;

extern "C" CLAN_EXPORT VIP_RETURN VipCreateVi(VIP_NIC_HANDLE handle, VIP_VI_ATTRIBUTES* wanted,
                                              VIP_CQ_HANDLE send, VIP_CQ_HANDLE receive,
                                              VIP_VI_HANDLE* made) {
  static std::atomic<std::uint32_t> numbers{0};
  Nic* nic = nullptr;
  if (const VIP_RETURN rc = find(handle, &nic); rc != VIP_SUCCESS) return rc;
  if (wanted == nullptr || made == nullptr) return VIP_INVALID_PARAMETER;
  Cq *send_cq = nullptr, *receive_cq = nullptr;
  if (const VIP_RETURN rc = find_cq(send, &send_cq); rc != VIP_SUCCESS) return rc;
  if (const VIP_RETURN rc = find_cq(receive, &receive_cq); rc != VIP_SUCCESS) return rc;
  VIP_VI_ATTRIBUTES attributes = *wanted;
  if (const VIP_RETURN rc = check(&attributes); rc != VIP_SUCCESS) return rc;
  auto* const vi = new Vi(*nic, attributes);
  vi->number = numbers.fetch_add(1, std::memory_order_relaxed);  // relaxed: a number
  vi->sends.cq = send_cq;
  vi->receives.cq = receive_cq;
  if (send_cq != nullptr) send_cq->add(*vi, false);
  if (receive_cq != nullptr) receive_cq->add(*vi, true);
  use_tag(attributes.Ptag);
  nic->use();
  *made = vi;
  return VIP_SUCCESS;
}

// Descriptors that are complete and have not been taken go with it. The caller may be an error
// handler in a thread that waits on the VI, which deletes it then.
extern "C" CLAN_EXPORT VIP_RETURN VipDestroyVi(VIP_VI_HANDLE handle) {
  Vi* vi = nullptr;
  if (const VIP_RETURN rc = find(handle, &vi); rc != VIP_SUCCESS) return rc;
  {
    const Held held(*vi);
    if (vi->state != VIP_STATE_IDLE || vi->receives.completed < vi->receives.posted.size() ||
        vi->sends.completed < vi->sends.posted.size()) {
      return VIP_INVALID_STATE;
    }
    vi->magic = 0;
    ++vi->users;
  }
  vi->sends.notifier.reset();
  vi->receives.notifier.reset();
  leave(*vi);
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipSetViAttributes(VIP_VI_HANDLE handle,
                                                     VIP_VI_ATTRIBUTES* wanted) {
  Vi* vi = nullptr;
  if (const VIP_RETURN rc = find(handle, &vi); rc != VIP_SUCCESS) return rc;
  if (wanted == nullptr) return VIP_INVALID_PARAMETER;
  VIP_VI_ATTRIBUTES attributes = *wanted;
  if (const VIP_RETURN rc = check(&attributes); rc != VIP_SUCCESS) return rc;
  const Held held(*vi);
  if (vi->state != VIP_STATE_IDLE) return VIP_INVALID_STATE;
  leave_tag(vi->attributes.Ptag);
  use_tag(attributes.Ptag);
  vi->attributes = attributes;
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipQueryVi(VIP_VI_HANDLE handle, VIP_VI_STATE* state,
                                             VIP_VI_ATTRIBUTES* attributes,
                                             VIP_BOOLEAN* sends_empty,
                                             VIP_BOOLEAN* receives_empty) {
  Vi* vi = nullptr;
  if (const VIP_RETURN rc = find(handle, &vi); rc != VIP_SUCCESS) return rc;
  const Held held(*vi);
  vi->progress();
  if (state != nullptr) *state = vi->state;
  if (attributes != nullptr) *attributes = vi->attributes;
  if (sends_empty != nullptr) *sends_empty = vi->sends.posted.empty();
  if (receives_empty != nullptr) *receives_empty = vi->receives.posted.empty();
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipSetUserData(VIP_VI_HANDLE handle, VIP_PVOID data) {
  Vi* vi = nullptr;
  if (const VIP_RETURN rc = find(handle, &vi); rc != VIP_SUCCESS) return rc;
  words::store_release(vi->user_data, data);
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipGetUserData(VIP_VI_HANDLE handle, VIP_PVOID* data) {
  Vi* vi = nullptr;
  if (const VIP_RETURN rc = find(handle, &vi); rc != VIP_SUCCESS) return rc;
  if (data == nullptr) return VIP_INVALID_PARAMETER;
  *data = words::load_acquire(vi->user_data);
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipClanSetVi(VIP_VI_HANDLE handle,
                                               const VIP_CLAN_VI_OPTIONS* options) {
  Vi* vi = nullptr;
  if (const VIP_RETURN rc = find(handle, &vi); rc != VIP_SUCCESS) return rc;
  // A record has a quarter of the ring.
  if (options == nullptr || options->CopyLimit > 64 * 1024) return VIP_INVALID_PARAMETER;
  const Held held(*vi);
  if (vi->state != VIP_STATE_IDLE) return VIP_INVALID_STATE;
  vi->options = *options;
  return VIP_SUCCESS;
}
