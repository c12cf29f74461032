// Completion queues (via-over-clan 3.6): the engine's event queue says which VIs to check; the
// entries are the library's, one for each descriptor.
#include <algorithm>

#include "notify.h"
#include "vi.h"

namespace clan::via {

void Cq::push(Vi& vi, bool receive) {
  {
    std::lock_guard lock(mutex);
    // Kept all the same: none is lost.
    if (entries.size() == capacity) vi.report_overrun(*this);
    entries.push() = {&vi, receive};
    // relaxed: a glance of VipCQDone()
    count.store(entries.size(), std::memory_order_relaxed);
  }
  place->wake();
}

bool Cq::take(Entry* entry) {
  std::lock_guard lock(mutex);
  if (entries.empty()) return false;
  *entry = entries.front();
  entries.pop();
  count.store(entries.size(), std::memory_order_relaxed);  // relaxed: VipCQDone() glances
  return true;
}

void Cq::serve(std::span<const Event> events) {
  Reports reports;
  {
    std::lock_guard lock(members_mutex);
    std::vector<Vi*> now;
    if (events.empty()) now.swap(again);
    for (Vi* const vi : now) {
      vi->again = false;
      serve(*vi, &reports);
    }
    for (const Event& event : events) {
      if (event.kind != EventKind::kStream || event.tag >= members.size()) continue;
      if (Vi* const vi = members[event.tag]; vi != nullptr) serve(*vi, &reports);
    }
    has_again.store(!again.empty(), std::memory_order_relaxed);  // relaxed: see more()
  }
  if (!reports.empty()) tell(reports);
}

// Under members_mutex. What lies behind a message is taken when there is nothing else to do.
// Nothing lies there that this queue is to find where the VI has no receive left, unless the peer
// has gone: what the peer sends to one that is posted from now on is another event.
void Cq::serve(Vi& vi, Reports* reports) {
  const Held held(vi, reports);
  const WorkQueue& receives = vi.receives;
  const std::size_t before = receives.completed;
  vi.progress(Vi::Until::kReceived);
  if (receives.completed == before || vi.again) return;
  if (receives.completed == receives.posted.size() && vi.connected && !vi.stream->ended()) return;
  vi.again = true;
  again.push_back(&vi);
}

void Cq::poll() {
  if (network) place->events().fetch();
  // Not set to zero, which takes as long as a look for events.
  alignas(Event) std::byte room[32 * sizeof(Event)];
  const std::span<Event> events(reinterpret_cast<Event*>(room), 32);
  if (const std::size_t n = place->events().poll(events); n > 0 || more()) serve(events.first(n));
}

bool Cq::find(Entry* entry) {
  while (!take(entry)) {
    if (!more()) return false;
    serve({});
  }
  return true;
}

bool Cq::wait(std::uint64_t deadline_ns, const std::atomic<bool>* ends, Entry* entry) {
  bool took = false;
  const auto look = [&] {
    if (ends != nullptr && dekker::load(*ends)) return true;
    return took = find(entry);
  };
  (void)place->wait(
      deadline_ns, look, [this](std::span<const Event> events) { serve(events); }, [](bool) {});
  return took;
}

void Cq::add(Vi& vi, bool receives) {
  std::lock_guard lock(members_mutex);
  ++users;
  if (!receives) return;
  const auto free = std::find(members.begin(), members.end(), nullptr);
  vi.tag = static_cast<std::uint32_t>(free - members.begin());
  if (free == members.end()) members.push_back(nullptr);
  members[vi.tag] = &vi;
}

void Cq::remove(Vi& vi, bool receives) {
  std::lock_guard lock(members_mutex);
  --users;
  if (receives) members[vi.tag] = nullptr;
  std::erase(again, &vi);
  std::lock_guard entries_lock(mutex);
  for (std::size_t n = entries.size(); n > 0; --n) {
    const Entry entry = entries.front();
    entries.pop();
    if (entry.vi != &vi) entries.push() = entry;
  }
  count.store(entries.size(), std::memory_order_relaxed);  // relaxed: as in push()
}

}  // namespace clan::via

using namespace clan::via;

namespace {

constexpr VIP_ULONG kMostEntries = 1ul << 20;

VIP_RETURN give(const Cq::Entry& entry, VIP_VI_HANDLE* vi, VIP_BOOLEAN* receive) {
  *vi = entry.vi;
  *receive = entry.receive ? VIP_TRUE : VIP_FALSE;
  return VIP_SUCCESS;
}

}  // namespace

extern "C" CLAN_EXPORT VIP_RETURN VipCreateCQ(VIP_NIC_HANDLE handle, VIP_ULONG entries,
                                              VIP_CQ_HANDLE* made) {
  Nic* nic = nullptr;
  if (const VIP_RETURN rc = find(handle, &nic); rc != VIP_SUCCESS) return rc;
  if (made == nullptr || entries == 0) return VIP_INVALID_PARAMETER;
  if (entries > kMostEntries) return VIP_ERROR_RESOURCE;
  auto cq = std::make_unique<Cq>();
  cq->place = Place::create(provider()->context);
  if (!cq->place) return VIP_ERROR_RESOURCE;
  cq->nic = nic;
  cq->network = provider()->network;
  cq->capacity = entries;
  nic->use();
  *made = cq.release();
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipDestroyCQ(VIP_CQ_HANDLE handle) {
  Cq* cq = nullptr;
  if (const VIP_RETURN rc = find(handle, &cq); rc != VIP_SUCCESS) return rc;
  {
    std::lock_guard lock(cq->members_mutex);
    if (cq->users > 0) return VIP_ERROR_RESOURCE;
  }
  cq->notifier.reset();
  cq->magic = 0;
  cq->nic->leave();
  delete cq;
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipResizeCQ(VIP_CQ_HANDLE handle, VIP_ULONG entries) {
  Cq* cq = nullptr;
  if (const VIP_RETURN rc = find(handle, &cq); rc != VIP_SUCCESS) return rc;
  if (entries == 0) return VIP_INVALID_PARAMETER;
  std::lock_guard lock(cq->mutex);
  if (entries > kMostEntries || entries < cq->entries.size()) return VIP_ERROR_RESOURCE;
  cq->capacity = entries;
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipCQDone(VIP_CQ_HANDLE handle, VIP_VI_HANDLE* vi,
                                            VIP_BOOLEAN* receive) {
  Cq* cq = nullptr;
  if (const VIP_RETURN rc = find(handle, &cq); rc != VIP_SUCCESS) return rc;
  if (vi == nullptr || receive == nullptr) return VIP_INVALID_PARAMETER;
  Cq::Entry entry;
  if (cq->is_empty()) cq->poll();
  return !cq->is_empty() && cq->take(&entry) ? give(entry, vi, receive) : VIP_NOT_DONE;
}

extern "C" CLAN_EXPORT VIP_RETURN VipCQWait(VIP_CQ_HANDLE handle, VIP_ULONG timeout_ms,
                                            VIP_VI_HANDLE* vi, VIP_BOOLEAN* receive) {
  Cq* cq = nullptr;
  if (const VIP_RETURN rc = find(handle, &cq); rc != VIP_SUCCESS) return rc;
  if (vi == nullptr || receive == nullptr) return VIP_INVALID_PARAMETER;
  Cq::Entry entry;
  return cq->wait(deadline_of(timeout_ms), nullptr, &entry) ? give(entry, vi, receive)
                                                            : VIP_TIMEOUT;
}
