// poll and select with sockets that have moved. What the application waits for on those is answered from
// the pipe; in the kernel they are watched for doorbells.
#include <alloca.h>
#include <poll.h>
#include <sys/select.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>

#include "clan/clock.h"
#include "clan/wait.h"
#include "wait/epoll.h"
#include "os/real.h"
#include "os/scratch.h"
#include "os/signals.h"
#include "state/socket.h"

extern "C" [[noreturn]] void __chk_fail();  // what the C library's own do: a message, and SIGABRT

using namespace clan::preload;

namespace {

constexpr nfds_t kOnStack = 256;
constexpr short kAlways = POLLERR | POLLHUP | POLLNVAL;

// What one call waits for: sockets of ours at all, and things that have moved.
struct Watched {
  bool any = false;
  nfds_t moved = 0;
  Watched(const pollfd* fds, nfds_t count) {
    for (nfds_t i = 0; i < count; ++i) {
      if (fds[i].fd < 0) continue;
      const Held s = hold_current(fds[i].fd);
      // A socket of a set may move while we sleep: its peer has to know by then.
      const bool here = (s && s->shared()) || known_epoll(fds[i].fd);
      any |= static_cast<bool>(s) || here;
      moved += here ? 1 : 0;
    }
  }
};

short answer(int fd, Socket& s, short events, bool look) {
  short ready = readiness(fd, s, look);
  if ((ready & POLLIN) != 0) ready |= POLLRDNORM;
  if ((ready & POLLOUT) != 0) ready |= POLLWRNORM;
  return static_cast<short>(ready & (events | kAlways));
}

// Waiting places of poll() calls: one per thread.
clan::Waiter& waiter() {
  static thread_local clan::Waiter w{clan::WaitOptions{}};
  return w;
}

// One descriptor of a poll() that sleeps: a socket that has moved, or an epoll set with such sockets in it.
class Asleep {
 public:
  Asleep(int fd, short events) : held_(hold(fd)) {
    if (!held_ && known_epoll(fd)) {
      bool sleeps = true;
      set_ = set_prepare_sleep(fd, &sleeps);
      ready_ = !sleeps;
    } else if (held_ && held_->shared()) {
      left_to_others_ = doorbells_waiting(*held_) && !look_at_kernel(fd, *held_);
      sleeper_.emplace(*held_, (events & (POLLIN | POLLRDNORM | POLLRDHUP)) != 0,
                       (events & (POLLOUT | POLLWRNORM)) != 0);
      ready_ = !prepare_sleep(*held_, events) && answer(fd, *held_, events, false) != 0;
    }
  }
  ~Asleep() { set_awake(set_); }
  Asleep(const Asleep&) = delete;
  Asleep& operator=(const Asleep&) = delete;
  bool ready() const { return ready_; }
  /// Doorbells lie in TCP that somebody else sleeps for.
  bool left_to_others() const { return left_to_others_; }
  /// Null if it is no socket that has moved.
  Socket* socket() const { return sleeper_ ? held_.get() : nullptr; }

 private:
  Held held_;
  std::optional<Sleeper> sleeper_;
  SetSleep* set_ = nullptr;
  bool left_to_others_ = false, ready_ = false;
};

// A list that grows to `most` and does not allocate while that is a few.
template <typename T>
class Many {
 public:
  explicit Many(nfds_t most) : at_(reinterpret_cast<T*>(few_)) {
    if (most > kFew) at_ = more_.emplace(most * sizeof(T)).template as<T>();
  }
  ~Many() {
    while (count_ > 0) at_[--count_].~T();
  }
  Many(const Many&) = delete;
  Many& operator=(const Many&) = delete;
  /// Null when there was no memory.
  template <typename... Arguments>
  T* add(Arguments... arguments) {
    return at_ == nullptr ? nullptr : new (at_ + count_++) T(arguments...);
  }

