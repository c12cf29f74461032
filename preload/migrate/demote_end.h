// One direction's way back to TCP, step by step: for the initiator, and for the end that answers.
#pragma once

#include <cstdint>

#include "clan/pipe.h"
#include "clan/socket_face.h"
#include "state/socket.h"

namespace clan::preload {

constexpr std::uint64_t kForOtherEndNs = 10'000'000'000u;  ///< until its program makes a call
using socket_face::kDone, socket_face::kNothing, socket_face::kReadsOn;

void nap();

/// By the other end, or reset.
bool closed(int fd);

/// Nobody of the end rings any more: as many doorbells as its word says from now on have been sent.
/// One that was killed or stopped on its way was counted, and is not to be taken for a byte of the
/// application's. `fd`: the end's.
void close_count(int fd, PipePage::Face& face);

/// This end sends by TCP from now on; the number of its doorbells stays.
void set_gone(PipePage::Face& face);

/// Our last record, behind all bytes. EBUSY: not for now.
Pipe::Done put_last_record(Socket& s);

/// The doorbell that tells of it, `last`; then nobody rings any more, and this end has gone.
/// `rings` false: only if somebody else may owe one for bytes before that record; what we send by
/// TCP tells of the record soon enough. A doorbell that its receiver has not read when it is killed
/// makes the kernel reset the connection, and drop what it had sent by TCP. False: some thread
/// rings for long, see silence(), and this is to be done again later.
///
/// A process may be killed at each of these, and another one does them again:
///   1 a doorbell, by a DoorbellCall: behind the closed gate it is not sent
///   2 the gate is closed
///   3 the count is closed, by the kernel's number: once closed it stays what it is
///   4 kGone is said
/// Before 4 nobody sends anything else by TCP. So at 3 the kernel has sent all doorbells and
/// nothing else, by whichever thread.
bool say_goodbye(int fd, Socket& s, const Pipe::Done& last, bool rings = true);

/// The end that shutdown() still owes (socket_face::kEnding), of an end that sends by TCP.
void end_by_tcp(int fd, Socket& s);

/// Both directions are TCP's again: nothing is left to be done here, nor by others that share the
/// open file. TCP has the program's options again: not before, as it holds back small pieces by
/// them while the last doorbell is on its way.
void settle(int fd, Socket& s);

/// What is read next is the kernel's.
void read_kernel(int fd, Socket& s);

/// The sets that hold it watch what the application asked for, if it is back on TCP.
void tell_sets(Socket& s);

}  // namespace clan::preload
