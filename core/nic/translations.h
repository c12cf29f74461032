// Translations: a NIC's TLB, what pins for it, and what invalidates it: entries outlive their
// transfers where unmaps are watched (nic/unmap_monitor.h).
//
// The monitor's thread takes mutex_, under which nobody allocates or unmaps memory.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "clan/detail/brief_lock.h"
#include "clan/tlb.h"
#include "nic/page_pinner.h"
#include "nic/unmap_monitor.h"

namespace clan::nic {

class Translations final : private UnmapMonitor::Listener {
 public:
  struct Options {
    TlbConfig tlb;
    PagePinner::Mode mode = PagePinner::Mode::kPopulate;
    bool keep = false;  ///< entries outlive their transfers, where unmaps can be watched
  };

  /// ENOSYS before Linux 5.14.
  static Result<std::unique_ptr<Translations>> create(const Options& options);
  /// Precondition: no Use is left.
  ~Translations() override;
  Translations(const Translations&) = delete;
  Translations& operator=(const Translations&) = delete;

  /// A TlbUse that ends under the lock.
  class Use {
   public:
    Use() = default;
    Use(Use&&) = default;
    Use& operator=(Use&& other) noexcept {
      end();
      owner_ = other.owner_;
      use_ = std::move(other.use_);
      return *this;
    }
    ~Use() { end(); }
    RangeOutcome outcome() const { return use_.outcome(); }
    int error() const { return use_.error(); }

   private:
    friend class Translations;
    Use(Translations* owner, TlbUse use) : owner_(owner), use_(std::move(use)) {}
    void end();
    Translations* owner_ = nullptr;
    TlbUse use_;
  };
  /// The pages of a transfer.
  Use acquire(const void* memory, std::uint64_t bytes, PageAccess access);

  /// Copies as the NIC does. EAGAIN: call resolve(), a page is not in memory. EFAULT: no access.
  int copy_from(void* to, const void* from, std::size_t bytes);
  int copy_to(void* to, const void* from, std::size_t bytes);
  /// Gives the pages entries ahead of their use; takes their page faults in this thread.
  int pre_translate(const void* memory, std::size_t bytes, PageAccess access);

  bool has_deferred() const { return pinner_->has_deferred(); }
  /// Takes the page faults that were put off; false: there was none, or another thread is at it.
  bool resolve();

  /// Whether entries are kept; why_not() says what was refused.
  bool keeps() const { return monitor_ && monitor_->available(); }
  Error why_not() const { return why_not_; }
  TlbStats stats();

 private:
  Translations() = default;
  void on_change(const UnmapMonitor::Change& change) override;
  void on_end() override;
  std::unique_lock<BriefLock> settled();
  template <typename Copy>
  int hold(const void* memory, std::size_t bytes, PageAccess access, Copy&& copy);

  BriefLock mutex_;  ///< the Tlb, and what pins for it
  std::mutex resolving_;
  std::shared_ptr<UnmapMonitor> monitor_;  ///< outlives the pinner; null: no entry is kept
  Error why_not_{ENOSYS, "not asked for"};
  std::unique_ptr<PagePinner> pinner_;
  std::unique_ptr<Tlb> tlb_;
};

}  // namespace clan::nic
