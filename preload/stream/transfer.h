// What transfer.cc (a connection in its pipe) and going_back.cc (on its way out of it) share.
#pragma once

#include <sched.h>

#include "os/signals.h"
#include "state/socket.h"

namespace clan::preload {

inline std::uint64_t state_of(const PipePage::Face& face) {
  return face.words[socket_face::kState].load(std::memory_order_acquire);  // PAIR face.state
}

/// Lets this direction switch to the pipe when the other end reads there. True: it has.
bool switch_sending(int fd, Socket& s);

/// App bytes that are still to be read from TCP. <0: cannot tell, errno. Sets drained when there are none.
/// `certain`: how many of those in the kernel's queue are the application's for sure. Under Draining.
ssize_t left_in_tcp(int fd, Socket& s, std::size_t* certain);

/// Bytes the kernel has taken from the application, and doorbells, for this connection, ever. False: it does
/// not say.
bool sent_by_tcp(int fd, std::uint64_t* bytes);

/// A thread that rings, or sees that none may any more. Others that want to ring wait a moment for it, so
/// that nearly always the one that is under way can be named.
class Ringing {
 public:
  explicit Ringing(PipePage::Face& face);
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

/// Nobody of an end may ring any more, and nobody is at it: what it sends by TCP from now on is the
/// application's. Waits for a thread that was stopped in the midst of it, for as long as it lives. False:
/// that has taken ten seconds, and its doorbell may yet come.
bool silence(PipePage::Face& face);

/// What a recv() that did not wait says of the connection's end.
void note_end(Socket& s, ssize_t n);

/// Reads the doorbells that have been rung, and nothing else. False: some are still on their way.
/// `limit`: at most so many of them, counted from the first ever.
bool swallow_doorbells(int fd, Socket& s, std::uint64_t limit = ~std::uint64_t{0});

/// For a counter of calls that somebody has closed, perhaps another process that shares the open file. It
/// opens the counter in the place of one who has been killed; and of one who is stopped for ten seconds, when
/// the connection is reset.
class UntilOpen {
 public:
  UntilOpen(int fd, Socket& s) : fd_(fd), s_(s) {}
  /// A moment. False: it is open, or calls are counted in it, and has been for ten seconds.
  bool wait(Slot::Counter& counter);
  /// Somebody was killed who had it closed: what he did last he may not have noted.
  bool took_over() const { return took_over_; }

 private:
  int fd_;
  Socket& s_;
  std::uint32_t turns_ = 0;
  std::uint64_t closer_ = ~std::uint64_t{0}, since_ns_ = 0;
  bool took_over_ = false;
};

/// A lock for the moments in which bytes from TCP are counted: threads that share the open file.
class Draining {
 public:
  Draining(int fd, Socket& s) : slot_(s.slot.load(std::memory_order_acquire)) {
    if (!Slot::try_close(slot_->receives, me_)) [[unlikely]]
      wait(fd, s);
  }
  ~Draining() { Slot::open(slot_->receives, me_); }
  Draining(const Draining&) = delete;
  Draining& operator=(const Draining&) = delete;

 private:
  void wait(int fd, Socket& s);
  Undisturbed undisturbed_;
  std::int32_t me_ = thread_id();
  Slot* slot_;
};

/// For another thread or process that is in the middle of something; or says so, as anybody may have written
/// into the pipe.
class Patience {
 public:
  Patience(int fd, Socket& s) : fd_(fd), s_(s) {}
  /// False: TCP has ended, or it has taken ten seconds, and the connection has been reset.
  bool wait();

 private:
  int fd_;
  Socket& s_;
  std::uint32_t turns_ = 0;
  std::uint64_t end_ns_ = 0;
};

// --- going_back.cc -----------------------------------------------------------------------------------

/// The other end wants to go back to TCP: does what that takes of us. To be called when state_of(theirs) has
/// kLeaving and ours not kGone. False: later, see put_off().
bool answer_leaving(int fd, Socket& s);
/// The other end has gone back to TCP, and all it put into the pipe has been read. True: what is read next is
/// the kernel's.
bool came_back(int fd, Socket& s);
/// Goes back to TCP if the other end has never come into the pipe. False: it has, or somebody is at it.
bool leave_alone(int fd, Socket& s);

}  // namespace clan::preload
