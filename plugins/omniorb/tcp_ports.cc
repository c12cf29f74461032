#include "tcp_ports.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace clan::orb {
namespace {

constexpr std::uint32_t kListening = 1u << 10;  ///< TCP_LISTEN, as a bit

struct Request {
  nlmsghdr header;
  inet_diag_req_v2 body;
};

/// An address of either family: IPv4 in the last four bytes behind ::ffff:.
struct Ip {
  unsigned char bytes[16] = {};
  bool operator==(const Ip& other) const {
    return std::memcmp(bytes, other.bytes, sizeof bytes) == 0;
  }
};

Ip ip4(const void* four) {
  Ip out;
  out.bytes[10] = out.bytes[11] = 0xff;
  std::memcpy(out.bytes + 12, four, 4);
  return out;
}

std::optional<Ip> parse(const std::string& host) {
  Ip out;
  in_addr four;
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) return ip4(&four);
  if (::inet_pton(AF_INET6, host.c_str(), out.bytes) == 1) return out;
  return std::nullopt;
}

struct Closing {
  int fd;
  ~Closing() { ::close(fd); }
};

/// How well a listening socket fits a destination: 0 not, 1 all IPv6 with IPv4, 2 all of the
/// family, 3 this address.
int fit(const inet_diag_msg& socket, const Ip& to) {
  const bool to4 = to == ip4(to.bytes + 12);
  if (socket.idiag_family == AF_INET) {
    if (!to4) return 0;
    if (socket.id.idiag_src[0] == 0) return 2;
    return ip4(socket.id.idiag_src) == to ? 3 : 0;
  }
  Ip here;
  std::memcpy(here.bytes, socket.id.idiag_src, sizeof here.bytes);
  if (here == Ip{}) return to4 ? 1 : 2;
  return here == to ? 3 : 0;
}

class Search {
 public:
  Search(const Ip& to, std::uint16_t port) : to_(to), port_(port) {}

  /// False: the kernel does not say.
  bool look(int netlink, int family) {
    Request request{};
    request.header.nlmsg_len = sizeof request;
    request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    request.body.sdiag_family = static_cast<__u8>(family);
    request.body.sdiag_protocol = IPPROTO_TCP;
    request.body.idiag_states = kListening;
    if (::send(netlink, &request, sizeof request, 0) != static_cast<ssize_t>(sizeof request))
      return false;
    alignas(nlmsghdr) char buffer[16 * 1024];
    for (;;) {
      const ssize_t got = ::recv(netlink, buffer, sizeof buffer, 0);
      if (got <= 0) return false;
      auto left = static_cast<unsigned>(got);
      for (auto* m = reinterpret_cast<nlmsghdr*>(buffer); NLMSG_OK(m, left);
           m = NLMSG_NEXT(m, left)) {
        if (m->nlmsg_type == NLMSG_DONE) return true;
        if (m->nlmsg_type == NLMSG_ERROR) return false;
        if (m->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg))) continue;
        consider(*static_cast<const inet_diag_msg*>(NLMSG_DATA(m)));
      }
    }
  }

  std::optional<ListeningSocket> found() const {
    if (best_ == 0 || several_) return std::nullopt;
    return socket_;
  }

 private:
  void consider(const inet_diag_msg& socket) {
    if (ntohs(socket.id.idiag_sport) != port_) return;
    const int fits = fit(socket, to_);
    if (fits == 0 || fits < best_) return;
    several_ = fits == best_;  // SO_REUSEPORT
    best_ = fits;
    socket_ = {port_, socket.idiag_inode, socket.idiag_uid};
  }

  const Ip to_;
  const std::uint16_t port_;
  int best_ = 0;
  bool several_ = false;
  ListeningSocket socket_;
};

}  // namespace

std::vector<ListeningSocket> own_listening_sockets() {
  std::vector<ListeningSocket> out;
  DIR* directory = ::opendir("/proc/self/fd");
  if (directory == nullptr) return out;
  while (const dirent* entry = ::readdir(directory)) {
    const int fd = std::atoi(entry->d_name);
    int listening = 0;
    socklen_t size = sizeof listening;
    if (entry->d_name[0] == '.' ||
        ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || listening == 0) {
      continue;
    }
    sockaddr_storage address{};
    size = sizeof address;
    struct stat about {};
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
        ::fstat(fd, &about) != 0)
      continue;
    in_port_t port = 0;
    if (address.ss_family == AF_INET) port = reinterpret_cast<sockaddr_in&>(address).sin_port;
    if (address.ss_family == AF_INET6) port = reinterpret_cast<sockaddr_in6&>(address).sin6_port;
    if (port != 0) out.push_back({ntohs(port), about.st_ino, about.st_uid});
  }
  ::closedir(directory);
  return out;
}

std::optional<ListeningSocket> find_listening_socket(const std::string& host, std::uint16_t port) {
  const auto to = parse(host);
  if (!to) return std::nullopt;
  const int netlink = ::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (netlink < 0) return std::nullopt;
  Closing closing{netlink};
  Search search(*to, port);
  if (!search.look(netlink, AF_INET)) return std::nullopt;
  (void)search.look(netlink, AF_INET6);  // a kernel without IPv6 has none
  return search.found();
}

}  // namespace clan::orb