 private:
  static constexpr nfds_t kFew = 64;
  alignas(T) std::byte few_[kFew * sizeof(T)];
  std::optional<Scratch> more_;
  T* at_;
  nfds_t count_ = 0;
};

// `sleep(copy, count, ns)` is the kernel's poll, in the way the application called it.
template <typename Sleep>
int poll_moved(pollfd* fds, nfds_t count, std::int64_t timeout_ns, Sleep&& sleep) {
  const std::uint64_t deadline =
      timeout_ns < 0 ? clan::kNoDeadline : clan::monotonic_ns() + static_cast<std::uint64_t>(timeout_ns);
  std::optional<Scratch> scratch;
  auto* copy = static_cast<pollfd*>(count <= kOnStack ? alloca(count * sizeof(pollfd)) : nullptr);
  if (copy == nullptr) copy = scratch.emplace(count * sizeof(pollfd)).as<pollfd>();
  if (copy == nullptr) {
    errno = ENOMEM;
    return -1;
  }
  const SinceEntry since;

  // What the pipes say; -1 in `copy` for descriptors that are answered so.
  int moved_ready = 0;  // of what it has found, and the kernel need not have known of what happened before
  bool bells_are_new = false;
  auto from_pipes = [&](bool look, bool plain_from_copy) {
    int n = 0;
    moved_ready = 0;
    for (nfds_t i = 0; i < count; ++i) {
      Held s = fds[i].fd >= 0 ? hold(fds[i].fd) : Held();
      bool here = false;
      if (s && s->shared()) {
        here = true;
        bool ask = look && plain_from_copy && copy[i].revents != 0;
        if (ask && copy[i].revents == POLLIN) {
          (void)take_doorbells(fds[i].fd, *s);
          ask = false;
        }
        fds[i].revents = answer(fds[i].fd, *s, fds[i].events, ask);
        if (plain_from_copy) fds[i].revents |= static_cast<short>(copy[i].revents & POLLPRI);
        if (!s->shared()) {  // it has gone back to TCP just now: the kernel answers what was asked
          copy[i].events = fds[i].events;
          (void)sys::poll(fds + i, 1, 0);
        }
      } else if (plain_from_copy) {
        fds[i].revents =
            static_cast<short>(copy[i].revents & (fds[i].events | kAlways));  // it may just have gone back
      } else {
        fds[i].revents = 0;
      }
      if (fds[i].fd >= 0 && (fds[i].events & (POLLIN | POLLRDNORM)) != 0 && set_moved(fds[i].fd)) {
        here = true;
        // What the kernel says of a set may be doorbells only.
        const bool ready = fds[i].revents != 0 ? !set_has_only_doorbells(fds[i].fd) : set_ready(fds[i].fd);
        fds[i].revents = ready ? fds[i].events & (POLLIN | POLLRDNORM) : 0;
      }
      n += fds[i].revents != 0;
      // Of one whose doorbell the kernel has told, the bytes were written before it answered.
      const bool known = bells_are_new && plain_from_copy && (copy[i].revents & POLLIN) != 0;
      moved_ready += here && fds[i].revents != 0 && !known;
    }
    return n;
  };
  // The kernel has answered in `copy`. Whatever happened before an event that the call tells of is told of too: so
  // what has moved is looked at after the kernel, and both again as long as that finds more of it. `before`: so many
  // of what has moved had been found before the kernel was asked.
  auto snapshot = [&](int before, nfds_t plain) {
    int n = from_pipes(true, true);
    bells_are_new = false;
    for (nfds_t turns = 0; moved_ready > before && turns < count; ++turns) {
      before = moved_ready;
      if (plain > 0 && sys::poll(copy, count, 0) < 0) break;
      n = from_pipes(true, true);
    }
    return n;
  };
  for (;;) {
    nfds_t plain = 0, moved = 0;
    clan::Awaited peers{0, true};
    for (nfds_t i = 0; i < count; ++i) {
      Held s = fds[i].fd >= 0 ? hold(fds[i].fd) : Held();
      copy[i] = fds[i];
      copy[i].revents = 0;
      if (s && s->shared()) {
        const std::uint16_t cpu = s->pipe.peer_cpu();
        peers.cpu = moved++ == 0 || cpu == peers.cpu ? cpu : 0;
        peers.slept &= s->rang.load(std::memory_order_relaxed);
        // Urgent data is the kernel's to tell, and as long as the peer sends by TCP all that it
        // does.
        constexpr short kNews = POLLIN | POLLRDNORM | POLLRDHUP;
        const bool by_tcp = reads_tcp(*s) && (fds[i].events & kNews) != 0;
        if ((fds[i].events & POLLPRI) != 0 || by_tcp) ++plain;
        copy[i].events = static_cast<short>(POLLIN | POLLRDHUP | (fds[i].events & POLLPRI));
      } else if (fds[i].fd >= 0) {
        ++plain;
      }
    }
    int n = from_pipes(false, false);
    if (n > 0 && plain == 0 && moved == 1) return n;
    if (n > 0 || timeout_ns == 0) {
      // Everything at once, without waiting. Where nothing holds yet a signal may, that the mask of the call
      // lets in.
      if (n == 0 || plain > 0) {
        const int rc = n > 0 ? sys::poll(copy, count, 0) : sleep(copy, count, 0);
        if (rc < 0) return n > 0 ? n : rc;
      }
      const int all = snapshot(n, plain);
      if (all > 0 || timeout_ns == 0) return all;
      continue;  // another thread has taken it
    }
    if (since.handled()) {
      errno = EINTR;
      return -1;
    }
    auto there = [&] {
      if (since.handled()) return true;
      for (nfds_t i = 0; i < count; ++i) {
        Held s = fds[i].fd >= 0 ? hold(fds[i].fd) : Held();
        if (s && s->shared() && answer(fds[i].fd, *s, fds[i].events, false) != 0) return true;
        if (!s && fds[i].fd >= 0 && set_moved(fds[i].fd) && set_ready(fds[i].fd)) return true;
      }
      return false;
    };
    bool failed = false, told = false;
    auto beyond = [&] {
      if (plain == 0 || failed) return false;
      const int rc = sys::poll(copy, count, 0);
      failed = rc < 0;
      told = rc > 0 && from_pipes(true, true) > 0;
      return told;
    };
    std::optional<int> answered;
    auto sleep_in_kernel = [&] {
      bool ready = false, drains = false;
      Many<Asleep> asleep(count);
      for (nfds_t i = 0; i < count && !ready; ++i) {
        if (fds[i].fd < 0) continue;
        const Asleep* one = asleep.add(fds[i].fd, fds[i].events);
        if (one == nullptr) {
          errno = ENOMEM;
          answered = -1;
          return false;
        }
        ready = one->ready();
        Socket* s = one->socket();
        if (s == nullptr) {
          // It has gone back: what to ask the kernel is another question.
          ready |= copy[i].events != fds[i].events;
          continue;
        }
        // Bytes of TCP that are not asked for would keep the kernel from sleeping, and so would
        // doorbells that are left to others.
        if (one->left_to_others() ||
            (reads_tcp(*s) && (fds[i].events & (POLLIN | POLLRDNORM)) == 0)) {
          copy[i].events &= static_cast<short>(~POLLIN);
          drains = true;
        }
        if (s->kernel_end.load() || s->kernel_error.load()) {
          // The kernel would go on saying so. It may be known only since the look at the doorbells
          // just now.
          copy[i].fd = -1;
          ready |= answer(fds[i].fd, *s, fds[i].events, false) != 0;
        }
        if ((fds[i].events & (POLLOUT | POLLWRNORM)) != 0 &&
            (answer(fds[i].fd, *s, POLLOUT, false) == 0) && sends_tcp(*s)) {
          copy[i].events |= POLLOUT;
        }
      }
      if (ready) return false;
      std::int64_t left = -1;
      if (deadline != clan::kNoDeadline) {
        const std::uint64_t now = clan::monotonic_ns();
        left = now >= deadline ? 0 : static_cast<std::int64_t>(deadline - now);
      }
      const std::int64_t nap = drains && (left < 0 || left > 1'000'000) ? 1'000'000 : left;
      const int rc = sleep(copy, count, nap);
      if (rc < 0) {
        answered = rc;
        return false;
      }
      bells_are_new = !drains;  // none lay there when the thread went to sleep
      n = snapshot(0, plain);
      if (n > 0 || (left >= 0 && clan::monotonic_ns() >= deadline)) answered = n;
      return true;
    };
    const clan::Waited waited = waiter().wait(there, peers, deadline, sleep_in_kernel, beyond);
    if (waited == clan::Waited::kReady) {
      if (told && (n = snapshot(0, plain)) > 0) return n;
      if (since.handled()) {
        errno = EINTR;
        return -1;
      }
    } else if (waited == clan::Waited::kTimedOut) {
      (void)sleep_in_kernel();
    }
    if (answered) return *answered;
  }
}

int milliseconds(std::int64_t ns) { return ns < 0 ? -1 : static_cast<int>((ns + 999'999) / 1'000'000); }

// When a call began and how long it may take, both in ns.
class TimeOut {
 public:
  explicit TimeOut(std::int64_t ns) : ns_(ns), start_(ns > 0 ? clan::monotonic_ns() : 0) {}
  std::int64_t left() const {
    if (ns_ <= 0) return ns_;
    return std::max<std::int64_t>(0, ns_ - static_cast<std::int64_t>(clan::monotonic_ns() - start_));
  }

 private:
  std::int64_t ns_;
  std::uint64_t start_;
};

// `sleep(fds, count, ns)` is the kernel's poll, in the way the application called it.
template <typename Sleep>
int do_poll(pollfd* fds, nfds_t count, std::int64_t timeout_ns, Sleep&& sleep) {
  // A socket that moves while we sleep makes the kernel's answer a doorbell: look again then.
  const TimeOut timeout(timeout_ns);
  for (std::int64_t left = timeout_ns;; left = timeout.left()) {
    Watched watched(fds, count);
    if (watched.moved > 0) return poll_moved(fds, count, left, sleep);
    const int rc = sleep(fds, count, left);
    if (rc <= 0 || !watched.any) return rc;
    if (Watched after(fds, count); after.moved == 0) return rc;
  }
}

int do_ppoll(pollfd* fds, nfds_t count, std::int64_t timeout_ns, const sigset_t* mask) {
  return do_poll(fds, count, timeout_ns, [mask](pollfd* of, nfds_t n, std::int64_t all) {
    return sleep_releasing(all, [&](std::int64_t left) {
      const timespec ts = as_timespec(left);
      return real().ppoll(of, n, left < 0 ? nullptr : &ts, mask);
    });
  });
}

// select by poll, when a socket of it has moved or may while it sleeps.
int do_select(int n, fd_set* in, fd_set* out, fd_set* bad, std::int64_t timeout_ns, const sigset_t* mask) {
  const auto most = static_cast<std::size_t>(n);
  const Scratch scratch(most * (sizeof(pollfd) + sizeof(bool)));
  if (!scratch) {
    errno = ENOMEM;
    return -1;
  }
  auto* fds = scratch.as<pollfd>();
  bool* open = reinterpret_cast<bool*>(fds + most);
  nfds_t count = 0;
  for (int fd = 0; fd < n; ++fd) {
    short events = 0;
    if (in != nullptr && FD_ISSET(fd, in)) events |= POLLIN;
    if (out != nullptr && FD_ISSET(fd, out)) events |= POLLOUT;
    if (bad != nullptr && FD_ISSET(fd, bad)) events |= POLLPRI;
    if (events == 0) continue;
    open[count] = known(fd) || known_epoll(fd);
    fds[count++] = {fd, events, 0};
  }
  int rc = do_ppoll(fds, count, timeout_ns, mask);
  if (rc >= 0) {
    for (nfds_t i = 0; i < count; ++i) {
      if ((fds[i].revents & POLLNVAL) == 0) continue;
      if (open[i]) {  // another thread has closed it meanwhile: the kernel's select calls it ready then
        fds[i].revents = fds[i].events;
        continue;
      }
      errno = EBADF;
      return -1;
    }
    const std::size_t bytes = (static_cast<std::size_t>(n) + 63) / 64 * 8;
    for (fd_set* set : {in, out, bad}) {
      if (set != nullptr) std::memset(set, 0, bytes);
    }
    rc = 0;
    for (nfds_t i = 0; i < count; ++i) {
      const short r = fds[i].revents, e = fds[i].events;
      if ((e & POLLIN) != 0 && (r & (POLLIN | POLLHUP | POLLERR)) != 0) FD_SET(fds[i].fd, in), ++rc;
      if ((e & POLLOUT) != 0 && (r & (POLLOUT | POLLERR)) != 0) FD_SET(fds[i].fd, out), ++rc;
      if ((e & POLLPRI) != 0 && (r & POLLPRI) != 0) FD_SET(fds[i].fd, bad), ++rc;
    }
  }
  return rc;
}

bool any_socket(int n, const fd_set* in, const fd_set* out) {
  for (int fd = 0; fd < n; ++fd) {
    if (((in != nullptr && FD_ISSET(fd, in)) || (out != nullptr && FD_ISSET(fd, out))) &&
        (hold(fd) || set_moved(fd))) {
      return true;
    }
  }
  return false;
}

}  // namespace

CLAN_INTERPOSE int poll(pollfd* fds, nfds_t count, int timeout) {
  if (fds == nullptr || count == 0) return real().poll(fds, count, timeout);
  return do_poll(fds, count, timeout < 0 ? kForEver : timeout * std::int64_t{1'000'000},
                 [](pollfd* of, nfds_t n, std::int64_t ns) {
                   return clan::preload::sleep_releasing(
                       ns, [&](std::int64_t left) { return real().poll(of, n, milliseconds(left)); });
                 });
}

CLAN_INTERPOSE int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  if (fds == nullptr || count == 0) return real().ppoll(fds, count, timeout, mask);
  std::int64_t ns;
  return nanoseconds(timeout, &ns) ? do_ppoll(fds, count, ns, mask) : -1;
}

CLAN_INTERPOSE int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t room) {
  if (room / sizeof(pollfd) < count) __chk_fail();
  return poll(fds, count, timeout);
}

CLAN_INTERPOSE int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask,
                               size_t room) {
  if (room / sizeof(pollfd) < count) __chk_fail();
  return ppoll(fds, count, timeout, mask);
}

