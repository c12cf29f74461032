// poll and select with sockets that have moved: the pipe gives their events. Sockets that have not
// moved stay where they are meanwhile.
#include <alloca.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/select.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "calls/interpose.h"
#include "os/real.h"
#include "os/scratch.h"
#include "os/signals.h"
#include "os/sys.h"
#include "os/timeout.h"
#include "state/ring_memory.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"
#include "table/open_file.h"
#include "table/unseen_sets.h"
#include "tcp/call_gate.h"
#include "wait/poll_moved.h"
#include "wait/shared_sets.h"

extern "C" [[noreturn]] void __chk_fail();  // the C library's: a message, and SIGABRT

using namespace clan::preload;

namespace {

// The sockets that a call waits for.
struct Watched {
  bool any = false;
  nfds_t moved = 0;  ///< the number of those that have moved
  Watched(const pollfd* fds, nfds_t count) {
    for (nfds_t i = 0; i < count; ++i) {
      if (fds[i].fd < 0) continue;
      const SocketRef s = acquire(fds[i].fd);
      if (s && !s->polled.load(std::memory_order_relaxed))  // relaxed: a hint
        s->polled.store(true, std::memory_order_relaxed);
      if (!s && is_seen_set(fds[i].fd)) take_off_pipes(fds[i].fd);
      any |= static_cast<bool>(s);
      moved += s && s->shared() ? 1 : 0;
    }
  }
};

// Counts the call as one that receives on sockets that have not moved, so that none of them moves
// meanwhile: bytes in the pipe would not wake the thread.
class CountedPoll {
 public:
  /// The bytes of memory that the caller provides.
  static std::size_t room(nfds_t count) { return count * sizeof(Counted); }
  explicit CountedPoll(void* memory) : counted_(static_cast<Counted*>(memory)) {}
  ~CountedPoll() { stop(); }
  CountedPoll(const CountedPoll&) = delete;
  CountedPoll& operator=(const CountedPoll&) = delete;

  /// False: one of them is moving, or not `moved` of them have moved; nothing is counted.
  bool begin(const pollfd* fds, nfds_t count, nfds_t moved) {
    nfds_t found = 0;
    for (nfds_t i = 0; i < count; ++i) {
      SocketRef s = fds[i].fd >= 0 ? acquire(fds[i].fd) : SocketRef();
      found += s && s->shared() ? 1 : 0;
      if (!s || s->shared() || s->stays_on_tcp()) continue;
      auto* const one = new (counted_ + used_) Counted(std::move(s));
      ++used_;
      if (one->is_under_way && !one->socket->shared()) continue;
      const SocketRef held = std::move(one->socket);
      stop();
      (void)await_gate(held->open_file().receives, turn_++);
      return false;
    }
    if (found != moved) stop();
    return found == moved;
  }

 private:
  struct Counted {
    explicit Counted(SocketRef s)
        : socket(std::move(s)), is_under_way(socket->open_file().receives) {}
    SocketRef socket;
    OpenFileState::UnderWay is_under_way;
  };
  void stop() {
    while (used_ > 0) counted_[--used_].~Counted();
  }

