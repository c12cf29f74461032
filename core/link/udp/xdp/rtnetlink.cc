#include "link/udp/xdp/rtnetlink.h"

#include <linux/ethtool.h>
#include <linux/if_link.h>
#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "clan/detail/system_call.h"

namespace clan::udp {
namespace {

constexpr unsigned kUsable =
    NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT | NUD_NOARP;

template <typename T>
std::optional<T> value_of(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

/// A request: header, a fixed part, attributes.
class Request {
 public:
  template <typename Fixed>
  Request(std::uint16_t type, const Fixed& fixed) {
    nlmsghdr header{};
    header.nlmsg_type = type;
    header.nlmsg_flags = NLM_F_REQUEST;
    append(&header, sizeof header);
    append(&fixed, sizeof fixed);
  }
  template <typename T>
  void attribute(std::uint16_t type, const T& value) {
    const rtattr header{static_cast<std::uint16_t>(RTA_LENGTH(sizeof value)), type};
    append(&header, sizeof header);
    append(&value, sizeof value);
  }
  std::span<const std::byte> finish(std::uint32_t sequence) {
    nlmsghdr header;
    std::memcpy(&header, bytes_.data(), sizeof header);
    header.nlmsg_len = static_cast<std::uint32_t>(bytes_.size());
    header.nlmsg_seq = sequence;
    std::memcpy(bytes_.data(), &header, sizeof header);
    return bytes_;
  }

 private:
  void append(const void* from, std::size_t bytes) {
    const auto* p = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), p, p + bytes);
    bytes_.resize((bytes_.size() + 3) / 4 * 4);
  }
  std::vector<std::byte> bytes_;
};

/// Calls `take(type, payload)` for each attribute of `bytes`.
template <typename Take>
void each_attribute(std::span<const std::byte> bytes, Take take) {
  while (auto header = value_of<rtattr>(bytes)) {
    if (header->rta_len < sizeof(rtattr) || header->rta_len > bytes.size()) return;
    take(header->rta_type & NLA_TYPE_MASK,
         bytes.subspan(sizeof(rtattr), header->rta_len - sizeof(rtattr)));
    bytes = bytes.subspan(std::min<std::size_t>(bytes.size(), RTA_ALIGN(header->rta_len)));
  }
}

void read_xdp(std::span<const std::byte> xdp, NetDevice* device) {
  each_attribute(xdp, [&](int type, std::span<const std::byte> value) {
    if (type == IFLA_XDP_PROG_ID) device->xdp_program = value_of<std::uint32_t>(value).value_or(0);
    if (type == IFLA_XDP_ATTACHED)
      device->xdp_native = value_of<std::uint8_t>(value).value_or(0) == XDP_ATTACHED_DRV;
  });
}

bool is_veth(std::span<const std::byte> info) {
  bool veth = false;
  each_attribute(info, [&](int type, std::span<const std::byte> value) {
    if (type != IFLA_INFO_KIND) return;
    const std::string_view kind(reinterpret_cast<const char*>(value.data()), value.size());
    veth = kind.substr(0, kind.find('\0')) == "veth";
  });
  return veth;
}

// Past the C library: its calls are cancellation points, and the node's mutex is held.
long send_request(int fd, std::span<const std::byte> bytes) {
  return sys::call(SYS_sendto, fd, bytes.data(), bytes.size(), 0, nullptr, 0);
}
/// The whole length of what has come, of which `to` has as much as fits.
long receive_bytes(int fd, std::span<std::byte> to, sockaddr_nl* from) {
  socklen_t length = sizeof *from;
  return sys::call(SYS_recvfrom, fd, to.data(), to.size(), MSG_DONTWAIT | MSG_TRUNC, from, &length);
}

}  // namespace

Result<Rtnetlink> Rtnetlink::open() {
  Rtnetlink made;
  made.socket_ = Fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!made.socket_) return errno_error("a socket of rtnetlink");
  return made;
}

// The kernel answers within the call that asks, so nothing here waits. Only it may answer.
std::span<const std::byte> Rtnetlink::ask(std::span<const std::byte> request) {
  if (send_request(socket_.get(), request) < 0) return {};
  for (;;) {
    sockaddr_nl from{};
    const long n = receive_bytes(socket_.get(), answer_, &from);
    if (n < 0) return {};
    const std::span<const std::byte> got(answer_, static_cast<std::size_t>(n));
    if (from.nl_pid != 0 || got.size() > sizeof answer_) continue;
    const auto header = value_of<nlmsghdr>(got);
    if (!header || header->nlmsg_len < sizeof(nlmsghdr) || header->nlmsg_len > got.size()) continue;
    if (header->nlmsg_seq != sequence_) continue;
    if (header->nlmsg_type == NLMSG_ERROR || header->nlmsg_type == NLMSG_DONE) return {};
    return got.subspan(sizeof(nlmsghdr), header->nlmsg_len - sizeof(nlmsghdr));
  }
}