CLAN_INTERPOSE int select(int n, fd_set* in, fd_set* out, fd_set* bad, timeval* timeout) {
  if (n <= 0 || !any_socket(n, in, out)) return real().select(n, in, out, bad, timeout);
  std::int64_t ns = kForEver;
  if (timeout != nullptr) {
    // More than a million is allowed here.
    timespec ts{timeout->tv_sec, timeout->tv_usec};
    if (ts.tv_nsec >= 0) {
      ts.tv_sec += timeout->tv_usec / 1'000'000;
      ts.tv_nsec = timeout->tv_usec % 1'000'000 * 1000;
    }
    if (!nanoseconds(&ts, &ns)) return -1;
  }
  const TimeOut whole(ns);
  const int rc = do_select(n, in, out, bad, ns, nullptr);
  if (timeout != nullptr && ns >= 0) {  // Linux tells what is left
    const std::int64_t left = whole.left();
    timeout->tv_sec = left / 1'000'000'000;
    timeout->tv_usec = left % 1'000'000'000 / 1000;
  }
  return rc;
}

CLAN_INTERPOSE int pselect(int n, fd_set* in, fd_set* out, fd_set* bad, const timespec* timeout,
                           const sigset_t* mask) {
  if (n <= 0 || !any_socket(n, in, out)) return real().pselect(n, in, out, bad, timeout, mask);
  std::int64_t ns;
  return nanoseconds(timeout, &ns) ? do_select(n, in, out, bad, ns, mask) : -1;
}
