// The call by which a thread sends the byte of a doorbell, in an end that processes share.
//
// A process may be stopped (SIGSTOP, a debugger) at any instruction of it, or be killed, and
// another one may take the connection back to TCP meanwhile: when the stopped one goes on, its byte
// would be the application's. So a thread sends with control data in memory that they share
// (state/call_place.h), which the kernel looks at when it makes the call: the one that closes the
// gate writes 0 there as their length, and the call fails. And it counts by exchanges that fail
// once the count is closed (state/doorbell_count.h).
//
//   a thread that rings                      one that closes the gate (silence(), close_count())
//     1 owner |= kInCall                       kBells |= kBellsClosed
//     2 length = a cmsghdr's                   fence
//     3 fence                                  of every ringer with kInCall:
//     4 gate still open? else 8                  length = 0
//     5 counts the doorbell                      stopped or dead? else it waits until that one is
//     6 sendmsg()                                  done
//     7 takes that back, if none was sent      closes the count, by the kernel's number
//     8 owner = 0
//
// Stopped or killed at
//   1 to 4  it sends nothing: 4 sees that the gate is closed, or the other one has seen kInCall
//   5, 6    before the call: that says EINVAL. /proc shows a thread as stopped (T, t) only outside
//           of sendmsg(), or before that has looked at its arguments
//   7, 8    its byte is among those that the kernel counts. The place of a dead one is taken by the
//           next that finds no other
// Where no place is free, or nobody shares the end, the thread is counted in kBells instead
// (kIrrevocable), and the thread that closes the gate waits for it.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "os/signals.h"
#include "state/call_place.h"
#include "state/open_file.h"
#include "state/socket.h"

namespace clan::preload {

/// The call of a thread that has begun it by this place. Answers as send(), without waiting;
/// EINVAL: another one has taken it.
ssize_t send_by(Ringer& place, int fd, iovec bytes);

/// By a thread that is Ringing.
class BellCall {
 public:
  explicit BellCall(Socket& s);
  ~BellCall();
  BellCall(const BellCall&) = delete;
  BellCall& operator=(const BellCall&) = delete;
  /// False: the gate is closed, and there is nothing to ring.
  explicit operator bool() const { return allowed_; }
  /// Answers as send(); 0: it has been taken back.
  ssize_t send(int fd);

 private:
  Ringer* free_place(Slot& slot) const;
  bool count_in_bells();
  void count_out_of_bells();

  const Undisturbed undisturbed_;
  std::atomic<std::uint64_t>& bells_;
  Ringer* place_ = nullptr;
  bool names_ = false, named_before_ = false;  ///< this thread, in kBells; and Ringing did
  bool allowed_ = false;
};

/// The gate is closed. True: nobody is going to send a byte any more of those that ring by a place.
/// False: some thread is at it for long.
bool take_bells_back(Slot& slot);

/// Some thread of another place is in the middle of its call, and is not stopped.
bool another_is_in_its_call(const Slot& slot);

}  // namespace clan::preload
