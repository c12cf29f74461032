// Steps of a Pipe's end that several processes share, under the lock of the side unless it says
// otherwise: engine/pipe_send_shared.cc, engine/pipe_receive_shared.cc.
#pragma once

#include <cstdint>

#include "clan/pipe.h"

namespace clan {

class Cursor;

struct Pipe::Shared {
  struct Send;
  struct Receive;
  static constexpr int kMostTurns = 1000;  ///< of a call, in which others have taken the lock
  enum class Plan { kMade, kNoRoom, kAgain, kTaken, kEnded };

  static bool may_send(Pipe& pipe, const TakeableLock& lock, Done* done);
  static Plan plan(Pipe& pipe, Send& call, std::uint64_t* n);
  static bool publish(Pipe& pipe, Send& call, Cursor& cursor, std::uint64_t n, int* err);
  static Plan send_record(Pipe& pipe, Send& call, Cursor& cursor, std::uint64_t* n, int* err);
  /// False: another one has taken the lock, and nothing has been sent.
  static bool try_send(Pipe& pipe, const iovec* buffers, int count, PipeRoom room, Done* done);
  static bool try_end(Pipe& pipe, std::uint8_t type, Done* done);
  static Done put_last(Pipe& pipe, std::uint8_t type);
  /// Likewise, received.
  static bool try_receive(Pipe& pipe, const iovec* buffers, int count, bool peek, Done* done);

  /// Threads that were stopped hold lines of the ring, or one of them has ended it. Behind it, what
  /// one of them has published is accounted for, and claims of dead ones are free.
  /// `lock`: the caller's, if it may be taken from it.
  static bool claims_in_force(Pipe& pipe, const TakeableLock* lock = nullptr);
  /// A call has been told that there is no room for that. Without the lock.
  static bool claims_hold_up(const Pipe& pipe);
  /// In the place of a thread that was stopped or killed between publishing a record and moving the
  /// cursors. False: the pipe is broken.
  static bool finish_published(Pipe& pipe, const TakeableLock* lock);
};

}  // namespace clan
