// getsockopt(TCP_INFO) of a connection that is or was moved: the kernel's answer, plus the pipe's
// bytes as sent, acknowledged and received. Segments, round-trip times and windows stay TCP's.
#include <linux/tcp.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstddef>

#include "clan/detail/clock.h"
#include "clan/face/pipe.h"
#include "os/sys.h"
#include "state/socket.h"
#include "stream/ending.h"

namespace clan::preload {
namespace {

std::uint64_t pipe_bytes(const Socket& s, int end) {
  return s.pipe.page().ends[end].sender.bytes.load(std::memory_order_relaxed);
}

// Raises a counter that never falls, and returns for how many ms it has not changed. Changes are
// noticed by questions, so the time is a lower bound.
struct Told {
  std::uint64_t value;
  std::uint32_t quiet_ms;
};
Told tell(Socket::Counter& counter, std::uint64_t value, std::uint64_t now) {
  std::uint64_t told = counter.told.load(std::memory_order_relaxed);
  while (value > told) {
    if (!counter.told.compare_exchange_weak(told, value, std::memory_order_relaxed)) continue;
    // It changed at some time since the last question: now, at the latest.
    counter.changed_ns.store(now, std::memory_order_relaxed);
    return {value, 0};
  }
  const std::uint64_t since = counter.changed_ns.load(std::memory_order_relaxed);
  return {told, static_cast<std::uint32_t>((now - std::min(now, since)) / 1'000'000)};
}

}  // namespace

void show_pipe_in_tcp_info(int fd, Socket& s, void* value, socklen_t size) {
  const auto state = s.state.load(std::memory_order_acquire);  // PAIR preload.shared
  if (s.anew) return;
  if ((state != Socket::State::kShared && state != Socket::State::kKernel) || !s.pipe) return;
  KeepErrno keep;
  // The application's may be shorter, from an older <netinet/tcp.h>.
  tcp_info info{};
  socklen_t whole = sizeof info;
  if (sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &whole) != 0) return;
  const std::uint64_t now = monotonic_ns();
  const std::uint64_t out = pipe_bytes(s, s.pipe.end()), in = pipe_bytes(s, 1 - s.pipe.end());
  const Told sent = tell(s.told_sent, info.tcpi_bytes_sent + out, now);
  const Told acked = tell(s.told_acked, info.tcpi_bytes_acked + out, now);
  const Told received = tell(s.told_received, info.tcpi_bytes_received + in, now);
  auto put = [&](std::size_t at, auto field) {
    if (at + sizeof field <= size)
      std::memcpy(static_cast<char*>(value) + at, &field, sizeof field);
  };
  const int tcp = s.shared() ? tcp_state(fd, s) : info.tcpi_state;
#define CLAN_PUT(field, is) \
  put(offsetof(tcp_info, field), static_cast<decltype(tcp_info::field)>(is))
  CLAN_PUT(tcpi_state, tcp);
  CLAN_PUT(tcpi_bytes_sent, sent.value);
  CLAN_PUT(tcpi_bytes_acked, acked.value);
  CLAN_PUT(tcpi_bytes_received, received.value);
  if (out > 0) CLAN_PUT(tcpi_last_data_sent, std::min(info.tcpi_last_data_sent, sent.quiet_ms));
  if (in > 0) {
    CLAN_PUT(tcpi_last_data_recv, std::min(info.tcpi_last_data_recv, received.quiet_ms));
  }
#undef CLAN_PUT
}

}  // namespace clan::preload
