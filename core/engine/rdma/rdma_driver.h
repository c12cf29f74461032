// RdmaDriver: the NIC driver's RDMA half: rings, scheduler, TLB and links put together.
//
// One per context, made with the first RDMA queue. A thread with work runs it, under its mutex, in
// slices of one scheduler quantum so that others come in between, until its own request is done;
// the driver thread does what nobody runs (kick). The posting thread moves a short request on an
// otherwise empty queue at once: it has nothing to overtake.
//
// The TLB takes part where the link needs translations (packets leave from pinned pages) or
// ContextOptions::nic_translates is set. process_vm_writev translates in the kernel.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "clan/detail/dekker.h"
#include "clan/detail/words.h"
#include "clan/rdma.h"
#include "engine/aperture/aperture_core.h"
#include "nic/rdma_scheduler.h"
#include "nic/translations.h"

namespace clan::engine {

class RdmaQueueCore;

class RdmaDriver final : public nic::RdmaMover {
 public:
  /// what post() does by itself before it returns
  static constexpr std::uint64_t kInlineBytes = 4u << 20;

  static Result<std::unique_ptr<RdmaDriver>> create(ContextCore& context);
  ~RdmaDriver() override;

  // Handles of imported apertures.
  std::uint32_t add_remote(RemoteApertureCore* remote);
  void remove_remote(std::uint32_t handle);

  Result<std::uint32_t> attach(nic::RdmaRing& ring, RdmaQueueCore* queue);
  void detach(std::uint32_t queue);
  /// The doorbell of a ring: the thread that runs the driver answers it. Takes no lock.
  void activate(std::uint32_t queue);
  /// Serves until idle, `enough()` or `bytes` have been passed on. False: somebody else is at it.
  template <typename Enough>
  bool run(std::uint64_t bytes, Enough&& enough);
  // PAIR rdma.driver_idle: sees what the last to run the driver left
  bool idle() const { return words::load_acquire(idle_) && !rung(); }
  /// Moves `request` now, in the caller's thread, beside all others. EAGAIN: it must go through the
  /// ring. Else its completion's errno, or 0.
  int move_now(const RdmaRequest& request, RemoteApertureCore& remote);
  /// Leaves the rest to the driver thread.
  void kick();

  void complete(std::uint64_t token, int err, std::uint64_t bytes);
  RdmaCounters counters();
  nic::Translations* translations() { return translations_.get(); }

  // nic::RdmaMover, under mutex_.
  int check(const nic::RdmaQueueRef& queue, const RdmaRequest& request) override;
  nic::TransferResult move(const nic::RdmaChunk& chunk) override;
  void cancel(const nic::RdmaQueueRef& queue, std::uint64_t token) override;

 private:
  explicit RdmaDriver(ContextCore& context);
  Status start();
  std::unique_lock<std::mutex> enter();
  void run_in_background();
  bool run_on();
  void answer_doorbells();
  bool rung() const;
  nic::TransferResult hand_on(const nic::RdmaChunk& chunk, RemoteApertureCore& remote);
  bool slice();

  class Background;

  ContextCore& context_;
  std::mutex mutex_;
  std::atomic<int> waiting_{0};  ///< threads that want the mutex: the runner lets them in
  static constexpr std::uint32_t kMaxQueues = 256;
  /// one quantum, and the longest chunk beside other queues
  static constexpr std::uint64_t kSlice = 64 * 1024;
  std::array<std::atomic<std::uint64_t>, kMaxQueues / 64> doorbells_{};  ///< a bit for each queue
  std::atomic<bool> kicked_{false};  ///< the driver thread has been kicked and has not come yet
  // What move_now() did. relaxed: counters
  std::atomic<std::uint64_t> now_requests_{0}, now_bytes_{0};
  std::atomic<bool> idle_{true};
  /// under mutex_: at the end of the last slice a queue had something to do at once
  bool runnable_ = false;
  nic::RdmaScheduler scheduler_;
  RemoteApertureCore* find_remote(std::uint32_t handle) const;
  std::unordered_map<std::uint32_t, RemoteApertureCore*> remotes_;
  std::uint32_t last_remote_ = 0;  ///< the handle given last
  bool translate_always_ = false;
  std::unique_ptr<nic::Translations> translations_;  ///< null: this kernel has not what they need
  struct Pending {
    nic::Translations::Use use;
    nic::Link* link = nullptr;
  };
  std::unordered_map<std::uint64_t, Pending> pending_;  ///< by token; few
  std::shared_ptr<Background> background_;
};

template <typename Enough>
bool RdmaDriver::run(std::uint64_t bytes, Enough&& enough) {
  for (std::uint64_t done = 0; done < bytes; done += kSlice) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    const bool more = slice();
    lock.unlock();
    while (waiting_.load(std::memory_order_relaxed) > 0) sched_yield();  // relaxed: a courtesy
    // PAIR rdma.doorbell: a thread that rang and found the mutex taken is seen here
    dekker::settle();
    if (enough() || (!more && !rung())) return true;
  }
  return true;
}

}  // namespace clan::engine
