#include "far/bell.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "clan/socket_face.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/fd_table.h"

namespace clan::preload {
namespace {

using socket_face::kDoorbells;
using socket_face::kSwallowed;

constexpr int kRung = 1, kQuiet = 2;

void set_low_water(int fd, int bytes) {
  sys::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

class BellGuard {
 public:
  explicit BellGuard(Socket& s) : s_(s) { s.bell_lock.lock(); }
  ~BellGuard() { s_.bell_lock.unlock(); }
  BellGuard(const BellGuard&) = delete;
  BellGuard& operator=(const BellGuard&) = delete;

 private:
  Undisturbed undisturbed_;
  Socket& s_;
};

}  // namespace

int some_descriptor_of(Socket& s) {
  KeepErrno keep;
  int fd = s.far_fd.load(std::memory_order_relaxed);
  if (fd >= 0 && hold(fd).get() == &s) return fd;
  fd = descriptor_of(s);
  s.far_fd.store(fd, std::memory_order_relaxed);
  return fd;
}

void begin_far_bells(int fd, Socket& s) {
  s.far_fd.store(fd, std::memory_order_relaxed);
  s.far_bells.store(true, std::memory_order_relaxed);
}

void end_far_bells(Socket& s) {
  const int fd = some_descriptor_of(s);
  const BellGuard guard(s);
  if (!has_far_bells(s)) return;
  const bool parked = (state_of(s.theirs()) & socket_face::kSending) != 0;
  // order: behind these words the other end says that it is gone
  s.mine().words[kSwallowed].store(0, std::memory_order_seq_cst);
  s.theirs().words[kDoorbells].store(parked ? 1 : 0, std::memory_order_seq_cst);
  s.far_bells.store(false, std::memory_order_relaxed);
  if (fd >= 0) set_low_water(fd, kRung);
}

void ring_here(Socket& s) {
  KeepErrno keep;
  const int fd = some_descriptor_of(s);
  const BellGuard guard(s);
  if (!has_far_bells(s) || fd < 0) return;
  // order: counted before it can be heard
  s.theirs().words[kDoorbells].fetch_add(1, std::memory_order_seq_cst);
  set_low_water(fd, kRung);
}

bool take_far_bells(int fd, Socket& s, std::uint64_t limit) {
  const BellGuard guard(s);
  if (!has_far_bells(s)) return false;
  auto& swallowed = s.mine().words[kSwallowed];
  // order: under the lock of all that change it
  const std::uint64_t rung = doorbells_of(s.theirs(), std::memory_order_seq_cst);
  const std::uint64_t had = swallowed.load(std::memory_order_relaxed);
  const std::uint64_t now = std::max(had, std::min(limit, rung));
  swallowed.store(now, std::memory_order_relaxed);
  // Bytes of before the switch are told of by the kernel.
  if (now == rung && s.has_drained()) set_low_water(fd, kQuiet);
  return true;
}

void take_parked_byte(int fd, Socket& s) {
  const BellGuard guard(s);
  char byte;
  if (has_far_bells(s) && s.has_drained()) (void)sys::recv(fd, &byte, 1, MSG_DONTWAIT);
}

bool has_room_to_park(int fd) {
  pollfd p{fd, POLLOUT, 0};
  return sys::poll(&p, 1, 0) > 0 && (p.revents & POLLOUT) != 0;
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
