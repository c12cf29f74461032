#include "nic/translations.h"

#include <cstring>

namespace clan::nic {
namespace {

constexpr AddressSpaceId kOwnSpace = 0;

std::uint64_t number_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

}  // namespace

Result<std::unique_ptr<Translations>> Translations::create(const Options& options) {
  std::unique_ptr<Translations> made(new Translations);
  if (options.keep) {
    auto monitor = UnmapMonitor::get();
    if (monitor) made->monitor_ = std::move(*monitor);
    if (!monitor) made->why_not_ = monitor.error();
  }
  PagePinner::Options pinning;
  pinning.mode = options.mode;
  pinning.monitor = made->monitor_.get();
  auto pinner = PagePinner::create(pinning);
  if (!pinner) return pinner.error();
  made->pinner_ = std::move(*pinner);
  TlbConfig config = options.tlb;
  config.page_size = PagePinner::page_size();
  auto tlb = Tlb::create(config, *made->pinner_);
  if (!tlb) return tlb.error();
  made->tlb_ = std::move(*tlb);
  if (made->monitor_) made->monitor_->add(*made);
  return made;
}

Translations::~Translations() {
  if (keeps()) monitor_->remove(*this);
}

// --- unmaps --------------------------------------------------------------------------------------

void Translations::on_change(const UnmapMonitor::Change& change) {
  std::lock_guard lock(mutex_);
  if (change.kind == UnmapMonitor::Kind::kMoved)
    pinner_->moved(change.start, change.to, change.length);
  tlb_->invalidate(
      kOwnSpace, change.start, change.length,
      change.kind == UnmapMonitor::Kind::kEmptied ? Tlb::Mapping::kKept : Tlb::Mapping::kGone);
}

void Translations::on_end() {
  std::lock_guard lock(mutex_);
  tlb_->invalidate(kOwnSpace);
}

// The lock, when no unmap that this thread may know of is unknown to the Tlb.
std::unique_lock<BriefLock> Translations::settled() {
  std::unique_lock lock(mutex_);
  if (monitor_ && !monitor_->settled()) [[unlikely]] {
    lock.unlock();
    monitor_->settle();
    lock.lock();
  }
  return lock;
}

// --- what the NIC does ---------------------------------------------------------------------------

void Translations::Use::end() {
  if (!use_.ready() || owner_ == nullptr) return;
  std::lock_guard lock(owner_->mutex_);
  use_.release();
  owner_ = nullptr;
}

Translations::Use Translations::acquire(const void* memory, std::uint64_t bytes,
                                        PageAccess access) {
  const auto lock = settled();
  return {this, tlb_->acquire(kOwnSpace, number_of(memory), bytes, access)};
}

// The lock is held as long as the copy takes: so its pages keep their entries.
template <typename Copy>
int Translations::hold(const void* memory, std::size_t bytes, PageAccess access, Copy&& copy) {
  if (bytes == 0) return 0;
  const std::uint64_t begin = number_of(memory);
  const std::uint64_t page = PagePinner::page_size();
  const auto lock = settled();
  if (begin % page + bytes <= page) [[likely]] {
    const Translation one = tlb_->translate(kOwnSpace, begin, access);
    if (!one.ok()) return one.lookup == Lookup::kDeferred ? EAGAIN : one.error;
    copy();
    return 0;
  }
  TlbUse use = tlb_->acquire(kOwnSpace, begin, bytes, access);
  if (!use.ready()) return use.outcome() == RangeOutcome::kDeferred ? EAGAIN : use.error();
  copy();
  use.release();
  return 0;
}

int Translations::copy_from(void* to, const void* from, std::size_t bytes) {
  return hold(from, bytes, PageAccess::kRead, [&] { std::memcpy(to, from, bytes); });
}

int Translations::copy_to(void* to, const void* from, std::size_t bytes) {
  return hold(to, bytes, PageAccess::kWrite, [&] { std::memcpy(to, from, bytes); });
}

int Translations::pre_translate(const void* memory, std::size_t bytes, PageAccess access) {
  for (std::size_t resolved = 1;;) {
    const int error = hold(memory, bytes, access, [] {});
    // Twice with nothing to resolve: the Tlb is full of transfers under way.
    if (error != EAGAIN || resolved == 0) return error;
    std::lock_guard lock(resolving_);
    resolved = pinner_->resolve_deferred();
  }
}

bool Translations::resolve() {
  std::unique_lock lock(resolving_, std::try_to_lock);
  return lock.owns_lock() && pinner_->resolve_deferred() > 0;
}

TlbStats Translations::stats() {
  std::lock_guard lock(mutex_);
  return tlb_->stats();
}

}  // namespace clan::nic
