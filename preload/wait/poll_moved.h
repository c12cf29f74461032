// poll() with sockets that have moved: a wait in a set that lives as long as the call (waiting.h).
// Its kernel is poll() in place of epoll: there, a socket that has moved is watched for the end of
// TCP, and its bell beside it.
#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <cstdint>
#include <optional>
#include <type_traits>

#include "clan/face/wait.h"
#include "state/remote.h"
#include "stream/bell.h"
#include "stream/remote_sleep.h"
#include "table/fd_table.h"
#include "wait/epoll_set.h"

namespace clan::preload {

/// The kernel's wait, in the way the application called it: with its mask of signals, and as a
/// cancellation point. A reference to `int f(Events*, Count, std::int64_t ns)`, which outlives it.
template <typename Events, typename Count>
class KernelWait {
 public:
  template <typename F,
            typename = std::enable_if_t<!std::is_same_v<std::remove_cvref_t<F>, KernelWait>>>
  KernelWait(F&& f)
      : object_(&f), call_([](void* object, Events* events, Count count, std::int64_t ns) -> int {
          return (*static_cast<std::remove_reference_t<F>*>(object))(events, count, ns);
        }) {}
  int operator()(Events* events, Count count, std::int64_t ns) const {
    return call_(object_, events, count, ns);
  }

 private:
  void* object_;
  int (*call_)(void*, Events*, Count, std::int64_t);
};
using KernelPoll = KernelWait<pollfd, nfds_t>;
using KernelEpoll = KernelWait<epoll_event, int>;

/// The calling thread's, for all its calls.
inline Waiter& waiter_of_poll() {
  static thread_local Waiter w{WaitOptions{}};
  return w;
}

/// When one of what is polled is remote.
inline Waiter& waiter_of_remote_poll() {
  static thread_local Waiter w{kRemoteWait};
  return w;
}

/// What one poll() is about, as a set: Interest::index and Interest::data are places in the call's
/// array. No other thread sees it.
class PolledSet {
 public:
  /// A socket of it that has moved.
  struct Place {
    Interest interest;
    SocketRef socket;
    std::optional<BellSleep> bell;
    bool sleeps = false;
  };
  /// What the caller has memory for: places, what is found of them, and events(). `copy`: what the
  /// kernel is asked, and room for the bells and PacketSleep::kMost more.
  struct Memory {
    static std::size_t bytes(nfds_t count);
    /// Each descriptor may be reported as plain, as moved, and by its bell.
    static constexpr nfds_t most_events(nfds_t count) { return 3 * count + 1; }
    explicit Memory(void* memory, nfds_t count);
    Place* places;
    ReadyEvent* found;
    Interest** watched;
    Place** of;
    epoll_event* events;
    pollfd* copy;
  };

  PolledSet(pollfd* fds, nfds_t count, const Memory& memory, const KernelPoll& sleep);
  ~PolledSet();
  PolledSet(const PolledSet&) = delete;
  PolledSet& operator=(const PolledSet&) = delete;

  Set& set() { return set_; }
  Interest* of(int place) const {
    return memory_.of[place] != nullptr ? &memory_.of[place]->interest : nullptr;
  }
  /// Asks the kernel without waiting. Answers as epoll_wait().
  int ask(epoll_event* to);
  /// Sleeps as the application called it, and on packets. `*fetches`: some have come; `*over`: the
  /// time is.
  int sleep(epoll_event* to, std::int64_t ns, const PacketSleep* packets, bool* fetches,
            bool* over);
  /// The socket has gone back to TCP: the kernel answers what was asked.
  void leave(const Interest& i) { memory_.copy[i.index].events = fds_[i.index].events; }
  /// The thread is about to sleep; to be called before the other end is asked to ring.
  void lie_down(Interest& i);
  void get_up();
  /// How long the sleep may be, as the kernel does not report all that is waited for.
  std::int64_t longest();
  /// Writes what has been found to the application's array. Returns for how many descriptors.
  int answer(const epoll_event* events, int n);

 private:
  void enter(nfds_t i);
  int take(epoll_event* to);

  Set set_;
  pollfd* const fds_;
  const nfds_t count_;
  const Memory memory_;
  const KernelPoll sleep_;
  nfds_t used_ = 0;
  bool has_no_room_ = false;  // for bells, beside what is polled
  bool is_untold_ = false;    // one of them has something that the kernel cannot be asked for
  bool wants_room_ = false;
};

/// `sleep(copy, count, ns)` is the kernel's poll, in the way the application called it.
int poll_moved(pollfd* fds, nfds_t count, std::int64_t timeout_ns, const KernelPoll& sleep);

}  // namespace clan::preload
