#include "base/socket_owner.h"

#include <sys/socket.h>

#include <cstdio>
#include <cstring>
#include <memory>

#include "base/fd.h"

namespace clan {
namespace {

// Finds the owner in a line of /proc/net/udp or udp6:
// " 12: 00000000:12B6 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000 ...".
std::optional<uid_t> owner_in(const char* table, std::uint16_t port) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(table, "re"), std::fclose);
  if (!file) return std::nullopt;
  char line[512];
  while (std::fgets(line, sizeof line, file.get()) != nullptr) {
    unsigned at = 0, uid = 0;
    if (std::sscanf(line, " %*u: %*[0-9A-Fa-f]:%x %*s %*x %*s %*s %*x %u", &at, &uid) == 2 &&
        at == port) {
      return static_cast<uid_t>(uid);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<uid_t> tcp_owner(const TcpEnd& local, const TcpEnd& remote) {
  const Fd kernel(
      ::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG));
  if (!kernel) return std::nullopt;
  const TcpQuestion question(local, remote, 1);  // the only one on its socket
  if (::send(kernel.get(), &question, sizeof question, MSG_DONTWAIT) != sizeof question)
    return std::nullopt;
  // The kernel has answered when send() returns.
  alignas(nlmsghdr) char answer[1024];
  sockaddr_nl from{};
  socklen_t size = sizeof from;
  const ssize_t n = ::recvfrom(kernel.get(), answer, sizeof answer, MSG_DONTWAIT,
                               reinterpret_cast<sockaddr*>(&from), &size);
  nlmsghdr header;
  inet_diag_msg found;
  if (n < static_cast<ssize_t>(NLMSG_LENGTH(sizeof found)) || from.nl_pid != 0) return std::nullopt;
  std::memcpy(&header, answer, sizeof header);
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || header.nlmsg_len < NLMSG_LENGTH(sizeof found) ||
      header.nlmsg_seq != 1) {
    return std::nullopt;
  }
  std::memcpy(&found, answer + NLMSG_HDRLEN, sizeof found);
  // A socket that listens there is found where none is connected.
  if (found.id.idiag_dport != htons(remote.port)) return std::nullopt;
  return found.idiag_uid;
}

std::optional<uid_t> udp_port_owner(std::uint16_t port) {
  const auto owner = owner_in("/proc/thread-self/net/udp6", port);
  return owner ? owner : owner_in("/proc/thread-self/net/udp", port);
}

}  // namespace clan
