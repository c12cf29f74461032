#include "os/fd_message.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "os/sys.h"

namespace clan::preload {

constexpr int kMostPassed = 4;

int receive_descriptors(int from, void* to, std::size_t size, int* fds, int count, int most) {
  iovec io{to, size};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostPassed * sizeof(int))];
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const long n = sys::call(SYS_recvmsg, from, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
  int received[kMostPassed];
  int got = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    got = static_cast<int>(
        std::min<std::size_t>((c->cmsg_len - CMSG_LEN(0)) / sizeof(int), kMostPassed));
    std::memcpy(received, CMSG_DATA(c), static_cast<std::size_t>(got) * sizeof(int));
  }
  if (n == static_cast<long>(size) && (got == count || got == most) &&
      (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0) {
    std::memcpy(fds, received, static_cast<std::size_t>(got) * sizeof(int));
    return got;
  }
  for (int i = 0; i < got; ++i) sys::close(received[i]);
  return -1;
}

bool send_descriptors(int to, const void* bytes, std::size_t size, const int* fds, int count) {
  iovec io{const_cast<void*>(bytes), size};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostPassed * sizeof(int))] = {};
  const std::size_t length = static_cast<std::size_t>(count) * sizeof(int);
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(length);
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(length);
  std::memcpy(CMSG_DATA(c), fds, length);
  return sys::call(SYS_sendmsg, to, &message, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
}

}  // namespace clan::preload
