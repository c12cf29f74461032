// Options of sockets.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>

#include "af_clan/af_clan.h"
#include "calls/interpose.h"
#include "clan/af_clan.h"
#include "clan/face/socket_face.h"
#include "demote/demote.h"
#include "kernel/kernels_options.h"
#include "os/real.h"
#include "stream/ending.h"
#include "table/buffers.h"
#include "table/fd_table.h"
#include "tcp/tcp_backlog.h"

using namespace clan::preload;

namespace {

// Options of how TCP sends, which are set for doorbells while a socket sends by its pipe. The bit
// of kState that says how the program has them; 0: any other option, or TCP's own.
std::uint64_t kept_option(const Socket& s, int level, int name) {
  using namespace clan::socket_face;
  if (level != IPPROTO_TCP || (name != TCP_NODELAY && name != TCP_CORK) || !s.shared()) return 0;
  // PAIR face.state
  const std::uint64_t state = s.mine().words[kState].load(std::memory_order_acquire);
  if ((state & (kSending | kOptionsBack)) != kSending) return 0;
  return name == TCP_NODELAY ? kNodelay : kCorked;
}

// A pipe delays nothing. TCP has to know only if it sends again. True: it has.
bool keep_option(int fd, Socket& s, std::uint64_t bit, bool on) {
  auto& word = s.mine().words[clan::socket_face::kState];
  // order: see give_options_back()
  const std::uint64_t before = on ? word.fetch_or(bit, std::memory_order_acq_rel)
                                  : word.fetch_and(~bit, std::memory_order_acq_rel);
  if (sends_tcp(s)) give_options_back(fd, s.mine());
  return (before & clan::socket_face::kOptionsBack) != 0;
}

// As the program has such an option; -1: as TCP says, which is asked behind this.
int kept_value(int fd, int level, int name) {
  if (level != IPPROTO_TCP) return -1;
  const SocketRef s = acquire(fd);
  const std::uint64_t bit = s ? kept_option(*s, level, name) : 0;
  if (bit == 0) return -1;
  return (state_of(s->mine()) & bit) != 0 ? 1 : 0;
}

// The kernel's SO_RCVLOWAT is 1 while the pipe is read: a doorbell is one byte, and has to wake.
bool keeps_low_water(const Socket& s) { return s.shared() && !s.reads_kernel(); }

}  // namespace

CLAN_INTERPOSED(int, getsockopt, (int fd, int level, int name, void* value, socklen_t* size),
                (fd, level, name, value, size)) {
  if (level == SOL_SOCKET && name == SO_ERROR && value != nullptr && size != nullptr &&
      *size >= sizeof(int)) {
    // The kernel's may be of a doorbell.
    if (SocketRef s = acquire(fd); s && s->shared()) {
      *static_cast<int*>(value) = take_error(fd, *s);
      *size = sizeof(int);
      return 0;
    }
  }
  // It receives.
  if (level == IPPROTO_TCP && name == TCP_ZEROCOPY_RECEIVE)
    leave_pipe(fd, true, clan::reasons::Why::kZeroCopyReceive);
  const int kept = kept_value(fd, level, name);
  const int rc = real().getsockopt(fd, level, name, value, size);
  if (rc == 0 && level == SOL_SOCKET && name == SO_RCVLOWAT && *size == sizeof(int)) {
    if (SocketRef s = acquire(fd); s && keeps_low_water(*s))
      *static_cast<int*>(value) = s->low_water.load(std::memory_order_relaxed);
  }
  if (rc == 0 && level == IPPROTO_TCP && name == TCP_INFO) {
    if (SocketRef s = acquire(fd)) show_pipe_in_tcp_info(fd, *s, value, *size);
  }
  if (rc == 0 && kept >= 0 && *size == sizeof(int)) *static_cast<int*>(value) = kept;
  if (rc == 0 && is_af_clan(fd) && level == SOL_SOCKET && *size == sizeof(int)) {
    if (name == SO_DOMAIN) *static_cast<int*>(value) = AF_CLAN;
    if (name == SO_PROTOCOL) *static_cast<int*>(value) = 0;
  }
  return rc;
}

CLAN_INTERPOSED(int, setsockopt, (int fd, int level, int name, const void* value, socklen_t size),
                (fd, level, name, value, size)) {
  if (const KernelsOption* option = kernels_option(level, name, value, size))
    leave_pipe(fd, option->at_once, option->why);
  if (SocketRef s = acquire(fd); s && size >= sizeof(int) && value != nullptr) {
    if (const std::uint64_t bit = kept_option(*s, level, name); bit != 0) {
      if (!keep_option(fd, *s, bit, *static_cast<const int*>(value) != 0)) return 0;
    }
  }
  if (level == SOL_SOCKET && name == SO_RCVLOWAT && size >= sizeof(int) && value != nullptr) {
    if (SocketRef s = acquire(fd)) {
      const int mark = low_water_as_tcp(fd, *static_cast<const int*>(value));
      s->low_water.store(mark, std::memory_order_relaxed);  // relaxed: a number by itself
      if (keeps_low_water(*s)) return 0;
    }
  }
  const int rc = real().setsockopt(fd, level, name, value, size);
  constexpr int kBufLock = 72;  // SO_BUF_LOCK, in headers of Linux 5.16
  constexpr int kOfBuffers[] = {SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE, kBufLock};
  if (rc == 0 && level == SOL_SOCKET &&
      std::ranges::find(kOfBuffers, name) != std::end(kOfBuffers)) {
    if (SocketRef s = acquire(fd); s && s->shared()) limit_as_tcp(fd, *s);
  }
  return rc;
}
