#include "table/buffers.h"

#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstdlib>
#include <utility>

#include "clan/face/pipe_memory.h"
#include "os/sys.h"
#include "table/fd_table.h"
#include "table/pipe_count.h"

namespace clan::preload {
namespace {

constexpr std::uint64_t kSmallRing = 512 * 1024;  ///< where address space is short
/// of each of two rings, with RLIMIT_FSIZE in mind
constexpr std::uint64_t kMostRing = 32 * 1024 * 1024;
constexpr std::uint64_t kUsualMost = 4 * 1024 * 1024;  ///< of tcp_wmem, if the kernel gives none
constexpr int kBufLock = 72;                           ///< SO_BUF_LOCK, in headers of Linux 5.16
constexpr int kSendLock = 1, kReceiveLock = 2;         ///< SOCK_SNDBUF_LOCK, SOCK_RCVBUF_LOCK

// Returns the last of at most three numbers.
std::uint64_t last_number_of(const char* file, std::uint64_t usual) {
  char text[96];
  if (sys::read_file(file, text, sizeof text) <= 0) return usual;
  char *at = text, *end = text;
  std::uint64_t number = 0;
  for (std::uint64_t more = 0; (more = std::strtoull(at, &end, 10)), end != at; at = end)
    number = more;
  return number > 0 ? number : usual;
}

// Values of the network namespace, read once: an operator that changes them restarts programs.
struct Most {
  std::uint64_t sends, receives;
};
const Most& most() {
  static const Most found{last_number_of("/proc/sys/net/ipv4/tcp_wmem", kUsualMost),
                          last_number_of("/proc/sys/net/ipv4/tcp_rmem", kUsualMost)};
  return found;
}

int option_of(int fd, int name) {
  int value = 0;
  socklen_t size = sizeof value;
  return sys::getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : 0;
}

struct ReceiveBuffer {
  bool grows;
  std::uint64_t bytes;  ///< or what it may grow to
};
ReceiveBuffer receive_buffer_of(int fd) {
  if ((option_of(fd, kBufLock) & kReceiveLock) == 0) return {true, most().receives};
  return {false, static_cast<std::uint64_t>(option_of(fd, SO_RCVBUF))};
}

std::atomic<std::uint32_t> pipes_here{0};

std::atomic<std::uint64_t> share_told{
    ~std::uint64_t{0}};  ///< share_of_pipe() by which pipes here have their limits

std::uint64_t share_now() {
  // relaxed: a pipe that comes now shares anew
  return share_of_pipe(pipes_here.load(std::memory_order_relaxed));
}

// Adapts all pipes of the process to a share that has changed by far, if memory is not plenty.
void share_memory(std::uint64_t share) {
  constexpr std::uint64_t kFar = 2;
  const std::uint64_t enough = most().sends * kFar * 2;
  // relaxed: any value that another thread stored will do
  std::uint64_t told = share_told.load(std::memory_order_relaxed);
  const bool less = share * kFar <= told && share < enough,
             more = told < enough && share >= told * kFar;
  // relaxed: one thread acts on it
  if ((!less && !more) ||
      !share_told.compare_exchange_strong(told, share, std::memory_order_relaxed)) {
    return;
  }
  for_each_socket([](int fd, Socket& one) {
    if (one.shared()) limit_as_tcp(fd, one);
  });
}

std::uint64_t address_space() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}
bool address_space_is_short() { return address_space() != RLIM_INFINITY; }

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
  const bool is_set = (option_of(fd, kBufLock) & kSendLock) != 0;
  const std::uint64_t sends =
      is_set ? static_cast<std::uint64_t>(option_of(fd, SO_SNDBUF)) : most().sends;
  const ReceiveBuffer receives = receive_buffer_of(fd);
  // A share of a ring: the sums of both ends count.
  const std::uint64_t most_bytes = share_now() / 4;
  s.pipe.set_limits(std::min(sends, most_bytes), std::min(receives.bytes, most_bytes),
                    receives.grows);
}

int low_water_as_tcp(int fd, int asked) {
  const auto cap =
      static_cast<int>(std::min<std::uint64_t>(receive_buffer_of(fd).bytes, INT_MAX) / 2);
  return std::max(1, std::min(asked < 0 ? INT_MAX : asked, cap));
}

reasons::Why why_no_pipe() {
  using reasons::Why;
  // relaxed: a few too many do no harm
  const std::uint64_t pipes = pipes_here.load(std::memory_order_relaxed);
  // A pipe is one mapping; half of them are the program's.
  static const std::uint64_t most_here = last_number_of("/proc/sys/vm/max_map_count", 65530) / 2;
  if (pipes >= most_here) return Why::kMappings;
  // A quarter of a limited address space is for pipes, of two small rings each.
  if (address_space_is_short() && pipes >= address_space() / 4 / (2 * kSmallRing))
    return Why::kAddressSpace;
  return share_of_pipe(pipes, 1) >= kLeastPipeBytes ? Why::kNone : Why::kMemory;
}

void count_pipe(Socket& s, bool charged) {
  if (!s.pipe_counted.set_first()) return;
  pipes_here.fetch_add(1, std::memory_order_relaxed);  // relaxed: a count
  if (charged) s.charge = charge_pipe();
  share_memory(share_now());
}

void discount_pipe(Socket& s) {
  if (!s.pipe_counted.clear()) return;
  pipes_here.fetch_sub(1, std::memory_order_relaxed);  // relaxed: a count
  discharge_pipe(std::exchange(s.charge, {}));
}

void share_memory_anew(std::uint64_t now_ns) {
  constexpr std::uint64_t kEveryNs = 100'000'000;
  static std::atomic<std::uint64_t> looked{0};
  std::uint64_t last = looked.load(std::memory_order_relaxed);  // relaxed: of two threads one looks
  if (now_ns - last < kEveryNs ||
      !looked.compare_exchange_strong(last, now_ns, std::memory_order_relaxed))
    return;
  share_memory(share_now());
}

}  // namespace clan::preload
