// Descriptors that are passed by SCM_RIGHTS.
//
// A connection that has moved goes back to TCP first. One that has not may move in its receiver,
// once that process alone has it. The sender does not know which process will receive the
// descriptor, nor whether that one loads the library. So it names the socket in its OpenFileState,
// which others find in a memfd, and counts the descriptor as on its way. The receiver finds the
// slot by the socket's identity, and claims it. From then on both share the slot as after a fork.
//
//   sender      counts one on its way | sendmsg                     nobody moves it
//   receiver                                 recvmsg | finds the slot, claims     the last process
//                                                                                 may move it
//
// The connection stays on TCP if the receiver claims nothing, as it has no library or may not share
// memory, or if there is no room for the slot.
#pragma once

#include <sys/socket.h>

#include <cstddef>

namespace clan::preload {

struct Socket;

/// Calls `each(fd)` for the descriptors that a message carries.
template <typename Each>
void for_each_passed(const msghdr& message, Each&& each) {
  if (message.msg_control == nullptr) return;
  const char* const end = static_cast<char*>(message.msg_control) + message.msg_controllen;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr;
       c = CMSG_NXTHDR(const_cast<msghdr*>(&message), c)) {
    const auto left = static_cast<std::size_t>(end - reinterpret_cast<char*>(c));
    if (c->cmsg_len < CMSG_LEN(0) || c->cmsg_len > left) return;  // the kernel refuses the message
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < n; ++i) {
      int fd;
      __builtin_memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      each(fd);
    }
  }
}

/// Adopts the descriptors of a message from another process, by the AF_UNIX socket `through`.
/// `peeked`: the message will be received again.
void adopt_passed(const msghdr& message, int through, bool peeked);
/// Adopts one of them.
void adopt_passed(int fd, int through, bool peeked);

/// Does what pidfd_getfd() does, by which a process takes another one's descriptor unnoticed. Fails
/// with EPERM if the connection has moved there.
int take_from(int pidfd, int target, unsigned flags);

/// Prepares a descriptor for another process: a connection that has moved goes back.
void pass_on(int fd);
/// Undoes that: it has not been sent.
void not_sent(int fd);

}  // namespace clan::preload
