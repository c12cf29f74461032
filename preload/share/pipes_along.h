// The pipes of connections that are passed on go along in the same message, behind the program's
// own descriptors. So the memory is there as long as the message is, whichever process ends before
// it is received.
//
//   the sender's program      [a b]           pass_on() has seen to it that the receiver has the
//                                             library, or that the
//   the message               [a b | p q t]   connection is back on TCP; t: the table of slots
//   the receiver's program    [a b]           and all else as if they had been alone
//
// Length of the control data, MSG_CTRUNC and the numbers of descriptors are what the kernel would
// have made of the program's own. A receiver that is out of descriptors sees MSG_CTRUNC if there
// was just room for its own.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <optional>

#include "os/scratch.h"

namespace clan::preload {

constexpr int kMostPassed = 253;  ///< in a message, by the kernel (SCM_MAX_FD)

/// Calls `each(fd)` for the descriptors that a message carries.
template <typename Each>
void for_each_passed(const msghdr& message, Each&& each);

/// A message with the pipes of the connections in it. To be made after pass_on() of each.
class PipesToSend {
 public:
  explicit PipesToSend(const msghdr& message);
  const msghdr* message() const { return &with_; }
  bool any() const { return any_; }

 private:
  msghdr with_;
  bool any_ = false;
  std::optional<Scratch> control_;
};

/// A message that is received may bring pipes: not if it is null, or has no room for a descriptor.
/// Covers any socket: the program's seccomp filter is unknown, so the library makes no system call
/// that the program has not made.
inline bool may_bring_pipes(const msghdr* message) {
  return message != nullptr && message->msg_control != nullptr &&
         message->msg_controllen >= CMSG_LEN(sizeof(int));
}

constexpr std::size_t kRoomForPipes = CMSG_SPACE(kMostPassed * sizeof(int));

/// To be received instead of `message`: control data into `memory`, of msg_controllen and
/// kRoomForPipes bytes.
msghdr with_room_for_pipes(const msghdr& message, void* memory);

/// What has been received that way, as the program is to see it. Its connections are adopted with
/// their pipes.
void take_pipes(const msghdr& received, msghdr* message, int through, bool peeked);

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

}  // namespace clan::preload
