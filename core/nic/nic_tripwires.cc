// The NIC's tripwires: their entries in the tables, arming, and the state words.
#include <algorithm>
#include <utility>

#include "clan/detail/dekker.h"
#include "clan/detail/words.h"
#include "nic/nic.h"

namespace clan::nic {

using shm::TripwireEntry;

Result<std::uint32_t> Nic::add_tripwire(const TripwireSpec& spec) {
  std::lock_guard lock(mutex_);
  if (spec.aperture >= apertures_.size() || !apertures_[spec.aperture].live) {
    return Error{EINVAL, "tripwire on an aperture that is not exported"};
  }
  LocalAperture& local = apertures_[spec.aperture];
  if (spec.length == 0 || spec.offset > local.spec.length ||
      spec.length > local.spec.length - spec.offset) {
    return Error{ERANGE, "tripwire outside its aperture"};
  }
  if ((spec.flags & (shm::kTripOnWrite | shm::kTripOnRead)) == 0) {
    return Error{EINVAL, "tripwire on neither write nor read"};
  }
  // One of the aperture's that is no longer in use, which stays in its chain, or a new one.
  const auto unused = std::find_if(local.tripwires.begin(), local.tripwires.end(),
                                   [&](std::uint32_t t) { return !tripwires_[t].in_use; });
  const bool chained = unused != local.tripwires.end();
  const auto index = chained ? *unused : static_cast<std::uint32_t>(tripwires_.size());
  if (!chained) {
    if (local.tripwires.size() >= 4096) return Error{ENOSPC, "4096 tripwires on one aperture"};
    if (index >= shm::kMaxTripwires) return Error{ENOSPC, "65536 tripwires are in use already"};
    tripwires_.emplace_back();
  }
  tripwires_[index] = {shm::chunk_mask(local.spec.length, spec.offset, spec.length), spec.aperture,
                       true};
  // relaxed: published by the chain, or unarmed and so unread
  const auto relaxed = std::memory_order_relaxed;
  disarm_signal(index);
  auto& state = image_.signals->tripwire_state[index / 64];
  state.fetch_and(~(std::uint64_t{1} << (index % 64)), std::memory_order_relaxed);
  TripwireEntry& entry = tables_->tripwires[index];
  entry.start.store(spec.offset, relaxed);
  entry.end.store(spec.offset + spec.length, relaxed);
  entry.aperture.store(spec.aperture, relaxed);
  entry.flags.store(spec.flags, relaxed);
  entry.queue.store(spec.queue, relaxed);
  entry.event.store(spec.event, relaxed);
  if (!chained) chain(spec.aperture, index);
  return index;
}

// At the end: the older of two tripwires fires first. Message endpoints post to their own queue
// before that of the application, which then looks there.
void Nic::chain(std::uint32_t aperture, std::uint32_t tripwire) {
  auto& tripwires = apertures_[aperture].tripwires;
  tables_->tripwires[tripwire].next.store(shm::kNoTripwire, std::memory_order_relaxed);
  auto& end = tripwires.empty() ? tables_->apertures[aperture].first_tripwire
                                : tables_->tripwires[tripwires.back()].next;
  // PAIR aperture.chain: publishes the entry to match_tripwires
  words::store_release(end, tripwire);
  tripwires.push_back(tripwire);
}

// It stays in its aperture's chain for reuse: unlinking under a walking peer could hide others.
void Nic::remove_tripwire(std::uint32_t tripwire) {
  std::lock_guard lock(mutex_);
  if (disarm_locked(tripwire)) tripwires_[tripwire].in_use = false;
}

void Nic::disarm(std::uint32_t tripwire) {
  std::lock_guard lock(mutex_);
  (void)disarm_locked(tripwire);
}

void Nic::rest(std::uint32_t tripwire) {
  std::lock_guard lock(mutex_);
  if (tripwire < tripwires_.size() && tripwires_[tripwire].in_use) disarm_signal(tripwire);
}

bool Nic::end_rest(std::uint32_t aperture) {
  std::lock_guard lock(mutex_);
  bool any = false;
  for (const std::uint32_t t : apertures_[aperture].tripwires) {
    // relaxed: as good as disarmed if a sender is about to fire it
    const auto armed = image_.signals->tripwires[t].armed.load(std::memory_order_relaxed);
    if (!tripwires_[t].shown || shm::is_armed(armed)) continue;
    if (std::exchange(tripwires_[t].armed_lately, false)) {
      any = true;
    } else {
      (void)disarm_locked(t);
    }
  }
  return any;
}

// False: there is none.
bool Nic::disarm_locked(std::uint32_t tripwire) {
  if (tripwire >= tripwires_.size() || !tripwires_[tripwire].in_use) return false;
  disarm_signal(tripwire);
  tripwires_[tripwire].shown = tripwires_[tripwire].fenced = false;
  ++withdrawals_;
  const std::uint32_t aperture = tripwires_[tripwire].aperture;
  std::uint64_t armed = 0;
  for (std::uint32_t t : apertures_[aperture].tripwires) {
    if (tripwires_[t].in_use && tripwires_[t].shown) armed |= tripwires_[t].chunks;
  }
  // PAIR aperture.armed: the entries behind the bits precede it
  tables_->apertures[aperture].armed.store(armed, std::memory_order_release);
  return true;
}

// It counts on: a sender that fires it for the last arming must not end the next one.
void Nic::disarm_signal(std::uint32_t tripwire) {
  auto& armed = image_.signals->tripwires[tripwire].armed;
  // relaxed: a sender that still sees it armed fires for nothing
  armed.store(shm::disarmed_after(armed.load(std::memory_order_relaxed)),
              std::memory_order_relaxed);
}

// Returns whether every sender has seen the bits of all of them.
template <typename Arm>
bool Nic::arm_each(std::span<const std::uint32_t> tripwires, Arm&& arm_one) {
  bool fenced = true;
  for (std::uint32_t t : tripwires) {
    if (t >= tripwires_.size() || !tripwires_[t].in_use) continue;
    fenced &= tripwires_[t].fenced;
    tripwires_[t].shown = true;
    tripwires_[t].armed_lately = true;
    arm_one(image_.signals->tripwires[t].armed, tables_->apertures[tripwires_[t].aperture].armed,
            tripwires_[t].chunks);
  }
  return fenced;
}

void Nic::arm(std::uint32_t tripwire) { arm_all({&tripwire, 1}); }

void Nic::arm_for_packets(std::uint32_t tripwire) {
  using Fence = shm::AsymmetricFence;
  arm_single_shots<Fence, Fence::even>([&](auto&& arm_one) {
    std::lock_guard lock(mutex_);
    return arm_each({&tripwire, 1}, arm_one);
  });
}

void Nic::arm_all(std::span<const std::uint32_t> tripwires) {
  bool fenced = false;
  std::uint64_t withdrawals = 0;
  arm_single_shots<shm::AsymmetricFence>([&](auto&& arm_one) {
    std::lock_guard lock(mutex_);
    withdrawals = withdrawals_;
    return fenced = arm_each(tripwires, arm_one);
  });
  if (fenced) return;
  std::lock_guard lock(mutex_);
  if (withdrawals != withdrawals_) return;  // perhaps of these bits, and they are back
  for (std::uint32_t t : tripwires) {
    if (t < tripwires_.size()) tripwires_[t].fenced = tripwires_[t].in_use;
  }
}

void Nic::bind_event(std::uint32_t tripwire, std::uint32_t queue, std::uint32_t event) {
  std::lock_guard lock(mutex_);
  if (tripwire >= tripwires_.size() || !tripwires_[tripwire].in_use) return;
  // relaxed: a firing that races with it may post to the old place, as if it had come before
  tables_->tripwires[tripwire].event.store(event, std::memory_order_relaxed);
  tables_->tripwires[tripwire].queue.store(queue, std::memory_order_relaxed);
}

bool Nic::test_and_clear(std::uint32_t tripwire) {
  if (tripwire >= shm::kMaxTripwires) return false;
  auto& word = image_.signals->tripwire_state[tripwire / 64];
  const std::uint64_t bit = std::uint64_t{1} << (tripwire % 64);
  // PAIR tripwire.state: sees the data that made it fire
  if ((words::load_acquire(word) & bit) == 0) return false;
  return (dekker::clear_bits(word, bit) & bit) != 0;
}

std::uint32_t Nic::live_tripwires() const {
  std::lock_guard lock(mutex_);
  return static_cast<std::uint32_t>(
      std::count_if(tripwires_.begin(), tripwires_.end(), [](const auto& t) { return t.in_use; }));
}

}  // namespace clan::nic
