// One direction's way back to TCP, step by step: for the initiator, and for the end that answers.
#pragma once

#include <cstdint>

#include "clan/detail/clock.h"
#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "state/socket.h"

namespace clan::preload {

constexpr std::uint64_t kForOtherEndNs = 10'000'000'000u;  ///< until its program makes a call

void nap();

/// What a call waits for the other end's part in something that can be done later, too.
class Moment {
 public:
  bool over() const { return monotonic_ns() - begin_ > kNs; }

 private:
  static constexpr std::uint64_t kNs = 1'000'000;
  const std::uint64_t begin_ = monotonic_ns();
};

/// By the other end, or reset.
bool closed(int fd);

/// This end sends by TCP from now on.
void set_gone(PipePage::Face& face);

/// Our last record, behind all bytes. EDEADLK: not for now.
Pipe::Done put_last_record(Socket& s);

/// Behind that record: this end has gone, and rings the other one. A process may be killed at each
/// step, and another one does it again.
void say_goodbye(int fd, Socket& s);

/// Rings the other end, or the carrier in its place.
void ring_or_tell_host(int fd, Socket& s);

/// The end that shutdown() still owes (socket_face::kEnding), of an end that sends by TCP.
void end_by_tcp(int fd, Socket& s);

/// Both directions are TCP's again: nothing is left to be done here, nor by others that share the
/// open file.
void settle(Socket& s);

/// What is read next is the kernel's.
void read_kernel(int fd, Socket& s);

/// The sets that hold it watch what the application asked for, if it is back on TCP.
void tell_sets(Socket& s);

}  // namespace clan::preload
