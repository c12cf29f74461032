#include "tcp/aborted.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string_view>

#include "clan/detail/log.h"
#include "clan/face/socket_face.h"
#include "kernel/proc.h"
#include "kernel/tcp.h"
#include "state/face.h"
#include "state/named.h"
#include "state/remote.h"

namespace clan::preload {
namespace {

// The process that moved the other end still has it. By its number, which means another process in
// another pid namespace, and by the pipe's, which does not.
bool other_end_lives(const Socket& s) {
  constexpr std::uint64_t kHasClosed = socket_face::kClosed | socket_face::kMoverClosed;
  if ((state_of(s.theirs()) & kHasClosed) != 0) return false;
  // relaxed: a number by itself
  const std::uint64_t process =
      s.theirs().words[socket_face::kProcess].load(std::memory_order_relaxed);
  char inode[32];
  const int size =
      std::snprintf(inode, sizeof inode, " %llu ", static_cast<unsigned long long>(s.pipe.inode()));
  return maps(static_cast<pid_t>(process >> 32), {inode, static_cast<std::size_t>(size)});
}

// The kernel resets for bytes that nobody has read, and doorbells may be all there were.
bool comes_of_doorbells(const Socket& s) {
  auto relaxed = std::memory_order_relaxed;  // counts that change no more
  const std::uint64_t read = s.theirs().words[socket_face::kDoorbellsRead].load(relaxed);
  if (read == doorbells_of(s.mine(), relaxed)) return false;
  return !other_end_lives(s);
}

// For all processes of both ends: it may be closed before they have looked.
void say_reset(Socket& s) {
  if (!s.pipe) return;
  for (PipePage::Face* face : {&s.mine(), &s.theirs()}) add_state(*face, socket_face::kReset);
}

}  // namespace

void note_error(Socket& s, int error) {
  s.error_taken.set();
  // Behind the other end's it is EPIPE, which says nothing new.
  if (s.pipe && !is_remote(s) && error != EPIPE &&
      !(error == ECONNRESET && comes_of_doorbells(s))) {
    s.error.store(error, std::memory_order_relaxed);  // relaxed: kernel_error publishes it
    say_reset(s);
  }
  s.kernel_error.set();
}

void break_off(int fd, Socket& s, const char* why) {
  const Named connection(fd, s);
  log_line(LogLevel::kError,
           "%s: %s; the connection is reset. CLAN_EXCEPT=%u keeps such connections on TCP",
           connection.text(), why, connection.port());
  say_reset(s);
  s.kernel_error.set();
  reset_connection(fd);
}

}  // namespace clan::preload
