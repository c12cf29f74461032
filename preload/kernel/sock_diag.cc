#include "kernel/sock_diag.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "clan/detail/clock.h"
#include "kernel/tcp_table.h"
#include "os/scratch.h"
#include "os/sys.h"

namespace clan::preload {
namespace {

// The question's number, which distinguishes its answer from those to others' questions on the same
// socket.
std::atomic<std::uint32_t> questions{0};
constexpr int kMostStrays = 16;

Endpoint endpoint_of(sa_family_t family, const std::uint32_t* address, std::uint16_t port) {
  Endpoint e;
  e.port = ntohs(port);
  if (family == AF_INET) {
    e.address.s6_addr[10] = e.address.s6_addr[11] = 0xff;
    std::memcpy(e.address.s6_addr + 12, address, 4);
  } else {
    std::memcpy(&e.address, address, 16);
  }
  return e;
}

void read_counters(const nlmsghdr* header, SockDiag::Found* found) {
  const auto* message = static_cast<const inet_diag_msg*>(NLMSG_DATA(header));
  auto left =
      static_cast<long>(header->nlmsg_len) - static_cast<long>(NLMSG_LENGTH(sizeof *message));
  const auto* attribute = reinterpret_cast<const rtattr*>(message + 1);
  for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
    if (attribute->rta_type != INET_DIAG_INFO) continue;
    tcp_info info{};
    const std::size_t size = RTA_PAYLOAD(attribute);
    std::memcpy(&info, RTA_DATA(attribute), std::min(size, sizeof info));
    found->counted =
        size >= offsetof(tcp_info, tcpi_bytes_retrans) + sizeof info.tcpi_bytes_retrans;
    found->sent = info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
    found->acked = info.tcpi_bytes_acked;
    found->received = info.tcpi_bytes_received;
  }
}

// What the kernel is asked: the socket at these ends.
struct Question {
  nlmsghdr header;
  inet_diag_req_v2 request;
};
Question question_of(const Endpoint& local, const Endpoint& remote, std::uint32_t interface) {
  Question question{};
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  // relaxed: a number, whichever thread draws it
  question.header.nlmsg_seq = static_cast<std::uint32_t>(monotonic_ns()) ^
                              questions.fetch_add(0x10001, std::memory_order_relaxed);
  auto& q = question.request;
  q.sdiag_protocol = IPPROTO_TCP;
  q.idiag_ext = 1u << (INET_DIAG_INFO - 1);
  q.idiag_states = ~0u;
  q.id.idiag_sport = htons(local.port);
  q.id.idiag_dport = htons(remote.port);
  q.id.idiag_if = interface;
  q.id.idiag_cookie[0] = q.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (IN6_IS_ADDR_V4MAPPED(&local.address)) {
    q.sdiag_family = AF_INET;
    std::memcpy(q.id.idiag_src, local.address.s6_addr + 12, 4);
    std::memcpy(q.id.idiag_dst, remote.address.s6_addr + 12, 4);
  } else {
    q.sdiag_family = AF_INET6;
    std::memcpy(q.id.idiag_src, &local.address, 16);
    std::memcpy(q.id.idiag_dst, &remote.address, 16);
  }
  return question;
}

// What the kernel says to it.
SockDiag::Answer read_answer(const nlmsghdr* header, SockDiag::Found* found) {
  if (header->nlmsg_type == NLMSG_ERROR && header->nlmsg_len >= NLMSG_LENGTH(sizeof(nlmsgerr))) {
    return static_cast<const nlmsgerr*>(NLMSG_DATA(header))->error == -ENOENT
               ? SockDiag::Answer::kNone
               : SockDiag::Answer::kUnknown;
  }
  if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY ||
      header->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg))) {
    return SockDiag::Answer::kUnknown;
  }
  const auto* message = static_cast<const inet_diag_msg*>(NLMSG_DATA(header));
  *found = SockDiag::Found();
  found->family = message->idiag_family;
  found->state = message->idiag_state;
  found->uid = message->idiag_uid;
  found->inode = message->idiag_inode;
  found->local = endpoint_of(message->idiag_family, message->id.idiag_src, message->id.idiag_sport);
  found->remote =
      endpoint_of(message->idiag_family, message->id.idiag_dst, message->id.idiag_dport);
  read_counters(header, found);
  return SockDiag::Answer::kFound;
}

}  // namespace

bool operator==(const Endpoint& a, const Endpoint& b) {
  return a.port == b.port && std::memcmp(&a.address, &b.address, sizeof a.address) == 0;
}

Endpoint endpoint_of(const sockaddr_in& from) {
  return endpoint_of(AF_INET, &from.sin_addr.s_addr, from.sin_port);
}

