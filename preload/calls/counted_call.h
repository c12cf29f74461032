// Calls that move bytes. While the socket is on TCP, the kernel serves them, counted so that no
// thread moves the socket meanwhile.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>

#include "clan/face/pipe.h"
#include "demote/demote.h"
#include "migrate/policy.h"
#include "stream/blocking.h"
#include "table/fd_table.h"
#include "table/open_file.h"
#include "tcp/call_gate.h"

namespace clan::preload {

constexpr int kMostVectors = 1024;                       ///< UIO_MAXIOV
constexpr int kNotOfTheStream = MSG_OOB | MSG_ERRQUEUE;  ///< receiving these is the kernel's

/// Makes the kernel's `call` while the socket is on TCP, or `moved`, the library's. `flags`: MSG_….
/// `bytes` converts a positive result to a number of bytes.
template <bool kSends, typename Call, typename Moved, typename Bytes = std::identity>
ssize_t counted_call(int fd, int flags, Call&& call, Moved&& moved, const Bytes& bytes = {}) {
  const auto below = [&]() -> ssize_t {
    const ssize_t n = call();
    if (kSends) Pipe::note_kernel_write();
    return n;
  };
  if (is_the_kernels(fd)) return below();
  SocketRef s = acquire(fd);
  if (!s) return below();
  return keeping_errno([&]() -> ssize_t {
    if (s->shared()) [[likely]]
      return moved(*s);
    kSends ? before_send(fd, *s) : before_receive(fd, *s);
    NapsInCall naps(fd, *s, flags, kSends ? SO_SNDTIMEO : SO_RCVTIMEO);
    for (std::uint32_t turn = 0;; ++turn) {
      if (s->shared()) return moved(*s);
      OpenFileState& slot = s->open_file();
      auto& gate = kSends ? slot.sends : slot.receives;
      ssize_t n = -1;
      bool done = false;
      {
        const OpenFileState::UnderWay counted(gate);
        done = counted && !s->shared();
        if (done) n = below();
        // relaxed: read behind the closed gate
        if (n > 0 && (kSends || (flags & (MSG_PEEK | kNotOfTheStream)) == 0))
          (kSends ? slot.sent : slot.received)
              .fetch_add(static_cast<std::uint64_t>(bytes(n)), std::memory_order_relaxed);
      }
      if (done) {
        if (!kSends && n > 0 && (flags & MSG_PEEK) == 0) after_receive(fd, *s);
        return n;
      }
      if (!await_gate(gate, turn) && !naps.nap()) return -1;
    }
  });
}

template <typename... Rest>
ssize_t receiving(int fd, int flags, Rest&&... rest) {
  return counted_call<false>(fd, flags, rest...);
}
template <typename... Rest>
ssize_t sending(int fd, int flags, Rest&&... rest) {
  return counted_call<true>(fd, flags, rest...);
}

inline bool bad_buffers(const iovec* buffers, int count) {
  if (count < 0 || count > kMostVectors || (count > 0 && buffers == nullptr)) {
    errno = EINVAL;
    return true;
  }
  return false;
}

/// Tells whether readv() and its like return 0, whatever the state of the socket.
inline bool has_no_bytes(const iovec* buffers, int count) {
  return std::all_of(buffers, buffers + count, [](const iovec& one) { return one.iov_len == 0; });
}

/// Takes the connection back for flags of sends that only TCP can serve, such as urgent data, and
/// for MSG_FASTOPEN, after which it is not worth moving.
inline void leave_if_tcps(int fd, int flags) {
  if ((flags & (MSG_OOB | MSG_ZEROCOPY | MSG_FASTOPEN)) == 0) return;
  leave_pipe(fd, false,
             (flags & MSG_OOB) != 0        ? reasons::Why::kUrgent
             : (flags & MSG_ZEROCOPY) != 0 ? reasons::Why::kZeroCopy
                                           : reasons::Why::kFastOpen);
}

}  // namespace clan::preload