  Counted* const counted_;
  nfds_t used_ = 0;
  std::uint32_t turn_ = 0;
};

// `sleep(fds, count, ns)` is the kernel's call.
template <typename Sleep>
int do_poll(pollfd* fds, nfds_t count, std::int64_t timeout_ns, Sleep&& sleep) {
  constexpr nfds_t kOnStack = 16;
  const TimeOut timeout(timeout_ns);
  std::optional<Scratch> scratch;
  std::optional<CountedPoll> counted;
  for (std::int64_t left = timeout_ns;; left = timeout.left()) {
    const Watched watched(fds, count);
    if (watched.any && left != 0) {
      if (!counted) {
        const std::size_t room = CountedPoll::room(count);
        void* memory = count <= kOnStack ? alloca(room) : nullptr;
        if (memory == nullptr) memory = scratch.emplace(room).template as<void>();
        if (memory == nullptr) return fail(ENOMEM);
        counted.emplace(memory);
      }
      if (!counted->begin(fds, count, watched.moved)) continue;
    }
    return watched.moved > 0 ? poll_moved(fds, count, left, sleep) : sleep(fds, count, left);
  }
}

int do_ppoll(pollfd* fds, nfds_t count, std::int64_t timeout_ns, const sigset_t* mask) {
  const ScopedSigmask masked(mask);
  if (!masked) return -1;
  return do_poll(fds, count, timeout_ns, [mask](pollfd* of, nfds_t n, std::int64_t all) {
    return sleep_releasing(all, [&](std::int64_t left) {
      const timespec ts = as_timespec(left);
      return real().ppoll(of, n, left < 0 ? nullptr : &ts, mask);
    });
  });
}

// select by poll, for sockets that have moved or may move.
int do_select(int n, fd_set* in, fd_set* out, fd_set* bad, std::int64_t timeout_ns,
              const sigset_t* mask) {
  const auto most = static_cast<std::size_t>(n);
  const Scratch scratch(most * (sizeof(pollfd) + sizeof(bool)));
  if (!scratch) return fail(ENOMEM);
  auto* fds = scratch.as<pollfd>();
  bool* open = reinterpret_cast<bool*>(fds + most);
  nfds_t count = 0;
  for (int fd = 0; fd < n; ++fd) {
    short events = 0;
    if (in != nullptr && FD_ISSET(fd, in)) events |= POLLIN;
    if (out != nullptr && FD_ISSET(fd, out)) events |= POLLOUT;
    if (bad != nullptr && FD_ISSET(fd, bad)) events |= POLLPRI;
    if (events == 0) continue;
    open[count] = known(fd) || is_seen_set(fd);
    fds[count++] = {fd, events, 0};
  }
  if (do_ppoll(fds, count, timeout_ns, mask) < 0) return -1;
  for (nfds_t i = 0; i < count; ++i) {
    if ((fds[i].revents & POLLNVAL) == 0) continue;
    if (!open[i]) return fail(EBADF);
    fds[i].revents = fds[i].events;  // closed meanwhile: the kernel's select calls it ready, too
  }
  const std::size_t bytes = (static_cast<std::size_t>(n) + 63) / 64 * 8;
  for (fd_set* set : {in, out, bad}) {
    if (set != nullptr) std::memset(set, 0, bytes);
  }
  int ready = 0;
  for (nfds_t i = 0; i < count; ++i) {
    const int fd = fds[i].fd;
    const short r = fds[i].revents, e = fds[i].events;
    if ((e & POLLIN) != 0 && (r & (POLLIN | POLLHUP | POLLERR)) != 0) FD_SET(fd, in), ++ready;
    if ((e & POLLOUT) != 0 && (r & (POLLOUT | POLLERR)) != 0) FD_SET(fd, out), ++ready;
    if ((e & POLLPRI) != 0 && (r & POLLPRI) != 0) FD_SET(fd, bad), ++ready;
  }
  return ready;
}

// How many bits of its sets select() reads. Some programs pass the highest number, but have smaller
// sets. The kernel stops at the highest descriptor; the library's own have high numbers.
int bits_of_select(int n) {
  const KeepErrno keep;
  if (n <= FD_SETSIZE || sys::fcntl(n - 1, F_GETFD) >= 0) return n;
  const int highest = highest_of_application();
  return highest < 0 ? n : std::min(n, std::max(highest + 1, FD_SETSIZE));
}

bool any_socket(int n, const fd_set* in, const fd_set* out) {
  for (int fd = 0; fd < n; ++fd) {
    const bool waits = (in != nullptr && FD_ISSET(fd, in)) || (out != nullptr && FD_ISSET(fd, out));
    if (waits && (acquire(fd) || is_seen_set(fd))) return true;
  }
  return false;
}

}  // namespace

CLAN_INTERPOSED(int, poll, (pollfd * fds, nfds_t count, int timeout), (fds, count, timeout)) {
  if (fds == nullptr || count == 0) return real().poll(fds, count, timeout);
  return do_poll(fds, count, ns_of_ms(timeout), [](pollfd* of, nfds_t n, std::int64_t ns) {
    return sleep_releasing(ns,
                           [&](std::int64_t left) { return real().poll(of, n, ms_of_ns(left)); });
  });
}

CLAN_INTERPOSED(int, ppoll,
                (pollfd * fds, nfds_t count, const timespec* timeout, const sigset_t* mask),
                (fds, count, timeout, mask)) {
  if (fds == nullptr || count == 0) return real().ppoll(fds, count, timeout, mask);
  std::int64_t ns;
  return nanoseconds(timeout, &ns) ? do_ppoll(fds, count, ns, mask) : -1;
}

CLAN_INTERPOSE int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t room) {
  if (room / sizeof(pollfd) < count) __chk_fail();
  return poll(fds, count, timeout);
}

CLAN_INTERPOSE int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout,
                               const sigset_t* mask, size_t room) {
  if (room / sizeof(pollfd) < count) __chk_fail();
  return ppoll(fds, count, timeout, mask);
}

CLAN_INTERPOSED(int, select, (int n, fd_set* in, fd_set* out, fd_set* bad, timeval* timeout),
                (n, in, out, bad, timeout)) {
  n = bits_of_select(n);
  if (n <= 0 || !any_socket(n, in, out)) return real().select(n, in, out, bad, timeout);
  std::int64_t ns = kForEver;
  if (timeout != nullptr) {
    // tv_usec may be more than a million.
    timespec ts{timeout->tv_sec, timeout->tv_usec};
    if (ts.tv_nsec >= 0) {
      ts.tv_sec += timeout->tv_usec / 1'000'000;
      ts.tv_nsec = timeout->tv_usec % 1'000'000 * 1000;
    }
    if (!nanoseconds(&ts, &ns)) return -1;
  }
  const TimeOut whole(ns);
  const int rc = do_select(n, in, out, bad, ns, nullptr);
  if (timeout != nullptr && ns >= 0) {  // Linux returns what is left
    const std::int64_t left = whole.left();
    timeout->tv_sec = left / 1'000'000'000;
    timeout->tv_usec = left % 1'000'000'000 / 1000;
  }
  return rc;
}

CLAN_INTERPOSED(int, pselect,
                (int n, fd_set* in, fd_set* out, fd_set* bad, const timespec* timeout,
                 const sigset_t* mask),
                (n, in, out, bad, timeout, mask)) {
  n = bits_of_select(n);
  if (n <= 0 || !any_socket(n, in, out)) return real().pselect(n, in, out, bad, timeout, mask);
  std::int64_t ns;
  return nanoseconds(timeout, &ns) ? do_select(n, in, out, bad, ns, mask) : -1;
}
