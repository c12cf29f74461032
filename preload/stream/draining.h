// The lock under which bytes of TCP are read and counted: doorbells, and the application's from
// before the switch. Threads of all processes that have the open file take it.
//
// A process may be stopped (SIGSTOP, a debugger) under it, at any instruction, or be killed; the
// kernel's socket is not held up by that. Where several processes have the open file, another one
// takes the lock over, and the stopped one finds so when it goes on, and begins again. What it was
// about to read it must not read then: those bytes may be the application's by that time. So a
// thread reads by an iovec in memory that they share (state/call_place.h), which the kernel looks
// at when it makes the call, and the thread that takes the lock over writes 0 there.
//
//   a thread that reads                      one that takes the lock
//     1 owner |= kInCall                       lock = mine
//     2 length = n                             fence
//     3 fence                                  of every other reader with kInCall:
//     4 lock still mine? else 7                  length = 0
//     5 recvmsg()                                stopped or dead? else it lets go, and waits
//     6 counts what it has read                counts doorbells anew, by the kernel's numbers, if
//     7 owner &= ~kInCall                        there was such a reader, or it took the lock over
//
// Stopped or killed at
//   1 to 4  it reads nothing: 4 sees the other one's lock, or the other one has seen kInCall
//   5       before the call: it reads 0 bytes. /proc shows a thread as stopped (T, t) only outside
//           of recv(), or before that has looked at its arguments
//   6       one compare-and-swap from the number as it was before 5. It fails if another one has
//           counted since, and that number was the kernel's
//   7       the next one looks at it once for nothing
// The application's bytes are copied first (MSG_PEEK), and then taken out of the queue in the same
// way: what has been copied counts only if they could be taken.
//
// A thread in another pid namespace cannot be asked for: one that is stopped there is waited for.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "os/signals.h"
#include "state/call_place.h"
#include "state/open_file.h"
#include "state/socket.h"

namespace clan::preload {

class Draining {
 public:
  Draining(int fd, Socket& s);
  ~Draining();
  Draining(const Draining&) = delete;
  Draining& operator=(const Draining&) = delete;
  /// False: another process keeps it, which may have been stopped.
  explicit operator bool() const { return has_it_; }
  /// Other processes may take it over: what is read is to be taken by discard().
  bool is_shared() const { return reader_ != nullptr; }
  /// Nobody has taken it over: what was looked at before this call was so under it.
  bool is_ours() const;
  /// Takes up to `n` bytes out of the queue, without waiting; answers as recv(). EBUSY: another one
  /// has taken the lock over, and this one has read nothing.
  ssize_t discard(std::size_t n);

 private:
  enum class Turn { kHasIt, kAgain };
  void enter(Socket& s);
  Turn try_enter(Socket& s, bool looks_at_owner);
  Reader* free_reader();
  bool take_over(std::uint64_t now);
  bool others_read_nothing();
  void free_readers_of_dead();
  std::uint64_t closer() const { return static_cast<std::uint64_t>(me_); }

  Undisturbed undisturbed_;
  const int fd_;
  std::int32_t me_ = thread_id();  ///< as it closes the counter
  Slot* slot_;
  Reader* reader_ = nullptr;
  bool has_it_ = true;
  bool recounts_ = false;
};

}  // namespace clan::preload
