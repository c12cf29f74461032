#include "tcp/doorbell.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "clan/detail/dekker.h"
#include "clan/face/socket_face.h"
#include "kernel/tcp.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/remote.h"
#include "state/socket.h"
#include "table/fd_table.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using socket_face::kDoorbells;
using socket_face::kDoorbellsRead;
using socket_face::kGone;
using socket_face::kSending;

// A thread that was killed may have counted a doorbell and not sent it; the kernel knows.
void recount_rung(int fd, PipePage::Face& face) {
  const KeepErrno keep;
  std::uint64_t sent = 0;
  if ((state_of(face) & (kSending | kGone)) != kSending || !sent_by_tcp(fd, &sent)) return;
  auto relaxed = std::memory_order_relaxed;  // under the gate
  sent -= face.words[socket_face::kSwitchAt].load(relaxed);
  if (sent < face.words[kDoorbells].load(relaxed)) face.words[kDoorbells].store(sent, relaxed);
}

}  // namespace

Ringing::Ringing(int fd, PipePage::Face& face, OpenFileState& slot)
    // relaxed: under the gate
    : gate_(slot.bells), allowed_(slot.silent.load(std::memory_order_relaxed) == 0) {
  if (gate_.took_over()) [[unlikely]]
    recount_rung(fd, face);
}

ssize_t send_doorbell(int fd) {
  const char byte = 0;
  return sys::send(fd, &byte, sizeof byte, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t send_counted_doorbell(int fd, Socket& s) {
  const Ringing ringing(fd, s.mine(), s.open_file());
  errno = EAGAIN;
  if (!ringing) return -1;
  auto& doorbells = s.mine().words[socket_face::kDoorbells];
  // order: counted before the byte is sent, so that its receiver finds it counted
  doorbells.fetch_add(1, std::memory_order_seq_cst);
  ssize_t sent = -1;
  // A program that knows TCP alone may have the other end, or is about to.
  // PAIR face.given: Dekker with give_back(), behind the count
  const std::uint64_t given = dekker::load(s.theirs().words[socket_face::kGivenBack]);
  const bool may_ring = given == 0 || given == socket_face::kReadsOn || given > socket_face::kHush;
  while (may_ring && (sent = send_doorbell(fd)) < 0) {
    if (errno == EINTR) continue;
    const int other = closed_under_us() ? descriptor_of(s) : -1;
    if (other < 0 || other == fd) break;
    fd = other;
  }
  // EAGAIN: its queue is full of doorbells already. Else it is gone. order: as it was counted
  if (sent <= 0) doorbells.fetch_sub(1, std::memory_order_seq_cst);
  return sent;
}

void silence(int fd, PipePage::Face& face, OpenFileState& slot) {
  const Ringing ringing(fd, face, slot);
  slot.silent.store(1, std::memory_order_relaxed);  // relaxed: under the gate
}

bool drain_doorbells(int fd, Socket& s, std::uint64_t limit) {
  constexpr std::uint64_t kAtOnce = 4096;
  if (has_remote_bells(s) && take_remote_bells(fd, s, limit)) return true;
  const Draining draining(fd, s);
  auto& swallowed = s.mine().words[kDoorbellsRead];
  for (;;) {
    const std::uint64_t had = swallowed.load(std::memory_order_relaxed);  // relaxed: under the lock
    // order: the count is read after the doorbell that it counts
    const std::uint64_t rung = std::min(limit, doorbells_of(s.theirs(), std::memory_order_seq_cst));
    if (had >= rung) return true;
    const ssize_t n =
        sys::recv(fd, nullptr, std::min(rung - had, kAtOnce), MSG_TRUNC | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (!s.inherited.load(std::memory_order_relaxed)) return false;  // relaxed: of this process
      recount_doorbells(fd, s);  // one that was killed may have read them
      // relaxed: under the lock
      return swallowed.load(std::memory_order_relaxed) >= rung;
    }
    note_end(fd, s, n);
    if (n <= 0) return true;
    // relaxed: under the lock
    swallowed.store(had + static_cast<std::uint64_t>(n), std::memory_order_relaxed);
  }
}

}  // namespace clan::preload
