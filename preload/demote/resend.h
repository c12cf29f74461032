// An end sends again, by TCP, what its other end had not read in the pipe when it left
// (Pipe::set_aside()).
//
// The thread that does so has closed OpenFileState::sends in the name of its process
// (resender_id()), so that nothing overtakes it. If that process is killed, the next call of
// another one that shares the end resets the connection.
#pragma once

#include <cstdint>

#include "clan/detail/words.h"
#include "state/socket.h"
#include "table/open_file.h"

namespace clan::preload {

/// The name by which this process closes the sends of a socket while it sends again.
std::int32_t resender_id();

/// Sends it: as much as TCP takes now, and a thread sends the rest. The sends of the socket are
/// closed by resender_id(). What cannot be sent resets the connection.
void resend(int fd, Socket& s);

/// Some process of this end sends again. A glance.
inline bool is_sent_again(const Socket& s) {
  // PAIR preload.gate: sees what was sent before it was opened
  return s.is_resending() || OpenFileState::is_resend(words::load_acquire(s.open_file().sends));
}

/// What the other end has not read is on its way, by this process or another: nothing may overtake
/// it. Resets the connection if that process has been killed.
bool resends(int fd, Socket& s);

/// Before this process loses its threads, by exit or exec: all that is to be sent again has been
/// when this returns. A peer that does not read it within ten seconds sees a reset.
void finish_resends();

/// For fork, and after it in the child: the parent goes on.
void lock_resends();

void unlock_resends();
void resends_forked();

}  // namespace clan::preload
