// fi_domain(): one engine context, and everything that is reached through it.
#pragma once

#include <clan/context.h>
#include <clan/event_queue.h>

#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "objects/deferred.h"
#include "system/provider.h"
#include "wait/wait.h"

namespace clan::ofi {

class Fabric;
class MemoryRegion;
class Transport;
class Endpoint;
class Eq;

class Domain final : public fid_domain, public Source {
 public:
  using Face = fid_domain;
  static int open(fid_fabric* fabric, fi_info* info, fid_domain** domain, void* context);
  ~Domain() override;

  Lock& lock() { return lock_; }
  Context& context() { return context_; }
  References& references() { return references_; }
  std::uint32_t address_format() const { return address_format_; }
  std::uint32_t api_version() const;
  int mr_mode() const { return mr_mode_; }
  bool virtual_addresses() const { return (mr_mode_ & FI_MR_VIRT_ADDR) != 0; }
  bool rma_events() const { return rma_events_; }
  /// This process has been forked off the one that has made it. What peers see is that one's: no
  /// word in memory that they map may be changed here.
  bool inherited() const { return forks_ != ForkMutex::forks(); }
  /// FI_PROGRESS_AUTO: a program need not call us for what it has started to go on.
  bool progresses_alone() const { return progress_.has_value(); }
  Eq* eq() const { return eq_; }
  fi_av_type av_type() const { return av_type_; }

  // Under the lock.
  int add_transport(Transport& transport);
  void remove_transport(Transport& transport);
  MemoryRegion* find_region(std::uint64_t key) const {
    auto it = regions_.find(key);
    return it == regions_.end() ? nullptr : it->second;
  }
  bool add_region(std::uint64_t key, MemoryRegion& region) {
    return regions_.try_emplace(key, &region).second;
  }
  void remove_region(std::uint64_t key) { regions_.erase(key); }
  std::uint64_t free_key();
  void progress_all();
  /// Something to do when a counter says so.
  void defer(Deferred deferred);
  bool has_deferred() const { return !deferred_.empty(); }
  void run_due();
  /// A counter has moved: what is due by that is started soon. False: nothing waits for it.
  bool start_soon(const Counter& counter);
  void forget(const Endpoint& endpoint);
  /// Whether deferred work, waiting or started, will change the counter or is started by it.
  bool uses(const Counter& counter) const;

  // Source
  void make_progress() override;
  Result<int> descriptor() override;
  int packets() override;
  bool arm(SleepsIn where, std::uint32_t* look_again_ms) override;
  int sleep(std::span<pollfd> fds, std::int64_t timeout_ms) override;
  void add_sleepers(WaitObject& sleepers) override;
  void remove_sleepers(WaitObject& sleepers) override;
  /// Something has begun that needs checks, and nothing announces its end: wakes those that
  /// make progress and sleep. Under the lock.
  void look_soon();

 private:
  Domain(Context context, bool locks) : context_(std::move(context)), lock_(locks) {}
  static int bind(fid_t id, fid_t to, std::uint64_t flags);
  static int control(fid_t id, int command, void* argument);
  static int endpoint(fid_domain* domain, fi_info* info, fid_ep** ep, void* context);
  static int query_atomic(fid_domain* domain, fi_datatype type, fi_op op, fi_atomic_attr* attr,
                          std::uint64_t flags);
  int need_events();
  int progress_alone();
  template <typename Predicate>
  std::size_t drop_deferred(const Predicate& predicate);
  std::uint32_t next_look_ms(bool needed);
  bool start_progress();
  void run_progress();
  void stop_progress();
  static fi_ops ops_;
  static fi_ops_domain domain_ops_;

  const std::uint32_t forks_ = ForkMutex::forks();
  Fabric* fabric_ = nullptr;
  Held fabric_held_;
  Context context_;
  Lock lock_;
  References references_;
  std::uint32_t address_format_ = FI_SOCKADDR_IN;
  int mr_mode_ = 0;
  bool rma_events_ = false;
  fi_av_type av_type_ = FI_AV_UNSPEC;
  Eq* eq_ = nullptr;
  Held eq_held_;
  std::vector<Transport*> transports_;
  std::unordered_map<std::uint64_t, MemoryRegion*> regions_;
  std::uint64_t next_key_ = 1;
  std::list<Deferred> deferred_;
  bool running_due_ = false;
  bool due_left_ = false;  ///< some of it is due and could not be started

  std::uint32_t look_again_ms_ = 1;    ///< what next_look_ms() has said last
  std::vector<WaitObject*> sleepers_;  ///< where threads sleep on this domain

  ForkMutex events_mutex_;  ///< guards the making of events_
  std::optional<EventQueue> events_;
  // FI_PROGRESS_AUTO: a thread that sleeps in events_.
  std::optional<std::thread> progress_;
  pid_t progress_owner_ = 0;
  std::atomic<bool> stopping_{false};
  std::uint32_t wake_event_ = 0;
};

}  // namespace clan::ofi
