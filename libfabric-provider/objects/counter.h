// Counters: how many operations have completed, and how many have failed.
#pragma once

#include <clan/face/wait.h>

#include <atomic>
#include <vector>

#include "system/provider.h"
#include "system/transport_list.h"
#include "wait/wait.h"

namespace clan::ofi {

class Domain;

class Counter final : public fid_cntr, public Waitable {
 public:
  using Face = fid_cntr;
  static int open(fid_domain* domain, fi_cntr_attr* attr, fid_cntr** counter, void* context);

  References& references() { return references_; }
  const WaitPlace& wait_place() const { return wait_; }
  Domain& domain() { return domain_; }

  // Under the domain's lock.
  // Readers that are about to sleep look without it: hence seq_cst, see news().
  void count() {
    add_value(1);
    if (is_trigger_) [[unlikely]]
      start_work();
  }
  // relaxed: the lock orders
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }
  // relaxed: the same
  std::uint64_t errors() const { return errors_.load(std::memory_order_relaxed); }
  // Callers of those that set or add start what is due by that themselves.
  void set_value(std::uint64_t value) {
    value_.store(value, std::memory_order_seq_cst);  // PAIR ofi.wait.armed: before the check
    changed();
  }
  void add_value(std::uint64_t value) {
    // PAIR ofi.wait.armed: before the check
    value_.fetch_add(value, std::memory_order_seq_cst);
    changed();
  }
  void count_error() {
    add_error_count(1);
    if (is_trigger_) [[unlikely]]
      start_work();
  }
  void set_error_count(std::uint64_t errors) {
    errors_.store(errors, std::memory_order_seq_cst);  // PAIR ofi.wait.armed: before the check
    changed();
  }
  void add_error_count(std::uint64_t errors) {
    // PAIR ofi.wait.armed: before the check
    errors_.fetch_add(errors, std::memory_order_seq_cst);
    changed();
  }
  TransportList& transports() { return transports_; }
  /// Deferred work waits for it.
  void is_trigger() { is_trigger_ = true; }
  /// It counts accesses to memory, which may come by any transport of the domain.
  void watch_domain() { whole_domain_ = true; }
  void progress();
  /// For poll sets: has it changed since it was last read?
  bool news() const;

  // Waitable
  bool pending() override { return news(); }

 private:
  explicit Counter(Domain& domain);
  void changed() { wait_.signal(); }
  void start_work();
  static std::uint64_t read(fid_cntr* counter);
  static std::uint64_t read_errors(fid_cntr* counter);
  template <void (Counter::*kChange)(std::uint64_t)>
  static int change(fid_cntr* counter, std::uint64_t value);
  static int wait(fid_cntr* counter, std::uint64_t threshold, int timeout);
  static int close(fid_t id);
  static fi_ops ops_;
  static fi_ops_cntr counter_ops_;

  Domain& domain_;
  Held domain_held_;
  References references_;
  std::atomic<std::uint64_t> value_{0}, errors_{0};
  std::atomic<std::uint64_t> seen_value_{0}, seen_errors_{0};  ///< when last read
  TransportList transports_;
  bool whole_domain_ = false;
  bool is_trigger_ = false;  ///< under the domain's lock
  WaitPlace wait_;
  Waiter waiter_;
};

}  // namespace clan::ofi