bool endpoint_of(const sockaddr_storage& from, Endpoint* to) {
  if (from.ss_family == AF_INET) {
    *to = endpoint_of(reinterpret_cast<const sockaddr_in&>(from));
    return true;
  }
  if (from.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(from);
    to->address = in.sin6_addr;
    to->port = ntohs(in.sin6_port);
    return true;
  }
  return false;
}

bool route_of(int fd, Route* route) {
  sockaddr_storage local{}, remote{};
  socklen_t size = sizeof local;
  if (sys::call(SYS_getsockname, fd, &local, &size) != 0 || !endpoint_of(local, &route->local))
    return false;
  size = sizeof remote;
  if (sys::call(SYS_getpeername, fd, &remote, &size) != 0 || !endpoint_of(remote, &route->remote))
    return false;
  auto scope = [](const sockaddr_storage& a) {
    return a.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(a).sin6_scope_id : 0;
  };
  route->interface = scope(local) != 0 ? scope(local) : scope(remote);
  return true;
}

SockDiag::SockDiag()
    : netlink_(static_cast<int>(sys::call(
          SYS_socket, AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG))),
      is_ours_(true) {}

SockDiag::~SockDiag() {
  KeepErrno keep;
  if (netlink_ >= 0) sys::close(netlink_);
}

int SockDiag::release() {
  const int fd = netlink_;
  netlink_ = -1;
  return fd;
}

bool SockDiag::genuine(int fd) {
  int domain = 0, protocol = 0;
  socklen_t size = sizeof domain;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_NETLINK)
    return false;
  size = sizeof protocol;
  return sys::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 &&
         protocol == NETLINK_SOCK_DIAG;
}

SockDiag::Answer SockDiag::ask(const Endpoint& local, const Endpoint& remote,
                               std::uint32_t interface, Found* found) {
  if (netlink_ < 0) {
    return is_ours_ && find_in_tcp_tables(local, remote, found) ? Answer::kFound : Answer::kUnknown;
  }
  const Question question = question_of(local, remote, interface);
  // Waits for nothing: the kernel has answered when this returns.
  if (sys::send(netlink_, &question, sizeof question, MSG_DONTWAIT) !=
      static_cast<ssize_t>(sizeof question)) {
    return Answer::kUnknown;
  }
  const Scratch memory(Scratch::kUsual);
  char* const text = memory.as<char>();
  for (int i = 0; text != nullptr && i < kMostStrays; ++i) {
    sockaddr_nl from{};
    socklen_t size = sizeof from;
    const long n =
        sys::call(SYS_recvfrom, netlink_, text, Scratch::kUsual, MSG_DONTWAIT, &from, &size);
    if (n < 0) return Answer::kUnknown;
    const auto* header = reinterpret_cast<const nlmsghdr*>(text);
    if (from.nl_pid != 0 || n < static_cast<long>(sizeof *header) || header->nlmsg_len > n ||
        header->nlmsg_seq != question.header.nlmsg_seq) {
      continue;  // not the kernel's, or not to us
    }
    return read_answer(header, found);
  }
  return Answer::kUnknown;
}

SockDiag::Answer SockDiag::has(int fd, const Route& route) {
  Found found;
  struct stat about {};
  const Answer answer = ask(route.local, route.remote, route.interface, &found);
  if (answer != Answer::kFound) return answer;
  const bool is_it =
      sys::fstat(fd, &about) == 0 && found.inode == static_cast<std::uint32_t>(about.st_ino);
  return is_it ? Answer::kFound : Answer::kNone;
}

// --- what is not here --------------------------------------------------------------------------

namespace {

/// after which an address is asked about again
constexpr std::uint64_t kElsewhereNs = 5'000'000'000u;

// Addresses that were not here, by hash. Two words each and no lock: a word of one address beside
// that of another leaves a connection on TCP that could have moved, for some seconds.
struct Elsewhere {
  std::atomic<std::uint64_t> address{0}, until_ns{0};
};
Elsewhere elsewhere[256];

}  // namespace

bool other_end_is_here(const Route& r, std::uint64_t now_ns) {
  std::uint64_t halves[2];
  std::memcpy(halves, &r.remote.address, sizeof halves);
  std::uint64_t hash = (halves[0] ^ 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu;
  hash = (hash ^ (hash >> 32) ^ halves[1]) * 0xc4ceb9fe1a85ec53u;
  hash ^= hash >> 29;
  Elsewhere& entry = elsewhere[hash % std::size(elsewhere)];
  // relaxed: see above
  if (entry.address.load(std::memory_order_relaxed) == hash &&
      now_ns < entry.until_ns.load(std::memory_order_relaxed)) {
    return false;
  }
  SockDiag kernel;
  SockDiag::Found found;
  if (kernel.ask(r.remote, r.local, r.interface, &found) == SockDiag::Answer::kFound) return true;
  entry.address.store(hash, std::memory_order_relaxed);
  entry.until_ns.store(now_ns + kElsewhereNs, std::memory_order_relaxed);
  return false;
}

}  // namespace clan::preload
