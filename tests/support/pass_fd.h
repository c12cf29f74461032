// Descriptors passed between processes (SCM_RIGHTS) by the C library's calls themselves, for tests
// of such sockets and of what wraps these calls.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>

namespace clan::test {

/// Sends one byte and a copy of `fd`. The answer of sendmsg(): 1 if both have gone.
inline ssize_t pass_fd(int through, int fd, int flags = 0) {
  char byte = 'p';
  iovec io{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  return ::sendmsg(through, &message, flags);
}

/// Receives one byte with a descriptor; -1 without.
inline int take_fd(int through, int flags = 0) {
  char byte;
  iovec io{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(through, &message, flags) != 1) return -1;
  const cmsghdr* c = CMSG_FIRSTHDR(&message);
  if (c == nullptr || c->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(c), sizeof fd);
  return fd;
}

}  // namespace clan::test
