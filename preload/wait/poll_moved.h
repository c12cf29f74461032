// poll() with moved sockets: a wait in a set that lives as long as the call (waiting.h), with the
// kernel's poll() in place of epoll. It watches a moved socket for the end of TCP, and its bell.
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

/// The kernel's wait as the application called it: its signal mask, and a cancellation point.
/// Refers to `int f(Events*, Count, std::int64_t ns)`, which outlives it.
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

/// Returns the calling thread's waiter for poll() calls; another one if they wait for other hosts.
inline Waiter& waiter_of_poll(bool remote = false) {
  static thread_local Waiter local{WaitOptions{}}, distant{kRemoteWait};
  return remote ? distant : local;
}

/// One poll() as a set: Interest::index and Interest::data index the call's array. One thread's.
class PolledSet {
 public:
  /// A moved socket of it.
  struct Place {
    Interest interest;
    SocketRef socket;
    std::optional<BellSleep> bell;
    bool sleeps = false;
  };
  /// The caller's memory. `copy`: what the kernel is asked, with room for bells and packets.
  struct Memory {
    static std::size_t bytes(nfds_t count);
    /// Each descriptor may be reported as plain, as moved and by its bell.
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
  /// Asks the kernel without waiting. Returns like epoll_wait().
  int ask(epoll_event* to);
  /// Sleeps as the application called it, and on packets. `*fetches`: some came; `*over`: time is
  /// up.
  int sleep(epoll_event* to, std::int64_t ns, const PacketSleep* packets, bool* fetches,
            bool* over);
  /// Leaves a socket that is back on TCP to the kernel, which has to be asked then.
  void leave(const Interest& i) {
    memory_.copy[i.index].events = fds_[i.index].events;
    set_.plain.store(true, std::memory_order_relaxed);  // relaxed: this thread's alone
  }
  /// Prepares a socket for the thread's sleep, before the peer is asked to ring.
  void lie_down(Interest& i);
  void get_up();
  /// Returns the longest sleep, as the kernel does not report everything.
  std::int64_t longest();
  /// Writes the events to the application's array. Returns the number of descriptors.
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
  bool has_no_room_ = false;  ///< for bells
  bool is_untold_ = false;    ///< the kernel cannot be asked for everything
  bool wants_room_ = false;
};

/// Does poll(). `sleep(copy, count, ns)` is the kernel's, as the application called it.
int poll_moved(pollfd* fds, nfds_t count, std::int64_t timeout_ns, const KernelPoll& sleep);

}  // namespace clan::preload
