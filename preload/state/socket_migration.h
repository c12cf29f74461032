// A Socket's state while it finds its peer and moves into a pipe; its bells and epoll sets.
#pragma once

#include <atomic>
#include <cstdint>

#include "clan/face/reasons.h"
#include "os/spin_lock.h"
#include "state/latch.h"
#include "table/pipe_count.h"

namespace clan::preload {

/// A handle of the kernel's, stored under Migration::moving. take() gives it to one of the threads
/// that want to close it. Relaxed: it publishes nothing of this process.
template <typename T, T kNone>
class TakeOnce {
 public:
  T get() const { return value_.load(std::memory_order_relaxed); }
  void keep(T value) { value_.store(value, std::memory_order_relaxed); }
  /// Returns kNone if there is none, or another thread took it.
  T take() { return value_.exchange(kNone, std::memory_order_relaxed); }

 private:
  std::atomic<T> value_{kNone};
};

using KeptFd = TakeOnce<int, -1>;
using KeptName = TakeOnce<std::uint64_t, 0>;

/// An epoll set kept for the one thread that holds `in_use`: an edge wakes one thread per set.
struct BellSet {
  KeptFd fd;
  SpinLock in_use;
};

/// The bells of a Socket that has moved. A bell is a kernel pipe of one page. Sleepers watch its
/// read end edge-triggered and never read it, so each byte that the peer writes, or fails to write
/// for lack of room, wakes them all. Between users it is a timer (migrate/bells.h).
struct Bells {
  KeptFd bell;          ///< this end's, to watch; -1: it is gone
  KeptFd others_bell;   ///< the peer's, to ring; with a remote peer, this end's
  BellSet bell_set;     ///< of `bell`, edge-triggered
  BellSet receive_set;  ///< of `bell` and the socket, for a thread that sleeps to read
  std::atomic<int> bell_sleepers{0};  ///< threads that watch `bell` outside epoll sets
  SpinLock ringing;                   ///< held to write to `others_bell` and before closing it

  void reset();
};

class RemoteConnection;

struct Migration {
  /// Whether the peer's socket is in our network namespace.
  enum class Place : std::uint8_t { kNotAsked, kHere, kElsewhere };

  /// calls so far, which time offers and checks
  std::atomic<std::uint32_t> sends{0}, receives{0};
  /// the listener; in CLAN_DIR, once taken up, the connection to the peer
  KeptFd offer_fd;
  std::atomic<std::uint32_t> offer_calls{0};
  std::uint64_t offered_ns = 0;    ///< under `moving`
  Place place = Place::kNotAsked;  ///< under `moving`
  // An offer in CLAN_DIR, see migrate/directory.cc.
  KeptName offer_name;                                   ///< of its file; 0: none
  KeptFd window_fd;                                      ///< into the peer's network namespace
  std::uint32_t window_interface = 0, window_looks = 0;  ///< under `moving`
  SpinLock moving;
  Latch pipe_counted;
  // Why it stays on TCP, as last recorded, see share/reasons.h.
  std::atomic<reasons::Why> said{reasons::Why::kNone};
  std::atomic<std::uint32_t> said_inode{0};  ///< 0: others cannot find it
  // A remote connection (state/remote.h): its carrier; a descriptor of the socket, as last known;
  // whether the other host knows where this end switched.
  std::atomic<RemoteConnection*> remote{nullptr};
  std::atomic<int> remote_fd{-1};
  std::atomic<bool> switch_known{false};
  PipeCharge charge;  ///< written when it moves, at fork, and when the last reference goes

  /// All but `moving`, the offer and the charge, which are given back earlier.
  void reset();
};

struct Interest;

struct Watch {
  Interest* interests = nullptr;     ///< in epoll sets; see for_interests()
  std::atomic<bool> in_sets{false};  ///< there are interests
  mutable SpinLock listing;          ///< of both; no lock is taken under it
  std::atomic<bool> polled{false};   ///< by poll() or select(), at least once
  /// calls that found nothing, or no room, before it was in a set or polled
  std::atomic<std::uint32_t> unwatched_calls{0};

  void reset();
  /// order: after storing what sets have to see; they see it, or this finds them (control_add()).
  bool is_watched() const { return in_sets.load(std::memory_order_seq_cst); }
};

}  // namespace clan::preload
