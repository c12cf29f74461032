#include "wait/bell.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <system_error>

namespace clan::ofi {

Result<std::unique_ptr<Bell>> Bell::create(int fd) {
  std::unique_ptr<Bell> bell(new Bell);
  bell->epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (bell->epoll_ < 0) return errno_error("epoll_create1");
  bell->stop_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (bell->stop_ < 0) return errno_error("eventfd");
  for (const int watched : {fd, bell->stop_}) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    event.data.fd = watched;
    if (::epoll_ctl(bell->epoll_, EPOLL_CTL_ADD, watched, &event) != 0)
      return errno_error("epoll_ctl");
  }
  bell->owner_ = ::getpid();
  // Signals are the program's own threads' business.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    bell->thread_.emplace([b = bell.get()] { b->run(); });
  } catch (const std::system_error&) {
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!bell->thread_) return Error{EAGAIN, "no thread for a condition"};
  return bell;
}

Bell::~Bell() {
  if (thread_ && ::getpid() != owner_) {
    thread_->detach();  // a forked child has no such thread
  } else if (thread_) {
    const std::uint64_t one = 1;
    (void)!::write(stop_, &one, sizeof one);
    thread_->join();
  }
  if (stop_ >= 0) ::close(stop_);
  if (epoll_ >= 0) ::close(epoll_);
}

void Bell::run() {
  for (;;) {
    epoll_event events[2];
    const int n = ::epoll_wait(epoll_, events, 2, -1);
    for (int i = 0; i < n; ++i) {
      if (events[i].data.fd == stop_) return;
    }
    if (n <= 0) continue;  // EINTR
    // A thread that has held the mutex since before its last look sleeps on the condition by now.
    ::pthread_mutex_lock(&mutex_);
    ::pthread_cond_broadcast(&condition_);
    ::pthread_mutex_unlock(&mutex_);
  }
}

}  // namespace clan::ofi
