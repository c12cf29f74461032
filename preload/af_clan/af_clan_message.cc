// Messages of AF_CLAN packet sockets: AF_UNIX ones with other names.
#include <cstring>

#include "af_clan/af_clan.h"
#include "af_clan/af_clan_name.h"
#include "os/real.h"
#include "os/timeout.h"

namespace clan::preload {
namespace {

// Returns the kernel's form of a name to send to; 0 with errno.
socklen_t destination(int fd, const sockaddr* to, socklen_t size, sockaddr_un* address) {
  ClanName name;
  const auto copy = [](void* mine, const void* from, std::size_t n) {
    return std::memcpy(mine, from, n) != nullptr;
  };
  if (name.read(to, size, EINVAL, copy) && !name.empty())
    return name.to_unix(af_clan_type(fd), address);
  errno = EINVAL;
  return 0;
}

}  // namespace

ssize_t af_clan_sendto(int fd, const void* data, size_t n, int flags, const sockaddr* to,
                       socklen_t size) {
  if (to == nullptr || size == 0) return real().sendto(fd, data, n, flags, nullptr, 0);
  sockaddr_un address;
  const socklen_t kernel_size = destination(fd, to, size, &address);
  if (kernel_size == 0) return -1;
  return real().sendto(fd, data, n, flags, reinterpret_cast<sockaddr*>(&address), kernel_size);
}

ssize_t af_clan_recvfrom(int fd, void* data, size_t n, int flags, sockaddr* from, socklen_t* size) {
  if (from == nullptr || size == nullptr) return real().recvfrom(fd, data, n, flags, from, size);
  if (static_cast<int>(*size) < 0) return fail(EINVAL);
  sockaddr_un address;
  socklen_t kernel_size = sizeof address;
  const ssize_t got =
      real().recvfrom(fd, data, n, flags, reinterpret_cast<sockaddr*>(&address), &kernel_size);
  if (got < 0) return got;
  if (kernel_size == 0) {  // its sender has no name
    *size = 0;
    return got;
  }
  ClanName name;
  name.from_unix(address, kernel_size);
  name.fill_in(from, *size, size);
  return got;
}

ssize_t af_clan_sendmsg(int fd, const msghdr* message, int flags) {
  if (message == nullptr || message->msg_name == nullptr || message->msg_namelen == 0) {
    return real().sendmsg(fd, message, flags);
  }
  sockaddr_un address;
  msghdr copy = *message;
  copy.msg_namelen = destination(fd, static_cast<const sockaddr*>(message->msg_name),
                                 message->msg_namelen, &address);
  if (copy.msg_namelen == 0) return -1;
  copy.msg_name = &address;
  return real().sendmsg(fd, &copy, flags);
}

ssize_t af_clan_recvmsg(int fd, msghdr* message, int flags) {
  if (message == nullptr || message->msg_name == nullptr) return real().recvmsg(fd, message, flags);
  if (static_cast<int>(message->msg_namelen) < 0) return fail(EINVAL);
  sockaddr_un address;
  msghdr copy = *message;
  copy.msg_name = &address;
  copy.msg_namelen = sizeof address;
  const ssize_t got = real().recvmsg(fd, &copy, flags);
  if (got < 0) return got;
  message->msg_controllen = copy.msg_controllen;
  message->msg_flags = copy.msg_flags;
  if (copy.msg_namelen == 0) {
    message->msg_namelen = 0;
    return got;
  }
  ClanName name;
  name.from_unix(address, copy.msg_namelen);
  name.fill_in(static_cast<sockaddr*>(message->msg_name), message->msg_namelen,
               &message->msg_namelen);
  return got;
}

// One by one, as there is no room for several names.
int af_clan_sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  unsigned done = 0;
  for (; done < count; ++done) {
    const ssize_t sent = af_clan_sendmsg(fd, &messages[done].msg_hdr, flags);
    if (sent < 0) return done > 0 ? static_cast<int>(done) : -1;
    messages[done].msg_len = static_cast<unsigned>(sent);
  }
  return static_cast<int>(done);
}

int af_clan_recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  return receive_each(messages, count, flags, timeout,
                      [fd](msghdr* one, int with) { return af_clan_recvmsg(fd, one, with); });
}

}  // namespace clan::preload
