// Calls that move messages, and descriptors in them.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "af_clan/af_clan.h"
#include "calls/counted_call.h"
#include "calls/interpose.h"
#include "migrate/demote.h"
#include "os/real.h"
#include "os/sys.h"
#include "share/passing.h"
#include "stream/receive.h"
#include "stream/send.h"

using namespace clan::preload;

namespace {

ssize_t receive_message(int fd, Socket& s, msghdr* message, int flags) {
  if (message->msg_iovlen > kMostVectors) {
    errno = EMSGSIZE;
    return -1;
  }
  // MSG_TRUNC on TCP: the bytes are thrown away.
  iovec nowhere[64];
  const iovec* buffers = message->msg_iov;
  auto count = static_cast<int>(message->msg_iovlen);
  if ((flags & MSG_TRUNC) != 0) {
    count = std::min(count, 64);
    for (int i = 0; i < count; ++i) nowhere[i] = {nullptr, message->msg_iov[i].iov_len};
    buffers = nowhere;
  }
  const ssize_t n = shared_receive(fd, s, buffers, count, flags & ~MSG_TRUNC);
  if (n >= 0) {
    message->msg_namelen = 0;
    message->msg_controllen = 0;
    message->msg_flags = 0;
  }
  return n;
}

std::size_t bytes_of(const msghdr& message) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) n += message.msg_iov[i].iov_len;
  return n;
}

// The descriptors that a message carries.
template <typename Each>
void passed(const msghdr* message, Each&& each) {
  if (message == nullptr || message->msg_control == nullptr) return;
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(const_cast<msghdr*>(message), c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < n; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      each(fd);
    }
  }
}

ssize_t plain_recvmsg(int fd, msghdr* message, int flags) {
  return is_af_clan_packet(fd) ? af_clan_recvmsg(fd, message, flags) : real().recvmsg(fd, message, flags);
}

ssize_t plain_sendmsg(int fd, const msghdr* message, int flags) {
  return is_af_clan_packet(fd) ? af_clan_sendmsg(fd, message, flags) : real().sendmsg(fd, message, flags);
}

int plain_recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  if (is_af_clan_packet(fd)) return af_clan_recvmmsg(fd, messages, count, flags, timeout);
  return real().recvmmsg(fd, messages, count, flags, timeout);
}

int plain_sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  if (is_af_clan_packet(fd)) return af_clan_sendmmsg(fd, messages, count, flags);
  return real().sendmmsg(fd, messages, count, flags);
}

}  // namespace

CLAN_INTERPOSE ssize_t recvmsg(int fd, msghdr* message, int flags) {
  const ssize_t n = receiving(
      fd, (flags & MSG_PEEK) != 0, [&] { return plain_recvmsg(fd, message, flags); },
      [&](Socket& s) -> ssize_t {
        if ((flags & kNotOfTheStream) != 0) return real().recvmsg(fd, message, flags);
        return receive_message(fd, s, message, flags);
      });
  if (n >= 0 && message->msg_controllen > 0) {
    passed(message, [&](int other) { adopt_passed(other, fd, (flags & MSG_PEEK) != 0); });
  }
  return n;
}

CLAN_INTERPOSE int recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  const ssize_t received = receiving(
      fd, (flags & MSG_PEEK) != 0,
      [&]() -> ssize_t { return plain_recvmmsg(fd, messages, count, flags, timeout); },
      [&](Socket& s) -> ssize_t {
        if ((flags & kNotOfTheStream) != 0) return real().recvmmsg(fd, messages, count, flags, timeout);
        ssize_t n = 0;
        for (unsigned i = 0; i < count; ++i) {
          const int more = i > 0 && (flags & MSG_WAITFORONE) != 0 ? MSG_DONTWAIT : 0;
          const ssize_t got = receive_message(fd, s, &messages[i].msg_hdr, (flags & ~MSG_WAITFORONE) | more);
          if (got < 0) return n > 0 ? n : -1;
          messages[i].msg_len = static_cast<unsigned>(got);
          ++n;
        }
        return n;
      });
  for (ssize_t i = 0; i < received; ++i) {
    if (messages[i].msg_hdr.msg_controllen > 0) {
      passed(&messages[i].msg_hdr, [&](int other) { adopt_passed(other, fd, (flags & MSG_PEEK) != 0); });
    }
  }
  return static_cast<int>(received);
}

CLAN_INTERPOSE ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  leave_if_tcps(fd, flags);
  const bool passes = message != nullptr && message->msg_controllen > 0;
  if (passes) passed(message, [fd](int other) { pass_on(other, fd); });
  const ssize_t rc = sending(
      fd, [&] { return plain_sendmsg(fd, message, flags); },
      [&](Socket& s) -> ssize_t {
        if (message->msg_iovlen > kMostVectors) {
          errno = EMSGSIZE;
          return -1;
        }
        return shared_send(fd, s, message->msg_iov, static_cast<int>(message->msg_iovlen), flags);
      });
  if (passes && rc < 0) {
    KeepErrno errno_of_send;
    passed(message, not_sent);
  }
  return rc;
}

CLAN_INTERPOSE int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  leave_if_tcps(fd, flags);
  for (unsigned i = 0; messages != nullptr && i < count; ++i) {
    const msghdr& m = messages[i].msg_hdr;
    if (m.msg_controllen > 0)
      passed(&m, [](int other) {
        leave_pipe(other, true, clan::reasons::Why::kPassed);
      });  // how many will go is not known
  }
  return static_cast<int>(sending(
      fd, [&]() -> ssize_t { return plain_sendmmsg(fd, messages, count, flags); },
      [&](Socket& s) -> ssize_t {
        ssize_t n = 0;
        for (unsigned i = 0; i < count; ++i) {
          const msghdr& m = messages[i].msg_hdr;
          if (m.msg_iovlen > kMostVectors) {
            if (n == 0) errno = EMSGSIZE;
            return n > 0 ? n : -1;
          }
          const ssize_t sent = shared_send(fd, s, m.msg_iov, static_cast<int>(m.msg_iovlen), flags);
          if (sent < 0) return n > 0 ? n : -1;
          messages[i].msg_len = static_cast<unsigned>(sent);
          ++n;
          if (static_cast<std::size_t>(sent) < bytes_of(m)) break;  // nothing may come behind the gap
        }
        return n;
      }));
}
