// A rank of this host that we send to: Open MPI's mca_btl_base_endpoint_t, as this component has
// it.
#pragma once

#include <clan/detail/words.h>
#include <clan/face/mpi_face.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "channel/channel_sender.h"
#include "channel/segment.h"
#include "fetch_cost.h"
#include "fragment.h"
#include "open_mpi.h"
#include "operations.h"
#include "registration.h"

namespace clan::mpi {

/// A lock that is one word, for what is held for less than a microsecond; not taken where there is
/// one thread.
class SpinLock {
 public:
  void lock() {
    if (!opal_using_threads()) return;
    // PAIR mpi.spin: sees what it guards
    for (unsigned n = 0; words::swap(word_, true);) {
      if (++n % 64 == 0) sched_yield();
      cpu_pause();
    }
  }
  void unlock() {
    // PAIR mpi.spin: the next holder sees what it guards
    words::store_release(word_, false);
  }

 private:
  std::atomic<bool> word_{false};
};

}  // namespace clan::mpi

/// A rank that we can reach. Made by add_procs; del_procs only ends it, because Open MPI may name
/// it again.
struct mca_btl_base_endpoint_t {
  mca_btl_base_endpoint_t(clan::mpi::RemoteSegment remote_segment, opal_proc_t* peer)
      : remote(std::move(remote_segment)), proc(peer), name(peer->proc_name) {
    sender.attach(remote.channel());
  }

  clan::mpi::SpinLock lock;  ///< guards sender, pending and the counters
  clan::mpi::ChannelSender sender;
  clan::mpi::FragmentQueue pending;
  clan::mpi::MpiPeer* counters = nullptr;
  clan::mpi::RemoteSegment remote;
  opal_proc_t* proc;
  opal_process_name_t name;
  clan::NodeId node;
  /// What copying into the channel costs, in ps for each byte, by the last long records: how far
  /// the processors of the two ranks are from each other. Under `lock`.
  std::uint32_t copy_ps = 0;
  bool far = false;  ///< as copy_ps says
  clan::mpi::FetchCost fetch_cost;
  std::uint32_t turn = 0;  ///< of messages that are fetched only because the other way is slow
  bool can_copy = false;   ///< process_vm_readv works between us and this peer
  /// it has a channel to us as well: what needs an answer may be asked for
  bool hears_us = false;
  bool ended = false;
  bool lost = false;      ///< its death, or its nonsense, has been reported
  clan::Address wakeups;  ///< of the thread that answers where the peer does not poll
  clan::mpi::SpinLock cells_lock;
  std::uint32_t cells_used = 0;        ///< while there are any, the peer's segment is not given up
  std::atomic<std::uint32_t> rest{0};  ///< small puts and gets for which the peer is not asked
  std::mutex imports_mutex;
  /// windows of that peer, and all of its memory once a message has been fetched
  std::unordered_map<std::uint64_t, std::shared_ptr<clan::RemoteAperture>> imports;
};

namespace clan::mpi {

using Endpoint = mca_btl_base_endpoint_t;

/// An operation that a peer has been asked for.
struct Outstanding {
  Endpoint* endpoint = nullptr;
  OperationCell* cell = nullptr;
  void* local = nullptr;  ///< where the answer goes, or null
  std::size_t bytes = 0;
  mca_btl_base_registration_handle_t* local_handle = nullptr;
  mca_btl_base_rdma_completion_fn_t callback = nullptr;
  void* context = nullptr;
  void* data = nullptr;
  std::uint64_t since_ns = 0;  ///< posted, or its peer woken for it
  bool woken = false;
};

constexpr std::size_t kTimedBytes = 4096;
/// Two processors that share their caches copy a byte in 20 to 50 ps, others in 60 to 110: there a
/// message is better fetched by its receiver, which moves each cache line once. The one bound makes
/// a peer far, the other near again.
constexpr std::uint32_t kFarPs = 65, kNearPs = 40;

}  // namespace clan::mpi
