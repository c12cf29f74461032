#include "net/bell.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <mutex>

#include "clan/face/socket_face.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/remote.h"
#include "table/open_file.h"

namespace clan::preload {
namespace {

constexpr int kRung = 1, kQuiet = 2;

void set_low_water(int fd, int bytes) {
  sys::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

}  // namespace

void begin_bells(Socket& s) { s.remote_bells.store(true, std::memory_order_relaxed); }

void end_bells(int fd, Socket& s) {
  const std::lock_guard guard(s.bell_lock);
  if (!has_remote_bells(s)) return;
  // order: behind this the other end says that it is gone
  s.open_file().parked_byte.store((state_of(s.theirs()) & socket_face::kSending) != 0 ? 1 : 0,
                                  std::memory_order_seq_cst);
  s.remote_bells.store(false, std::memory_order_relaxed);
  set_low_water(fd, kRung);
}

void ring_here(int fd, Socket& s) {
  const std::lock_guard guard(s.bell_lock);
  if (!has_remote_bells(s)) return;
  // order: counted before it can be heard
  s.remote_rings.fetch_add(1, std::memory_order_seq_cst);
  set_low_water(fd, kRung);
}

bool take_bells(int fd, Socket& s, std::uint64_t limit) {
  const std::lock_guard guard(s.bell_lock);
  if (!has_remote_bells(s)) return false;
  // order: under the lock of all that change it
  const std::uint64_t rung = s.remote_rings.load(std::memory_order_seq_cst);
  const std::uint64_t had = s.remote_rings_taken.load(std::memory_order_relaxed);
  const std::uint64_t now = std::max(had, std::min(limit, rung));
  s.remote_rings_taken.store(now, std::memory_order_relaxed);
  // The kernel reports bytes from before the switch.
  if (now == rung && s.has_drained()) set_low_water(fd, kQuiet);
  return true;
}

void take_parked_byte(int fd, Socket& s) {
  const std::lock_guard guard(s.bell_lock);
  char byte;
  if (has_remote_bells(s) && s.has_drained()) (void)sys::recv(fd, &byte, 1, MSG_DONTWAIT);
}

bool park_byte(int fd) {
  constexpr int kLooks = 100;
  const char byte = 0;
  for (int i = 0; i < kLooks; ++i) {
    const ssize_t n = sys::send(fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n == 1) return true;
    if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
    pollfd p{fd, POLLOUT, 0};
    sys::poll(&p, 1, 1);
  }
  return false;
}

}  // namespace clan::preload
