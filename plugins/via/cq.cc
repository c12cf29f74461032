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

// The lines of all rings are on their way before the first is read.
void Cq::serve(std::span<const Event> events) {
  Reports reports;
  {
    std::lock_guard lock(members_mutex);
    std::array<Vi*, kMostEvents> batch;
    std::array<bool, kMostEvents> idle;
    std::size_t n = 0;
    for (const Event& event : events) {
      Vi* const vi = event.tag < members.size() ? members[event.tag] : nullptr;
      if (event.kind == EventKind::kStream && vi != nullptr) batch[n++] = vi;
    }
    for (std::size_t left = events.empty() ? again.size() : 0; n < batch.size() && left > 0; --left)
      batch[n++] = again[turn = turn + 1 < again.size() ? turn + 1 : 0];
    for (std::size_t i = 0; i < n; ++i) {
      // relaxed: an old address does no harm
      const auto* const front = batch[i]->front.load(std::memory_order_relaxed);
      __builtin_prefetch(front);
      // Where no event says that there is a message, the peer may be about to write the next line.
      if (!events.empty() && front != nullptr)
        __builtin_prefetch(static_cast<const std::byte*>(front) + 64);
    }
    for (std::size_t i = 0; i < n; ++i) idle[i] = events.empty() && is_idle(*batch[i]);
    for (std::size_t i = 0; i < n; ++i) {
      const bool stays = idle[i] || serve(*batch[i], &reports);
      if (std::exchange(batch[i]->again, stays) == stays) continue;
      stays ? again.push_back(batch[i]) : forget(batch[i]);
    }
    has_again.store(!again.empty(), std::memory_order_relaxed);  // relaxed: see more()
    users += !reports.empty();
  }
  if (reports.empty()) return;
  tell(reports);
  leave();
}

void Cq::use() {
  std::lock_guard lock(members_mutex);
  ++users;
}

void Cq::leave() {
  std::lock_guard lock(members_mutex);
  --users;
}

// No message in many polls.
inline bool Cq::is_rare(const Vi& vi) const {
  return polls.load(std::memory_order_relaxed) - vi.last_poll > kRarely;  // relaxed: a hint
}

// Under members_mutex: takes a VI out of `again`. The turn stays where it is, so that a pass over
// all checks each that is left.
void Cq::forget(const Vi* vi) {
  const auto at = std::find(again.begin(), again.end(), vi);
  if (at == again.end()) return;
  if (static_cast<std::size_t>(at - again.begin()) < turn + 1) --turn;  // -1: the first is next
  again.erase(at);
}

// Under members_mutex: a thread polls the VI, which has nothing now.
bool Cq::is_idle(Vi& vi) {
  std::lock_guard lock(vi.mutex);
  return vi.is_quiet() && vi.paused && !is_rare(vi);
}

// Under members_mutex; whether the VI is to be checked again without an event. What lies behind a
// message is taken when there is nothing else to do. Nothing lies there that this queue is to find
// where the VI has no receive left, unless the peer has gone: what the peer sends to one that is
// posted from now on is another event.
bool Cq::serve(Vi& vi, Reports* reports) {
  const Held held(vi, reports);
  const WorkQueue& receives = vi.receives;
  const std::size_t before = receives.completed;
  vi.progress(Vi::Until::kReceived);
  if (receives.completed == before) {
    if (is_rare(vi)) vi.expect_events(true);
    return vi.paused;
  }
  const std::uint32_t now = polls.load(std::memory_order_relaxed);  // relaxed: a hint
  // relaxed: for a prefetch
  if (vi.connected) vi.front.store(vi.stream->next_record(), std::memory_order_relaxed);
  const bool often = now >= kRarely && now - std::exchange(vi.last_poll, now) <= kOften;
  // A thread that waits here would not learn of what comes without an event.
  if (often && members.size() <= kFew && !place->has_waiters()) vi.expect_events(false);
  return vi.paused || receives.completed != receives.posted.size() || !vi.connected ||
         vi.stream->ended();
}

void Cq::poll() {
  // relaxed: roughly their number
  polls.store(polls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (network) place->events().fetch();
  // Not set to zero, which takes as long as a look for events.
  alignas(Event) std::byte room[kMostEvents * sizeof(Event)];
  const std::span<Event> events(reinterpret_cast<Event*>(room), kMostEvents);
  if (const std::size_t n = place->events().poll(events); n > 0 || more()) serve(events.first(n));
}

// A thread that polls sees in Place that this one waits, or has let go of the lock before.
void Cq::expect_events() {
  std::lock_guard lock(members_mutex);
  polls.store(0, std::memory_order_relaxed);  // relaxed: a hint
  std::erase_if(again, [](Vi* vi) {
    std::lock_guard vi_lock(vi->mutex);
    if (!vi->paused) return false;
    vi->expect_events(true);
    return !(vi->again = false);
  });
}

// Checks all of `again`: without an event, a thread that sleeps would not learn of what is there.
bool Cq::find(Entry* entry) {
  std::size_t left = 0;
  if (more()) {
    std::lock_guard lock(members_mutex);
    left = again.size();
  }
  for (; !take(entry); left -= std::min(left, kMostEvents)) {
    if (left == 0) return false;
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
      deadline_ns, look, [this](std::span<const Event> events) { serve(events); },
      [this](bool events) {
        if (events) expect_events();
      });
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
  forget(&vi);
  std::lock_guard entries_lock(mutex);
  entries.erase_if([&](const Entry& entry) { return entry.vi == &vi; });
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
  cq->use();
  const bool took = cq->wait(deadline_of(timeout_ms), nullptr, &entry);
  cq->leave();
  return took ? give(entry, vi, receive) : VIP_TIMEOUT;
}
