#include "wait/poll_moved.h"

#include <alloca.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <new>
#include <optional>

#include "clan/clock.h"
#include "clan/wait.h"
#include "os/scratch.h"
#include "os/signals.h"
#include "os/sock_diag.h"
#include "os/sys.h"
#include "state/fd_table.h"
#include "stream/doorbell.h"
#include "stream/ending.h"
#include "stream/poll_tcp.h"
#include "stream/readiness.h"
#include "stream/sleeper.h"
#include "stream/tcp_prefix.h"
#include "wait/epoll_set.h"
#include "wait/kernel_wait.h"
#include "wait/set_sleep.h"

namespace clan::preload {
namespace {

constexpr nfds_t kOnStack = 256;

constexpr short kAlways = POLLERR | POLLHUP | POLLNVAL;

short answer(int fd, Socket& s, short events, bool look) {
  short ready = readiness(fd, s, look);
  if ((ready & POLLIN) != 0) ready |= POLLRDNORM;
  if ((ready & POLLOUT) != 0) ready |= POLLWRNORM;
  return static_cast<short>(ready & (events | kAlways));
}

// Waiting places of poll() calls: one per thread.
Waiter& waiter() {
  static thread_local Waiter w{WaitOptions{}};
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

}  // namespace

int poll_moved(pollfd* fds, nfds_t count, std::int64_t timeout_ns, const KernelPoll& sleep) {
  const std::uint64_t deadline =
      timeout_ns < 0 ? kNoDeadline : monotonic_ns() + static_cast<std::uint64_t>(timeout_ns);
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
    Awaited peers{0, true};
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
      if (deadline != kNoDeadline) {
        const std::uint64_t now = monotonic_ns();
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
      if (n > 0 || (left >= 0 && monotonic_ns() >= deadline)) answered = n;
      return true;
    };
    const Waited waited = waiter().wait(there, peers, deadline, sleep_in_kernel, beyond);
    if (waited == Waited::kReady) {
      if (told && (n = snapshot(0, plain)) > 0) return n;
      if (since.handled()) {
        errno = EINTR;
        return -1;
      }
    } else if (waited == Waited::kTimedOut) {
      (void)sleep_in_kernel();
    }
    if (answered) return *answered;
  }
}

}  // namespace clan::preload
