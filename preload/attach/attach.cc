#include "attach/attach.h"

#include <linux/bpf.h>
#include <linux/tcp.h>
#include <netinet/in.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

#include "clan/detail/clock.h"
#include "clan/detail/dekker.h"
#include "clan/face/socket_face.h"
#include "clan/face/wait.h"
#include "kernel/tcp.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/hooks.h"
#include "state/remote.h"
#include "state/withdraw.h"
#include "table/buffers.h"
#include "table/open_file.h"
#include "table/slot_table.h"
#include "tcp/call_gate.h"

namespace clan::preload {
namespace {

void introduce(int fd, Socket& s, const Route& r) {
  auto& w = s.mine().words;
  auto relaxed = std::memory_order_relaxed;  // for people to read
  w[socket_face::kProcess].store(static_cast<std::uint64_t>(::getpid()) << 32 | ::geteuid(),
                                 relaxed);
  w[socket_face::kCookie].store(cookie_of(fd), relaxed);
  const bool v4 = IN6_IS_ADDR_V4MAPPED(&r.local.address);
  w[socket_face::kPorts].store(static_cast<std::uint64_t>(v4 ? AF_INET : AF_INET6) << 32 |
                                   static_cast<std::uint64_t>(r.local.port) << 16 | r.remote.port,
                               relaxed);
  auto put = [&](int at, const in6_addr& address) {
    std::uint64_t halves[2] = {0, 0};
    std::memcpy(halves, address.s6_addr + (v4 ? 12 : 0), v4 ? 4 : 16);
    w[at].store(halves[0], relaxed);
    w[at + 1].store(halves[1], relaxed);
  };
  put(socket_face::kLocalAddress, r.local.address);
  put(socket_face::kRemoteAddress, r.remote.address);
}

// Compares the kernel's counts of bytes with those of the library's calls, which all have returned.
// If they differ, the program calls the kernel past the library, or a BPF program redirects bytes,
// and neither end could tell where TCP ends and the pipe begins.
bool all_went_through_us(int fd, const OpenFileState& slot) {
  tcp_info info{};
  std::size_t queued = 0;
  std::uint64_t sent = 0;
  if (!received_by_tcp(fd, &info, &queued) || !sent_by_tcp(fd, &sent)) return false;
  // relaxed: behind the closed gates
  const std::uint64_t received = slot.received.load(std::memory_order_relaxed) + queued;
  const bool fin = info.tcpi_state != BPF_TCP_ESTABLISHED;  // which counts as a byte
  return sent == slot.sent.load(std::memory_order_relaxed) &&
         (info.tcpi_bytes_received == received ||
          (fin && info.tcpi_bytes_received == received + 1));
}

// Makes the socket use the pipe. Its end has been published, and calls wait at the gates.
void begin_sharing(int fd, Socket& s) {
  guard_buffers();
  s.pipe.use_locks(s.open_file().locks);
  const WaitOptions wait = is_remote(s) ? kRemoteWait : WaitOptions{};
  s.receive_wait.emplace(wait);
  s.send_wait.emplace(wait);
  s.nonblocking.store(-1, std::memory_order_relaxed);  // it may have been set past the library
  s.forget_timeouts();
  int low_water = 1;
  socklen_t size = sizeof low_water;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low_water, &size) == 0 && low_water > 1) {
    // The last bytes of TCP may be few, and more lie in the pipe.
    const int one = 1;
    s.low_water.store(low_water, std::memory_order_relaxed);
    sys::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
  }
  count_pipe(s, s.pipe.end() == 1);
  limit_as_tcp(fd, s);
  s.state.store(Socket::State::kShared, std::memory_order_release);  // PAIR preload.shared
  unsay(s);
  // Always, as this takes the lock of a thread that puts the socket into a set now.
  hooks.migrated(s);
}

}  // namespace

bool create_pipe(int fd, Socket& s) {
  auto pipe = Pipe::create(socket_face::kMemfdName, ring_bytes(), 1);
  if (!pipe) return stay(fd, s, reasons::Why::kNoMemory), false;
  s.pipe = std::move(*pipe);
  return true;
}

bool enter_pipe(int fd, Socket& s, const Route& route) {
  const DeferSignals undisturbed;
  OpenFileState& slot = s.open_file();
  const std::int32_t me = closer_id();
  if (!OpenFileState::try_close(slot.receives, me)) return false;
  // A send may end only when the peer reads: do not wait for it.
  if (!OpenFileState::try_close(slot.sends, me)) {
    OpenFileState::open(slot.receives, me);
    return false;
  }
  const auto open_both = [&] {
    OpenFileState::open(slot.sends, me);
    OpenFileState::open(slot.receives, me);
  };
  // PAIR preload.held: Dekker, behind the closed gates, with what pins, passes or forks it
  if (dekker::load(slot.pinned) != 0 || !OpenFileState::is_alone(dekker::load(slot.held)))
    return open_both(), false;
  // Between hosts nothing redirects, and the kernel's counts wait for what is lost and sent again.
  if (!is_remote(s) && !all_went_through_us(fd, slot)) {
    open_both();
    return stay(fd, s, reasons::Why::kNotCounted), false;
  }
  introduce(fd, s, route);
  s.offered_ns = monotonic_ns();
  slot.moved.store(1, std::memory_order_relaxed);  // relaxed: published by the name
  (void)name_slot(fd, slot);  // pidfd_getfd() of another process finds by it that this has moved
  // relaxed: published with the state. A fork that comes now waits at the gates, and sets it again
  s.inherited.store(false, std::memory_order_relaxed);
  begin_sharing(fd, s);
  // PAIR face.state: the other end may send through the pipe
  add_state(s.mine(), socket_face::kAttached);
  open_both();
  return true;
}

bool keep_on_tcp(int fd, Socket& s, reasons::Why why) {
  KeepErrno keep;
  const DeferSignals undisturbed;
  s.open_file().pin();
  const std::lock_guard locked(s.moving);
  const auto state = s.state_now();
  if (state == Socket::State::kTcp || state == Socket::State::kOffered) stay(fd, s, why);
  return !s.shared();
}

bool has_waited_for_peer(Socket& s) {
  constexpr std::uint32_t kMostCalls = 4096, kCalls = 16;
  constexpr std::uint64_t kMostNs = 900'000'000;
  const std::uint32_t calls = s.offer_calls.fetch_add(1, std::memory_order_relaxed) + 1;
  if (calls >= kMostCalls) return true;
  return calls >= kCalls && calls % 8 == 0 && monotonic_ns() - s.offered_ns > kMostNs;
}

}  // namespace clan::preload
