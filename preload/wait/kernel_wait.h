// The kernel's wait, in the way the application called it: with its mask of signals, and as a
// cancellation point.
#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <cstdint>
#include <type_traits>

namespace clan::preload {

/// A reference to `int f(Events*, Count, std::int64_t ns)`, which outlives it.
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

}  // namespace clan::preload
