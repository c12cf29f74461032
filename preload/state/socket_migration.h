// A Socket's state while it finds its other end and moves into a pipe.
#pragma once

#include <atomic>
#include <cstdint>

#include "clan/face/reasons.h"
#include "os/spin_lock.h"
#include "state/latch.h"
#include "state/take_once.h"
#include "table/pipe_count.h"

namespace clan::preload {

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
  // socket, as last known; its doorbells are not TCP's; its parked byte has been sent.
  std::atomic<RemoteConnection*> remote{nullptr};
  std::atomic<int> remote_fd{-1};
  SpinLock bell_lock;
  std::atomic<bool> remote_bells{false}, remote_parked{false};
  PipeCharge charge;  ///< of pipe_count.h; written when it moves, at fork and when nobody has it

  /// All but `moving`, the offer and the charge, which are given back before.
  void reset();
};

}  // namespace clan::preload
