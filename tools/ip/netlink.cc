#include "netlink.h"

#include <linux/if_addr.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace clan::ip {
namespace {

/// One request, with attributes behind its body.
template <typename Body>
struct Request {
  nlmsghdr head{};
  Body body{};
  std::byte attributes[128] = {};

  Request(std::uint16_t type, unsigned flags) {
    head.nlmsg_type = type;
    head.nlmsg_flags = static_cast<std::uint16_t>(NLM_F_REQUEST | NLM_F_ACK | flags);
    head.nlmsg_len = NLMSG_LENGTH(sizeof body);
  }
  void add(std::uint16_t type, const void* data, std::size_t size) {
    auto* const at = reinterpret_cast<std::byte*>(this) + NLMSG_ALIGN(head.nlmsg_len);
    const rtattr attribute{static_cast<std::uint16_t>(RTA_LENGTH(size)), type};
    std::memcpy(at, &attribute, sizeof attribute);
    std::memcpy(at + RTA_LENGTH(0), data, size);
    head.nlmsg_len = static_cast<std::uint32_t>(NLMSG_ALIGN(head.nlmsg_len) + RTA_LENGTH(size));
  }
  void add(std::uint16_t type, const Address& address) {
    add(type, address.bytes.data(), address.size());
  }
};

template <typename Body>
Status ask(const Request<Body>& request, const char* what) {
  const int fd = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd < 0) return Error{errno, what};
  struct {
    nlmsghdr head;
    nlmsgerr error;
    char rest[512];
  } answer{};
  const bool asked = ::send(fd, &request, request.head.nlmsg_len, 0) >= 0 &&
                     ::recv(fd, &answer, sizeof answer, 0) >= 0;
  const int error = asked ? -answer.error.error : errno;
  ::close(fd);
  return error == 0 ? Status() : Status(Error{error, what});
}

std::uint8_t family(const Address& address) { return address.v6 ? AF_INET6 : AF_INET; }

}  // namespace

Status add_address(unsigned device, const Prefix& address) {
  Request<ifaddrmsg> request(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL);
  request.body.ifa_family = family(address.address);
  request.body.ifa_prefixlen = static_cast<std::uint8_t>(address.bits);
  request.body.ifa_flags = IFA_F_NODAD;
  request.body.ifa_index = device;
  request.add(IFA_LOCAL, address.address);
  request.add(IFA_ADDRESS, address.address);
  return ask(request, "the kernel refuses the address");
}

Status set_up(unsigned device, unsigned mtu) {
  Request<ifinfomsg> request(RTM_NEWLINK, 0);
  request.body.ifi_index = static_cast<int>(device);
  request.body.ifi_flags = IFF_UP;
  request.body.ifi_change = IFF_UP;
  request.add(IFLA_MTU, &mtu, sizeof mtu);
  return ask(request, "the kernel refuses the MTU, or to set the device up");
}

Status add_route(unsigned device, const Prefix& to) {
  Request<rtmsg> request(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL);
  request.body.rtm_family = family(to.address);
  request.body.rtm_dst_len = static_cast<std::uint8_t>(to.bits);
  request.body.rtm_table = RT_TABLE_MAIN;
  request.body.rtm_protocol = RTPROT_STATIC;
  request.body.rtm_scope = RT_SCOPE_LINK;
  request.body.rtm_type = RTN_UNICAST;
  request.add(RTA_DST, to.address);
  request.add(RTA_OIF, &device, sizeof device);
  return ask(request, "the kernel refuses the route to a peer");
}

Result<int> watch_devices() {
  const int fd = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
  sockaddr_nl links{};
  links.nl_family = AF_NETLINK;
  links.nl_groups = RTMGRP_LINK;
  if (fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&links), sizeof links) == 0) return fd;
  const int error = errno;
  ::close(fd);
  return Error{error, "the kernel does not tell of devices (netlink)"};
}

}  // namespace clan::ip
