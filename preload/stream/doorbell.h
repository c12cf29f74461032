// Doorbells: single bytes of TCP that make the descriptor readable for the threads that sleep on
// it.
//
// An end that goes back to TCP first closes its gate (kBells): from then on what it sends by TCP is
// the application's.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "clan/pipe.h"
#include "clan/socket_face.h"
#include "clan/wait_budget.h"
#include "os/signals.h"
#include "os/sock_diag.h"
#include "state/face.h"
#include "state/socket.h"

namespace clan::preload {

/// A thread that rings, or sees that none may any more. Others that want to ring wait a moment for
/// it, so that nearly always the one that is under way can be named.
class Ringing {
 public:
  Ringing(PipePage::Face& face, WaitBudget& call_waits);
  ~Ringing();
  Ringing(const Ringing&) = delete;
  Ringing& operator=(const Ringing&) = delete;
  explicit operator bool() const { return allowed_; }

 private:
  Undisturbed undisturbed_;
  std::atomic<std::uint64_t>& bells_;
  std::uint64_t me_ = 0;  ///< in kBells, if it is named there
  bool allowed_ = true;
};

/// By a thread that is Ringing, around the call that sends the doorbell. One that goes back to TCP
/// waits for it.
class DoorbellCall {
 public:
  explicit DoorbellCall(PipePage::Face& face);
  ~DoorbellCall();
  DoorbellCall(const DoorbellCall&) = delete;
  DoorbellCall& operator=(const DoorbellCall&) = delete;
  /// False: the gate is closed, and there is nothing to ring.
  explicit operator bool() const { return allowed_; }

 private:
  const Undisturbed undisturbed_;
  std::atomic<std::uint64_t>& bells_;
  bool names_ = false, named_before_ = false;  ///< this thread, in kBells; and Ringing did
  bool allowed_ = false;
};

/// The doorbell's byte. Answers as send(), without waiting.
ssize_t send_doorbell(int fd);

/// Nobody of this end may ring any more, and nobody is going to: what it sends by TCP from now on
/// is the application's. Waits a tenth of a second for a thread that is at it, if it lives; a
/// caller that can come again later looks first whether another_rings(). False: its doorbell may
/// yet come.
bool silence(Socket& s);

/// Likewise of the other end, whose stopped threads may yet ring.
bool silence_other_end(Socket& s);

/// silence() would wait now.
bool another_rings(const Socket& s);

/// The other end rings, or is about to: see Announced. To be asked when this thread has said that
/// it wants a doorbell, and before it looks for the last time. For how long it may sleep then, in
/// ns; -1: for ever. One that was killed there is looked for less often, until another one of that
/// end rings.
std::int64_t nap_beside_ringer(Socket& s);

/// The pipe is full, and several processes hold its reading end: one may be killed between making
/// room and telling of it. A thread that waits for room looks this often.
constexpr std::int64_t kSharedReaderNs = 1'000'000'000;
inline bool waits_for_shared_reader(const Socket& s) {
  // relaxed: a hint; it is looked at in each wait
  return s.theirs().words[socket_face::kHolders].load(std::memory_order_relaxed) > 1 &&
         !s.pipe.writable();
}

/// Reads the doorbells that have been rung, and nothing else. False: some are still on their way.
/// `limit`: at most so many of them, counted from the first ever.
bool swallow_doorbells(int fd, Socket& s, std::uint64_t limit = ~std::uint64_t{0});

/// There are some, or will be in a moment. Does not ask the kernel.
inline bool doorbells_waiting(const Socket& s) {
  return s.mine().words[socket_face::kSwallowed].load(std::memory_order_relaxed) <
         doorbells_of(s.theirs(), std::memory_order_relaxed);
}

/// A thread of this end was killed while it rang: what it had been told to ring for it may not
/// have.
bool ringer_was_killed(const Socket& s);

/// After what a call has done to the pipe. A process that shares the socket may have been killed
/// when it had been told to ring and had not: the other end's wish for it is gone with it.
inline bool must_ring(const Socket& s, const Pipe::Done& done) {
  if (done.must_ring || !s.inherited.load(std::memory_order_relaxed)) return done.must_ring;
  return ringer_was_killed(s);
}

}  // namespace clan::preload
