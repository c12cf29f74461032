// A Socket's state while it finds its other end and moves into a pipe, and what wakes those that
// wait for it: its bells, and the epoll sets that it is in.
#pragma once

#include <atomic>
#include <cstdint>

#include "clan/face/reasons.h"
#include "os/spin_lock.h"
#include "state/latch.h"
#include "table/pipe_count.h"

namespace clan::preload {

/// Put there under Migration::moving. Several may want to give it back: one of them gets it.
/// Relaxed: what it names is the kernel's, and nothing of this process is published by it.
template <typename T, T kNone>
class TakeOnce {
 public:
  T get() const { return value_.load(std::memory_order_relaxed); }
  void keep(T value) { value_.store(value, std::memory_order_relaxed); }
  /// kNone: there is none, or another thread has it.
  T take() { return value_.exchange(kNone, std::memory_order_relaxed); }

 private:
  std::atomic<T> value_{kNone};
};

using KeptFd = TakeOnce<int, -1>;
using KeptName = TakeOnce<std::uint64_t, 0>;

/// The bells of a Socket that has moved. A bell is a kernel pipe of one page. The sleepers of an
/// end watch its read end by edges and never read it, so each byte that the other end writes, or is
/// refused to write, wakes all of them. Between users it is a timer (migrate/bells.h).
struct Bells {
  KeptFd bell;         ///< this end's, to be watched; -1: it is gone
  KeptFd others_bell;  ///< the other end's, to be rung; of one to another host this end's
  /// An epoll set of `bell`, by edges. For the thread that has `in_bell_set`, as an edge wakes one
  /// thread.
  KeptFd bell_set;
  SpinLock in_bell_set;
  std::atomic<int> bell_sleepers{0};  ///< threads that watch `bell` by themselves, not in a set
  SpinLock ringing;  ///< around a write to `others_bell`, and before that is closed

  /// Closes them all.
  void reset();
};

class RemoteConnection;

struct Migration {
  /// Whether the other end's socket is in our network namespace.
  enum class Place : std::uint8_t { kNotAsked, kHere, kElsewhere };

  /// calls so far, for when to offer and to look
  std::atomic<std::uint32_t> sends{0}, receives{0};
  /// The listener; in CLAN_DIR, once taken up: what connects with the other end.
  KeptFd offer_fd;
  std::atomic<std::uint32_t> offer_calls{0};
  std::uint64_t offered_ns = 0;    ///< under `moving`
  Place place = Place::kNotAsked;  ///< under `moving`
  // Of an offer in CLAN_DIR, see migrate/directory.cc.
  KeptName offer_name;                                   ///< of the file; 0: there is none
  KeptFd window_fd;                                      ///< into the other end's network namespace
  std::uint32_t window_interface = 0, window_looks = 0;  ///< under `moving`
  SpinLock moving;
  Latch pipe_counted;
  // Why it stays on TCP, as it has been said last, see share/reasons.h.
  std::atomic<reasons::Why> said{reasons::Why::kNone};
  std::atomic<std::uint32_t> said_inode{0};  ///< 0: others cannot find it
  // Of a connection to another host, see state/remote.h: what carries it; a descriptor of the
  // socket, as last known; the other host knows where this end has switched.
  std::atomic<RemoteConnection*> remote{nullptr};
  std::atomic<int> remote_fd{-1};
  std::atomic<bool> switch_known{false};
  PipeCharge charge;  ///< of pipe_count.h; written when it moves, at fork and when nobody has it

  /// All but `moving`, the offer and the charge, which are given back before.
  void reset();
};

struct Interest;

struct Watch {
  Interest* interests = nullptr;     ///< in epoll sets; see for_interests()
  std::atomic<bool> in_sets{false};  ///< there are interests
  mutable SpinLock listing;          ///< of `interests` and of that; no lock is taken under it
  std::atomic<bool> polled{false};   ///< by poll() or select(), once at least
  /// Calls that found nothing, or no room, before it was in a set or polled.
  std::atomic<std::uint32_t> unwatched_calls{0};

  void reset();
  /// order: after the store of what sets are to see. A set notifies its Interest or finds it (see
  /// control_add()).
  bool is_watched() const { return in_sets.load(std::memory_order_seq_cst); }
};

}  // namespace clan::preload
