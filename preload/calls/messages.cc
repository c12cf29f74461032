// Calls that move messages, and descriptors in them.
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>

#include "af_clan/af_clan.h"
#include "calls/counted_call.h"
#include "calls/interpose.h"
#include "demote/demote.h"
#include "os/real.h"
#include "os/sys.h"
#include "os/timeout.h"
#include "share/passing.h"
#include "stream/iovec_slice.h"
#include "stream/receive.h"
#include "stream/send.h"

using namespace clan::preload;

namespace {

// MSG_TRUNC on TCP throws the bytes away.
ssize_t discard(int fd, Socket& s, const msghdr& message, int flags) {
  const Changed nowhere(message.msg_iov, static_cast<int>(message.msg_iovlen), [](iovec& one) {
    one.iov_base = nullptr;
    return true;
  });
  if (nowhere.buffers() == nullptr) return fail(ENOMEM);
  return shared_receive(fd, s, nowhere.buffers(), nowhere.count(), flags);
}

ssize_t receive_message(int fd, Socket& s, msghdr* message, int flags) {
  if (message->msg_iovlen > kMostVectors) return fail(EMSGSIZE);
  const ssize_t n =
      (flags & MSG_TRUNC) != 0
          ? discard(fd, s, *message, flags)
          : shared_receive(fd, s, message->msg_iov, static_cast<int>(message->msg_iovlen), flags);
  if (n >= 0) {
    message->msg_namelen = 0;
    message->msg_controllen = 0;
    message->msg_flags = 0;
  }
  return n;
}

ssize_t send_message(int fd, Socket& s, const msghdr& message, int flags) {
  if (message.msg_iovlen > kMostVectors) return fail(EMSGSIZE);
  return shared_send(fd, s, message.msg_iov, static_cast<int>(message.msg_iovlen), flags);
}

auto bytes_of_first(const mmsghdr* messages) {
  return [messages](ssize_t n) {
    ssize_t bytes = 0;
    for (ssize_t i = 0; i < n; ++i) bytes += messages[i].msg_len;
    return bytes;
  };
}

ssize_t plain_recvmsg(int fd, msghdr* message, int flags) {
  if (is_af_clan_packet(fd)) return af_clan_recvmsg(fd, message, flags);
  const ssize_t n = real().recvmsg(fd, message, flags);
  if (n >= 0) adopt_passed(*message, fd, (flags & MSG_PEEK) != 0);
  return n;
}

ssize_t plain_sendmsg(int fd, const msghdr* message, int flags) {
  return is_af_clan_packet(fd) ? af_clan_sendmsg(fd, message, flags)
                               : real().sendmsg(fd, message, flags);
}

int plain_recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  if (is_af_clan_packet(fd)) return af_clan_recvmmsg(fd, messages, count, flags, timeout);
  const int n = real().recvmmsg(fd, messages, count, flags, timeout);
  for (int i = 0; i < n; ++i) adopt_passed(messages[i].msg_hdr, fd, (flags & MSG_PEEK) != 0);
  return n;
}

int plain_sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  if (is_af_clan_packet(fd)) return af_clan_sendmmsg(fd, messages, count, flags);
  return real().sendmmsg(fd, messages, count, flags);
}

}  // namespace

CLAN_INTERPOSED_BYTES(ssize_t, recvmsg, (int fd, msghdr* message, int flags),
                      (fd, message, flags)) {
  return receiving(
      fd, flags, [&] { return plain_recvmsg(fd, message, flags); },
      [&](Socket& s) -> ssize_t {
        if ((flags & kNotOfTheStream) != 0) return real().recvmsg(fd, message, flags);
        return receive_message(fd, s, message, flags);
      });
}

CLAN_INTERPOSED_BYTES(int, recvmmsg,
                      (int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout),
                      (fd, messages, count, flags, timeout)) {
  return static_cast<int>(receiving(
      fd, flags, [&]() -> ssize_t { return plain_recvmmsg(fd, messages, count, flags, timeout); },
      [&](Socket& s) -> ssize_t {
        if ((flags & kNotOfTheStream) != 0)
          return real().recvmmsg(fd, messages, count, flags, timeout);
        return receive_each(messages, count, flags, timeout, [&](msghdr* one, int with) {
          return receive_message(fd, s, one, with);
        });
      },
      bytes_of_first(messages)));
}

CLAN_INTERPOSED_BYTES(ssize_t, sendmsg, (int fd, const msghdr* message, int flags),
                      (fd, message, flags)) {
  leave_if_tcps(fd, flags);
  const bool passes = message != nullptr && message->msg_controllen > 0;
  if (passes) for_each_passed(*message, pass_on);
  const ssize_t rc = sending(
      fd, flags, [&] { return plain_sendmsg(fd, message, flags); },
      [&](Socket& s) -> ssize_t { return send_message(fd, s, *message, flags); });
  if (passes && rc < 0) {
    KeepErrno errno_of_send;
    for_each_passed(*message, not_sent);
  }
  return rc;
}

CLAN_INTERPOSED_BYTES(int, sendmmsg, (int fd, mmsghdr* messages, unsigned count, int flags),
                      (fd, messages, count, flags)) {
  leave_if_tcps(fd, flags);
  for (unsigned i = 0; messages != nullptr && i < count; ++i) {
    const msghdr& m = messages[i].msg_hdr;
    // How many will be sent is not known, so the connections go back to TCP.
    if (m.msg_controllen > 0)
      for_each_passed(m, [](int other) { leave_pipe(other, true, clan::reasons::Why::kPassed); });
  }
  return static_cast<int>(sending(
      fd, flags, [&]() -> ssize_t { return plain_sendmmsg(fd, messages, count, flags); },
      [&](Socket& s) -> ssize_t {
        ssize_t n = 0;
        for (unsigned i = 0; i < count; ++i) {
          const msghdr& m = messages[i].msg_hdr;
          const ssize_t sent = send_message(fd, s, m, flags);
          if (sent < 0) return n > 0 ? n : -1;
          messages[i].msg_len = static_cast<unsigned>(sent);
          ++n;
          // Nothing may follow the gap.
          if (static_cast<std::size_t>(sent) < total(m.msg_iov, static_cast<int>(m.msg_iovlen)))
            break;
        }
        return n;
      },
      bytes_of_first(messages)));
}
