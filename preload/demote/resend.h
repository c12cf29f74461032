// Sends again, by TCP, what the peer had not read in the pipe when it left (Pipe::set_aside()).
//
// Meanwhile OpenFileState::sends is closed in the name of the process (resender_id()), so that
// nothing overtakes it. If the process is killed, the next call of another process of the end
// resets the connection.
#pragma once

#include <cstdint>

#include "clan/detail/words.h"
#include "state/socket.h"
#include "table/open_file.h"

namespace clan::preload {

std::int32_t resender_id();

/// Sends what TCP takes now; a thread sends the rest. `sends` is closed by resender_id(). Resets
/// the connection if it fails.
void resend(int fd, Socket& s);

/// Whether a process of this end sends again; a quick check.
inline bool is_sent_again(const Socket& s) {
  // PAIR preload.gate: sees what was sent before it was opened
  return s.is_resending() || OpenFileState::is_resend(words::load_acquire(s.open_file().sends));
}

/// Whether bytes are being sent again, which nothing may overtake. Resets the connection if the
/// process that did so was killed.
bool resends(int fd, Socket& s);

/// Waits until all is sent again, before exit or exec ends the threads; resets after ten seconds.
void finish_resends();

/// For fork: lock before, unlock after; in the child, resends_forked(), as the parent goes on.
void lock_resends();

void unlock_resends();
void resends_forked();

/// Sends again what this end has not read, in the peer's place, which has gone back when this
/// returns true. False: the kernel does not allow it, or the peer is in another pid namespace.
bool do_their_part(int fd, Socket& s);

}  // namespace clan::preload
