#include "attach/attach.h"

#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "attach/find_pipe.h"
#include "clan/detail/clock.h"
#include "clan/detail/dekker.h"
#include "clan/detail/log.h"
#include "clan/detail/words.h"
#include "clan/face/socket_face.h"
#include "clan/face/wait.h"
#include "kernel/proc.h"
#include "kernel/sock_diag.h"
#include "kernel/tcp.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/hooks.h"
#include "state/remote.h"
#include "state/socket.h"
#include "state/socket_pool.h"
#include "state/withdraw.h"
#include "table/buffers.h"
#include "table/open_file.h"
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

// In memory that processes share over fork.
std::atomic<std::uint32_t>* shared_moves = nullptr;

// Nobody has the pipe any more. All that it carried had been read: the rest is TCP's.
bool ends_by_tcp(int fd, OpenFileState& slot) {
  constexpr int kUntilClosedMs = 100;  // the other end has let go of the pipe, and closes next
  // PAIR preload.moved: the pipe's last holder has handed the end of the connection over
  if (slot.pipe_fd.load(std::memory_order_acquire) < 0) return true;
  // relaxed: its last holder has closed it since
  if ((slot.pipe_end.load(std::memory_order_relaxed) & OpenFileState::kReadToEnd) == 0)
    return false;
  pollfd p{fd, POLLRDHUP, 0};
  if (sys::poll(&p, 1, kUntilClosedMs) <= 0) return false;
  char doorbells[64];
  while (sys::recv(fd, doorbells, sizeof doorbells, MSG_DONTWAIT) > 0) {
  }
  slot.pin();
  slot.pipe_fd.store(-1, std::memory_order_release);  // PAIR preload.moved: the same
  return true;
}

// Compares the kernel's counts of bytes with those of this library's calls, which all have
// returned. If they differ, the program calls the kernel past the library, or a BPF program
// redirects what is sent, and neither end could tell where TCP ends and the pipe begins.
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

// Where others find the pipe.
void name_pipe(Socket& s) {
  OpenFileState& slot = s.open_file();
  slot.pipe_pid.store(::getpid(), std::memory_order_relaxed);  // relaxed: published by pipe_fd
  slot.pipe_end.store(s.pipe.end(), std::memory_order_relaxed);
  // PAIR preload.moved: publishes which end it is
  slot.pipe.store(s.pipe.inode(), std::memory_order_release);
  // PAIR preload.moved: publishes which pipe it is
  slot.pipe_fd.store(s.pipe.memfd(), std::memory_order_release);
}

/// sockets are being counted for a child: none moves meanwhile
std::atomic<bool> fork_under_way{false};

}  // namespace

void begin_sharing(int fd, Socket& s, bool counted, bool moves) {
  guard_buffers();
  s.pipe.use_locks(s.open_file().locks);
  const WaitOptions wait = is_remote(s) ? kRemoteWait : WaitOptions{};
  s.receive_wait.emplace(wait);
  s.send_wait.emplace(wait);
  s.nonblocking.store(-1, std::memory_order_relaxed);  // it may have been set past the library
  int low_water = 1;
  socklen_t size = sizeof low_water;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low_water, &size) == 0 && low_water > 1) {
    // A doorbell is one byte, and has to wake.
    const int one = 1;
    s.low_water.store(low_water, std::memory_order_relaxed);
    sys::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
  }
  count_pipe(s, moves && s.pipe.end() == 1);
  limit_as_tcp(fd, s);
  if (!counted) add_holders(s.mine(), 1);
  // PAIR preload.to_follow: it is among kHolders before it is not among these
  if (!dekker::swap(s.not_to_follow, true)) dekker::subtract(s.open_file().to_follow, 1);
  s.state.store(Socket::State::kShared, std::memory_order_release);  // PAIR preload.shared
  unsay(s);
  // Threads may be asleep on it by poll() and select(), which have asked for no doorbell.
  s.pipe.keep_wanted(false);
  // always: a thread that just puts it into a set holds the lock which this takes
  hooks.migrated(s);
}

std::uint32_t moves_of_shared() {
  // PAIR preload.moves: sees which pipe, through OpenFileState::pipe_fd
  return shared_moves != nullptr ? words::load_acquire(*shared_moves) : 0;
}

void forbid_moves() {
  // PAIR preload.forking: before Socket::moving is tried
  dekker::announce(fork_under_way, true);
  if (shared_moves != nullptr) return;
  void* memory =
      sys::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) shared_moves = new (memory) std::atomic<std::uint32_t>{0};
}

void allow_moves() {
  // PAIR preload.forking: all have been counted
  dekker::announce(fork_under_way, false);
}

bool create_pipe(int fd, Socket& s) {
  auto pipe = Pipe::create(socket_face::kMemfdName, ring_bytes(), 1);
  if (!pipe) return stay(fd, s, reasons::Why::kNoMemory), false;
  s.pipe = std::move(*pipe);
  return true;
}

