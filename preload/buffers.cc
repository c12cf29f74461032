// How much a connection in a pipe buffers: what it would on TCP.
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "clan/log.h"
#include "clan/pipe_memory.h"
#include "config.h"
#include "socket.h"

namespace clan::preload {
namespace {

constexpr std::uint64_t kSmallRing = 512 * 1024;      ///< where address space is short
constexpr std::uint64_t kMostRing = 32 * 1024 * 1024;  ///< of each of two, with RLIMIT_FSIZE in mind
constexpr std::uint64_t kUsualMost = 4 * 1024 * 1024;  ///< of tcp_wmem, should the kernel not say
constexpr int kBufLock = 72;                           ///< SO_BUF_LOCK, in headers of Linux 5.16
constexpr int kSendLock = 1, kReceiveLock = 2;         ///< SOCK_SNDBUF_LOCK, SOCK_RCVBUF_LOCK

// The last of three numbers.
std::uint64_t most_of(const char* file) {
  char text[96] = {};
  const int fd = static_cast<int>(sys::call(SYS_openat, AT_FDCWD, file, O_RDONLY | O_CLOEXEC, 0));
  const long n = fd >= 0 ? sys::call(SYS_read, fd, text, sizeof text - 1) : 0;
  if (fd >= 0) sys::close(fd);
  if (n <= 0) return kUsualMost;
  char* at = text;
  std::uint64_t number = 0;
  for (int i = 0; i < 3; ++i) number = std::strtoull(at, &at, 10);
  return number > 0 ? number : kUsualMost;
}

// Both are of the network namespace, and read once: who changes them restarts programs for TCP's sake too.
struct Most {
  std::uint64_t sends, receives;
};
const Most& most() {
  static const Most found{most_of("/proc/sys/net/ipv4/tcp_wmem"), most_of("/proc/sys/net/ipv4/tcp_rmem")};
  return found;
}

int option_of(int fd, int name) {
  int value = 0;
  socklen_t size = sizeof value;
  return sys::getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : 0;
}

std::atomic<std::uint32_t> pipes_here{0};

std::uint64_t memory_here() {
  static const std::uint64_t bytes = pipe_memory(config().memory, 0);
  return bytes;
}

// Of each ring that has moved here, when all of them are full. A pipe has two.
std::uint64_t share_of_ring() {
  return memory_here() / std::max<std::uint64_t>(1, pipes_here.load(std::memory_order_relaxed)) / 2;
}

bool address_space_is_short() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

}  // namespace

std::uint32_t ring_bytes() {
  static const std::uint32_t bytes = [] {
    if (address_space_is_short()) return static_cast<std::uint32_t>(kSmallRing);
    // What a pipe takes of a ring is 7/8, and what is received counts a quarter more.
    const std::uint64_t wanted = std::bit_ceil(most().sends / 4 * 5 / 7 * 8);
    return static_cast<std::uint32_t>(std::clamp(wanted, kSmallRing, kMostRing));
  }();
  return bytes;
}

bool too_large_here(const Pipe& pipe) {
  return address_space_is_short() && pipe.page().head.ring_bytes > kSmallRing;
}

void limit_as_tcp(int fd, Socket& s) {
  const int locks = option_of(fd, kBufLock);
  const std::uint64_t sends = (locks & kSendLock) != 0
                                  ? static_cast<std::uint64_t>(option_of(fd, SO_SNDBUF))
                                  : most().sends;
  const bool grows = (locks & kReceiveLock) == 0;
  const std::uint64_t receives =
      grows ? most().receives : static_cast<std::uint64_t>(option_of(fd, SO_RCVBUF));
  const std::uint64_t share = share_of_ring();  // sums of both ends' numbers are what counts
  s.pipe.set_limits(std::min(sends, share / 2), std::min(receives, share / 2), grows);
}

bool may_have_pipe() {
  const std::uint64_t pipes = pipes_here.load(std::memory_order_relaxed);
  if (pipes < memory_here() / kLeastPipeBytes) return true;
  CLAN_INFO("%llu connections in shared memory are as many as %llu bytes allow (CLAN_MEMORY); one stays on TCP",
            static_cast<unsigned long long>(pipes), static_cast<unsigned long long>(memory_here()));
  return false;
}

void count_pipe(Socket& s) {
  if (s.pipe_counted.exchange(true)) return;
  const std::uint32_t pipes = pipes_here.fetch_add(1) + 1;
  // Half as much for twice as many. While there is enough for all this changes nothing.
  if (!std::has_single_bit(pipes) || share_of_ring() > most().sends * 2) return;
  for_each_socket([](int fd, Socket& one, void*) { if (one.shared()) limit_as_tcp(fd, one); }, nullptr);
}

void discount_pipe(Socket& s) {
  if (s.pipe_counted.exchange(false)) pipes_here.fetch_sub(1);
}

}  // namespace clan::preload