std::optional<NetDevice> Rtnetlink::device(int index) {
  ifinfomsg fixed{};
  fixed.ifi_index = index;
  Request request(RTM_GETLINK, fixed);
  const auto answer = ask(request.finish(++sequence_));
  const auto info = value_of<ifinfomsg>(answer);
  if (!info || info->ifi_index != index) return std::nullopt;
  NetDevice d;
  d.index = index;
  d.ethernet =
      info->ifi_type == ARPHRD_ETHER && (info->ifi_flags & (IFF_LOOPBACK | IFF_NOARP)) == 0;
  d.up = (info->ifi_flags & IFF_UP) != 0 && (info->ifi_flags & IFF_RUNNING) != 0;
  each_attribute(answer.subspan(NLMSG_ALIGN(sizeof *info)), [&](int type, auto value) {
    if (type == IFLA_ADDRESS) d.mac = value_of<MacAddress>(value).value_or(MacAddress{});
    if (type == IFLA_MTU) d.mtu = value_of<std::uint32_t>(value).value_or(0);
    if (type == IFLA_XDP) read_xdp(value, &d);
    if (type == IFLA_LINKINFO) d.veth = is_veth(value);
  });
  return d;
}

std::optional<Route> Rtnetlink::route(const Ipv4& to, const Ipv4& source) {
  rtmsg fixed{};
  fixed.rtm_family = AF_INET;
  fixed.rtm_dst_len = 32;
  fixed.rtm_src_len = source == Ipv4{} ? 0 : 32;
  Request request(RTM_GETROUTE, fixed);
  request.attribute(RTA_DST, to);
  if (source != Ipv4{}) request.attribute(RTA_SRC, source);
  const auto answer = ask(request.finish(++sequence_));
  const auto found = value_of<rtmsg>(answer);
  if (!found || found->rtm_type != RTN_UNICAST) return std::nullopt;
  Route route{0, source, to};
  bool plain = true;
  each_attribute(answer.subspan(NLMSG_ALIGN(sizeof *found)), [&](int type, auto value) {
    if (type == RTA_OIF) route.device = value_of<int>(value).value_or(0);
    if (type == RTA_GATEWAY) route.next = value_of<Ipv4>(value).value_or(Ipv4{});
    if (type == RTA_PREFSRC && source == Ipv4{})
      route.source = value_of<Ipv4>(value).value_or(Ipv4{});
    if (type == RTA_VIA || type == RTA_ENCAP || type == RTA_MULTIPATH) plain = false;
  });
  if (!plain || route.device <= 0 || route.source == Ipv4{} || route.next == Ipv4{})
    return std::nullopt;
  return route;
}

std::optional<MacAddress> Rtnetlink::neighbour(int device, const Ipv4& next) {
  ndmsg fixed{};
  fixed.ndm_family = AF_INET;
  fixed.ndm_ifindex = device;
  Request request(RTM_GETNEIGH, fixed);
  request.attribute(NDA_DST, next);
  const auto answer = ask(request.finish(++sequence_));
  const auto found = value_of<ndmsg>(answer);
  if (!found || found->ndm_ifindex != device || (found->ndm_state & kUsable) == 0)
    return std::nullopt;
  std::optional<MacAddress> mac;
  each_attribute(answer.subspan(NLMSG_ALIGN(sizeof *found)), [&](int type, auto value) {
    if (type == NDA_LLADDR && value.size() == sizeof(MacAddress)) mac = value_of<MacAddress>(value);
  });
  return mac;
}

bool Rtnetlink::merges(int device) {
  ifreq request{};
  request.ifr_ifindex = device;
  if (::ioctl(socket_.get(), SIOCGIFNAME, &request) != 0) return true;
  ethtool_value value{ETHTOOL_GGRO, 0};
  request.ifr_data = reinterpret_cast<char*>(&value);
  return ::ioctl(socket_.get(), SIOCETHTOOL, &request) != 0 || value.data != 0;
}

}  // namespace clan::udp
