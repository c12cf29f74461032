// Descriptors that are passed on by SCM_RIGHTS.
//
// A connection that has moved goes back to TCP first. One that has not moved may do so in its
// receiver, when that process alone has it. The sender cannot say which process will receive the
// descriptor, nor whether that one loads the library. So it names the socket in its OpenFileState,
// which others find in a memfd, and counts the descriptor as on its way; the receiver finds the
// slot by what the kernel says of the socket, and claims it. From then on both share the slot as
// after a fork.
//
//   sender      counts one on its way | sendmsg                     nobody moves it
//   receiver                                 recvmsg | finds the slot, claims     the last process
//                                                                                 may move it
//
// A receiver without the library, or one that may not or does not want to share memory, claims
// nothing, and the connection stays on TCP. So it does when there is no room for the slot.
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

/// Takes in the descriptors of a message from another process, by the AF_UNIX socket `through`: a
/// connection among them may move when no other process has it any more. `peeked`: it will be
/// received again.
void adopt_passed(const msghdr& message, int through, bool peeked);

/// Does the same with one of them.
void adopt_passed(int fd, int through, bool peeked);

/// pidfd_getfd(), by which a process takes another one's descriptor without its knowledge. Fails
/// with EPERM if the connection behind it has moved there.
int take_from(int pidfd, int target, unsigned flags);

/// Another process is going to have the descriptor too: a connection that has moved goes back.
void pass_on(int fd);

/// It has not been sent.
void not_sent(int fd);

}  // namespace clan::preload