bool enter_pipe(int fd, Socket& s, const Route& route) {
  const DeferSignals undisturbed;
  // PAIR preload.forking: behind Socket::moving. The child counts what has been decided
  if (dekker::load(fork_under_way)) return false;
  OpenFileState& slot = s.open_file();
  const std::int32_t me = closer_id();
  if (!OpenFileState::try_close(slot.receives, me)) return false;
  // Nor a send: it may end only when the peer reads, which may wait for doorbells that nobody can
  // ring meanwhile.
  if (!OpenFileState::try_close(slot.sends, me)) {
    OpenFileState::open(slot.receives, me);
    return false;
  }
  // PAIR preload.held: Dekker, behind the closed gates, with what pins it or passes it
  const std::uint64_t held = dekker::load(slot.held);
  // PAIR preload.alone: behind the closed gates
  const bool not_alone = dekker::load(slot.alone) != 0 && OpenFileState::users(held) > 1;
  if (dekker::load(slot.pinned) != 0 || OpenFileState::on_its_way(held) != 0 || not_alone) {
    OpenFileState::open(slot.sends, me);
    OpenFileState::open(slot.receives, me);
    return false;
  }
  // Between hosts nothing redirects, and what is lost and sent again makes the kernel's counts
  // wait.
  if (!is_remote(s) && !all_went_through_us(fd, slot)) {
    OpenFileState::open(slot.sends, me);
    OpenFileState::open(slot.receives, me);
    stay(fd, s, reasons::Why::kNotCounted);
    return false;
  }
  introduce(fd, s, route);
  s.offered_ns = monotonic_ns();
  // A thread that sleeps in the kernel on this socket already set no flag: the first bytes must
  // ring.
  // PAIR face.state: before kAttached, which lets the other end publish
  s.pipe.page().ends[s.pipe.end()].receiver.waiting.store(1, std::memory_order_seq_cst);
  s.pipe.page().ends[s.pipe.end()].sender.waiting.store(1, std::memory_order_seq_cst);
  name_pipe(s);
  const bool inherited = s.inherited.load(std::memory_order_relaxed);
  // relaxed: published with the state
  if (inherited) s.followed.store(true, std::memory_order_relaxed);
  // PAIR preload.moves: behind pipe_fd
  if (shared_moves != nullptr && inherited) words::add(*shared_moves, 1);
  begin_sharing(fd, s, false, true);
  // PAIR face.state: the other end may send through the pipe
  add_state(s.mine(), socket_face::kAttached);
  OpenFileState::open(slot.sends, me);
  OpenFileState::open(slot.receives, me);
  return true;
}

void lock_between_forks(Socket& s) {
  for (;;) {
    // PAIR preload.forking: before Socket::moving is taken, and behind that
    while (dekker::load(fork_under_way)) sched_yield();
    s.moving.lock();
    if (!dekker::load(fork_under_way)) return;
    s.moving.unlock();
  }
}

void join_pipe(int fd, Socket& s, OpenFileState& slot, Pipe pipe, const Route& route,
               bool follows) {
  const DeferSignals undisturbed;
  lock_between_forks(s);
  withdraw_offer(s);
  exchange_slot(s, slot);
  s.share();
  s.not_to_follow.store(!follows, std::memory_order_relaxed);  // relaxed: under `moving`
  s.followed.store(true, std::memory_order_relaxed);           // relaxed: under `moving`
  s.pipe = std::move(pipe);
  introduce(fd, s, route);
  name_pipe(s);
  begin_sharing(fd, s, true, false);
  s.moving.unlock();
}

void catch_up(int fd, Socket& s) {
  OpenFileState& slot = s.open_file();
  // PAIR preload.moved: sees which pipe it is
  const int memfd = slot.pipe_fd.load(std::memory_order_acquire);
  if (memfd < 0 || s.shared()) return;
  KeepErrno keep;
  TryLockGuard once(s);
  // PAIR preload.forking: behind Socket::moving
  if (!once || s.shared() || dekker::load(fork_under_way)) return;
  // relaxed: behind pipe_fd
  int end = slot.pipe_end.load(std::memory_order_relaxed) & ~OpenFileState::kReadToEnd;
  const std::uint64_t cookie = cookie_of(fd);
  const auto mover = static_cast<unsigned>(slot.pipe_pid.load(std::memory_order_relaxed));
  auto pipe = open_pipe_of(open_memfd_of(mover, memfd, kPipeLink, O_RDWR), end, cookie);
  if (!pipe) {  // the process that moved it is gone
    const int other = find_pipe(cookie, &end);
    pipe = open_pipe_of(other, end, cookie);
  }
  if (!pipe && ends_by_tcp(fd, slot)) return;
  if (!pipe) {
    log_line(
        LogLevel::kError,
        "a connection was moved to shared memory by process %d, which shared it with this one, and "
        "cannot be followed there (%s); it is reset. CLAN_DISABLE=1 avoids that for this program",
        slot.pipe_pid.load(std::memory_order_relaxed), pipe.error().what);
    s.become(Socket::State::kKernel);
    s.inherited.store(false, std::memory_order_relaxed);  // there is nobody to follow any more
    return reset_connection(fd);
  }
  withdraw_offer(s);
  s.pipe = std::move(*pipe);
  begin_sharing(fd, s, false, false);
}

void move_only_alone(int fd, Socket& s) {
  KeepErrno keep;
  const DeferSignals undisturbed;
  dekker::announce(s.open_file().alone, 1);  // PAIR preload.alone: before the check of the gate
  await_mover(s.open_file().receives);
  catch_up(fd, s);
}

bool keep_on_tcp(int fd, Socket& s, reasons::Why why) {
  KeepErrno keep;
  const DeferSignals undisturbed;
  s.open_file().pin();
  await_mover(s.open_file().receives);
  if (s.inherited.load(std::memory_order_relaxed)) catch_up(fd, s);
  s.moving.lock();
  const auto state = s.state_now();
  if (state == Socket::State::kTcp || state == Socket::State::kOffered) stay(fd, s, why);
  s.moving.unlock();
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
