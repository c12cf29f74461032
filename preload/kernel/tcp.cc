#include "kernel/tcp.h"

#include <linux/bpf.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include "os/sys.h"

namespace clan::preload {
namespace {

// Reads TCP_INFO. Returns how much of it this kernel has filled in; 0: it does not say.
socklen_t ask(int fd, tcp_info* info) {
  socklen_t size = sizeof *info;
  return sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &size) == 0 ? size : 0;
}

}  // namespace

TcpCounters counters_in(const tcp_info& info, std::size_t size) {
  return {size >= offsetof(tcp_info, tcpi_bytes_retrans) + sizeof info.tcpi_bytes_retrans,
          info.tcpi_bytes_sent - info.tcpi_bytes_retrans, info.tcpi_bytes_acked,
          info.tcpi_bytes_received};
}

bool sent_by_tcp(int fd, std::uint64_t* bytes) {
  tcp_info info{};
  const socklen_t size = ask(fd, &info);
  const TcpCounters counters = counters_in(info, size);
  if (counters.counted) *bytes = counters.sent + info.tcpi_notsent_bytes;
  return counters.counted;
}

bool sent_for_sure(int fd, bool connected, std::uint64_t* bytes) {
  constexpr int kLooks = 8;  // acknowledgements come meanwhile
  for (int i = 0; i < kLooks; ++i) {
    tcp_info info{}, again{};
    int queued = 0;
    if (!sent_by_tcp(fd, bytes) || ask(fd, &info) == 0 || sys::ioctl(fd, SIOCOUTQ, &queued) != 0 ||
        ask(fd, &again) == 0)
      return false;
    const std::uint64_t syn = connected ? 1 : 0;
    if (info.tcpi_bytes_acked != again.tcpi_bytes_acked) continue;
    if (info.tcpi_bytes_acked + static_cast<std::uint64_t>(queued) == *bytes + syn) return true;
  }
  return false;
}

bool received_by_tcp(int fd, tcp_info* info, std::size_t* queued) {
  for (;;) {
    int before = 0, again = 0;
    if (sys::ioctl(fd, FIONREAD, &before) != 0 || ask(fd, info) == 0 ||
        sys::ioctl(fd, FIONREAD, &again) != 0)
      return false;
    // Bytes that arrive between the two questions would count as read: ask until none did.
    if (again != before) continue;
    *queued = static_cast<std::size_t>(before);
    return true;
  }
}

std::uint64_t arrived(int fd) {
  tcp_info info{};
  return ask(fd, &info) > 0 ? info.tcpi_bytes_received : 0;
}

int tcp_state_of(int fd) {
  tcp_info info{};
  return ask(fd, &info) > 0 ? info.tcpi_state : -1;
}

bool other_end_is_open(int fd) {
  const int state = tcp_state_of(fd);
  return state == BPF_TCP_ESTABLISHED || state == BPF_TCP_FIN_WAIT1 || state == BPF_TCP_FIN_WAIT2;
}

std::uint64_t cookie_of(int fd) {
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return sys::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

void reset_connection(int fd) {
  const sockaddr nowhere{AF_UNSPEC, {}};
  sys::call(SYS_connect, fd, &nowhere, sizeof nowhere);
}

}  // namespace clan::preload
