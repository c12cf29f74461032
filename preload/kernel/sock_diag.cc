#include "kernel/sock_diag.h"

#include <linux/magic.h>
#include <linux/rtnetlink.h>
#include <linux/tcp.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "clan/detail/clock.h"
#include "os/scratch.h"
#include "os/sys.h"

namespace clan::preload {
namespace {

// Distinguishes the answer from those to others' questions on the same socket.
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
    static_cast<TcpCounters&>(*found) = counters_in(info, size);
  }
}

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

Endpoint endpoint_of(const sockaddr_in& from) {
  return endpoint_of(AF_INET, &from.sin_addr.s_addr, from.sin_port);
}

bool endpoint_of(const sockaddr_storage& from, Endpoint* to) {
  if (from.ss_family == AF_INET) {
    *to = endpoint_of(reinterpret_cast<const sockaddr_in&>(from));
  } else if (from.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(from);
    *to = endpoint_of(AF_INET6, in.sin6_addr.s6_addr32, in.sin6_port);
  } else {
    return false;
  }
  return true;
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

int SockDiag::release() { return std::exchange(netlink_, -1); }

bool SockDiag::genuine(int fd) {
  return sys::socket_option(fd, SO_DOMAIN) == AF_NETLINK &&
         sys::socket_option(fd, SO_PROTOCOL) == NETLINK_SOCK_DIAG;
}

SockDiag::Answer SockDiag::ask(const Endpoint& local, const Endpoint& remote,
                               std::uint32_t interface, Found* found) {
  if (netlink_ < 0) {
    return is_ours_ && find_in_tcp_tables(local, remote, found) ? Answer::kFound : Answer::kUnknown;
  }
  // relaxed: a number, whichever thread draws it
  TcpQuestion question(local, remote,
                       static_cast<std::uint32_t>(monotonic_ns()) ^
                           questions.fetch_add(0x10001, std::memory_order_relaxed));
  question.request.idiag_ext = 1u << (INET_DIAG_INFO - 1);
  question.request.id.idiag_if = interface;
  // Does not wait: the kernel has answered when this returns.
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

// --- /proc/self/net/tcp -------------------------------------------------------------------------

namespace {

constexpr int kMostRows = 16384;
constexpr unsigned kListen = 10;

// The lines of one of the two files, without allocation.
class Table {
 public:
  explicit Table(const char* path)
      : fd_(static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC))) {
    struct statfs about {};
    if (fd_ >= 0 && (::fstatfs(fd_, &about) != 0 || about.f_type != PROC_SUPER_MAGIC)) {
      sys::close(fd_);
      fd_ = -1;
    }
  }
  ~Table() {
    if (fd_ >= 0) sys::close(fd_);
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  explicit operator bool() const { return fd_ >= 0; }

  /// The next line, null-terminated; null at the end.
  const char* next() {
    for (;;) {
      if (text_ == nullptr) return nullptr;
      char* end = static_cast<char*>(std::memchr(text_ + at_, '\n', size_ - at_));
      if (end != nullptr) {
        *end = 0;
        const char* line = text_ + at_;
        at_ = static_cast<std::size_t>(end - text_) + 1;
        return line;
      }
      if (at_ == 0 && size_ == Scratch::kUsual) return nullptr;  // no line is that long
      std::memmove(text_, text_ + at_, size_ - at_);
      size_ -= at_;
      at_ = 0;
      const long n = sys::call(SYS_read, fd_, text_ + size_, Scratch::kUsual - size_);
      if (n <= 0) return nullptr;
      size_ += static_cast<std::size_t>(n);
    }
  }

 private:
  int fd_;
  std::size_t at_ = 0, size_ = 0;
  const Scratch memory_{Scratch::kUsual};
  char* const text_ = memory_.as<char>();
};

// "0100007F:1F90", or 32 digits: each word is printed as a number, and in network order in memory.
bool parse(const char*& at, bool v6, Endpoint* to) {
  at += std::strspn(at, " ");
  std::uint32_t words[4];
  const int count = v6 ? 4 : 1;
  for (int i = 0; i < count; ++i, at += 8) {
    char digits[9] = {};
    for (int k = 0; k < 8; ++k) {
      if (at[k] == 0) return false;
      digits[k] = at[k];
    }
    char* end = nullptr;
    words[i] = static_cast<std::uint32_t>(std::strtoul(digits, &end, 16));
    if (end != digits + 8) return false;
  }
  if (*at != ':') return false;
  char* end = nullptr;
  const unsigned long port = std::strtoul(at + 1, &end, 16);
  if (end != at + 5) return false;
  at = end;
  *to = endpoint_of(v6 ? AF_INET6 : AF_INET, words, htons(static_cast<std::uint16_t>(port)));
  return true;
}

// "sl: local remote st tx:rx tr:when retransmits uid timeout inode …"
bool parse_row(const char* line, bool v6, Endpoint* local, Endpoint* remote,
               SockDiag::Found* found) {
  const char* at = std::strchr(line, ':');
  if (at == nullptr || !parse(++at, v6, local) || !parse(at, v6, remote)) return false;
  unsigned state = 0, uid = 0, inode = 0;
  if (std::sscanf(at, " %x %*s %*s %*s %u %*s %u", &state, &uid, &inode) != 3) return false;
  *found = SockDiag::Found();
  found->family = v6 ? AF_INET6 : AF_INET;
  found->state = static_cast<std::uint8_t>(state);
  found->uid = uid;
  found->inode = inode;
  return true;
}

bool find_in(const char* path, bool v6, const Endpoint& local, const Endpoint& remote,
             SockDiag::Found* found) {
  Table rows(path);
  if (!rows || rows.next() == nullptr) return false;  // the heading
  for (int row = 0; row < kMostRows; ++row) {
    const char* line = rows.next();
    if (line == nullptr) return false;
    Endpoint from, to;
    SockDiag::Found here;
    if (!parse_row(line, v6, &from, &to, &here) || here.state == kListen || !(from == local) ||
        !(to == remote)) {
      continue;
    }
    *found = here;
    found->local = from;
    found->remote = to;
    return true;
  }
  return false;
}

constexpr char kTcp[] = "/proc/self/net/tcp", kTcp6[] = "/proc/self/net/tcp6";

}  // namespace

bool find_in_tcp_tables(const Endpoint& local, const Endpoint& remote, SockDiag::Found* found) {
  // IPv6 sockets may have mapped addresses.
  const bool v4 = IN6_IS_ADDR_V4MAPPED(&local.address);
  return (v4 && find_in(kTcp, false, local, remote, found)) ||
         find_in(kTcp6, true, local, remote, found);
}

// --- addresses that are not here ---------------------------------------------------------------

namespace {

constexpr std::uint64_t kElsewhereNs = 5'000'000'000u;

// By hash. No lock: if the two words are of different addresses, a connection may stay on TCP that
// could have moved, for some seconds.
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
