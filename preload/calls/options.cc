// Socket options.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

#include "af_clan/af_clan_table.h"
#include "calls/interpose.h"
#include "clan/af_clan.h"
#include "demote/demote.h"
#include "kernel/kernels_options.h"
#include "os/real.h"
#include "stream/ending.h"
#include "table/buffers.h"
#include "table/fd_table.h"

using namespace clan::preload;

namespace {

// The kernel's SO_RCVLOWAT is 1 while the pipe is read: TCP's last bytes may be few, and more are
// in the pipe.
bool keeps_low_water(const Socket& s) { return s.shared() && !s.reads_kernel(); }

}  // namespace

CLAN_INTERPOSED(int, getsockopt, (int fd, int level, int name, void* value, socklen_t* size),
                (fd, level, name, value, size)) {
  if (level == SOL_SOCKET && name == SO_ERROR && value != nullptr && size != nullptr &&
      *size >= sizeof(int)) {
    // The pipe may have reported it, and bytes may come before it.
    if (SocketRef s = acquire(fd); s && s->shared()) {
      *static_cast<int*>(value) = take_error(fd, *s);
      *size = sizeof(int);
      return 0;
    }
  }
  // This option receives.
  if (level == IPPROTO_TCP && name == TCP_ZEROCOPY_RECEIVE)
    leave_pipe(fd, true, clan::reasons::Why::kZeroCopyReceive);
  const int rc = real().getsockopt(fd, level, name, value, size);
  if (rc == 0 && level == SOL_SOCKET && name == SO_RCVLOWAT && *size == sizeof(int)) {
    if (SocketRef s = acquire(fd); s && keeps_low_water(*s))
      *static_cast<int*>(value) = s->low_water.load(std::memory_order_relaxed);
  }
  if (rc == 0 && level == IPPROTO_TCP && name == TCP_INFO) {
    if (SocketRef s = acquire(fd)) show_pipe_in_tcp_info(fd, *s, value, *size);
  }
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
  if (level == SOL_SOCKET && name == SO_RCVLOWAT && size >= sizeof(int) && value != nullptr) {
    if (SocketRef s = acquire(fd)) {
      const int mark = low_water_as_tcp(fd, *static_cast<const int*>(value));
      s->low_water.store(mark, std::memory_order_relaxed);  // relaxed: a number by itself
      if (keeps_low_water(*s)) return 0;
    }
  }
  const int rc = real().setsockopt(fd, level, name, value, size);
  // In both layouts: a program with another time_t uses the _NEW numbers.
  constexpr int kTimeouts[] = {SO_RCVTIMEO, SO_SNDTIMEO, SO_RCVTIMEO_NEW, SO_SNDTIMEO_NEW};
  if (level == SOL_SOCKET && std::ranges::find(kTimeouts, name) != std::end(kTimeouts)) {
    if (SocketRef s = acquire(fd)) s->forget_timeouts();
  }
  constexpr int kBufLock = 72;  // SO_BUF_LOCK, in headers of Linux 5.16
  constexpr int kBuffers[] = {SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE, kBufLock};
  if (rc == 0 && level == SOL_SOCKET && std::ranges::find(kBuffers, name) != std::end(kBuffers)) {
    if (SocketRef s = acquire(fd); s && s->shared()) limit_as_tcp(fd, *s);
  }
  return rc;
}
