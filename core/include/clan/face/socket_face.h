// What the interposer keeps in PipePage::Face: the state of a TCP connection that has moved into a
// pipe, for its other end and for `clan stat`.
//
// Word by word, each written by the end it belongs to; the other end may set kGone when it leaves.
#pragma once

#include <cstdint>

namespace clan::socket_face {

enum Word : std::uint32_t {
  kState = 0,     ///< bits of State
  kSwitchAt,      ///< bytes this end has sent by TCP before the first in the pipe
  kProcess,       ///< pid << 32 | uid, of the process that moved it here
  kCookie,        ///< SO_COOKIE of this end's socket
  kPorts,         ///< address family << 32 | local port << 16 | remote port
  kLocalAddress,  ///< 16 bytes in network order, IPv4 in the first 4
  kRemoteAddress = kLocalAddress + 2,
  kSleeps = kRemoteAddress + 2,  ///< waits that went to sleep
  kWakeups,                      ///< rings of the other end's bell
  kGivenBack,  ///< when leaving: kReadsOn, or kGiven
  kWords,
};
static_assert(kWords <= 16);

enum State : std::uint64_t {
  kAttached = 1,  ///< this end knows the pipe and reads it
  kSending = 2,   ///< it sends here: kSwitchAt holds
  kLeaving = 4,   ///< it wants both to go back to TCP, and its unread bytes to be sent there
  kGone = 8,      ///< it sends by TCP again, and there is a last record if kSending
  kClosed = 16,   ///< its last descriptor has been closed: nobody is to be woken there
  /// and that was to be a reset, as with bytes left unread or SO_LINGER of 0; or it was reset
  kReset = 32,
  kResends = 64,  ///< kGone, and it sends again what the other end, which is leaving, has not read
  /// its other end is on another host, and a carrier is the one in this pipe
  kFar = 1024,
  kMoverClosed = 8192,  ///< the process of kProcess has closed it, and others have it
  kShut = 4096,         ///< its program reads and sends no more, and has not closed it
  kEnding = 512,  ///< its program has half-closed, and the other end is still to be notified: a
                  ///< process of this end has the lock
};

/// What an end that leaves says of the bytes in its ring: it reads them there, or has set them
/// aside (Pipe::set_aside()), and the other end sends them again by TCP. 0: nothing yet.
constexpr std::uint64_t kReadsOn = 1, kGiven = 2;

/// The name of the memfd, as /proc/<pid>/fd shows it: "/memfd:clan-pipe (deleted)".
constexpr char kMemfdName[] = "clan-pipe";

}  // namespace clan::socket_face
