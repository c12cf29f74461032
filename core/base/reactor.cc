#include "base/reactor.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "base/wait_call.h"
#include "clan/detail/log.h"

namespace clan {
namespace {

class Once final : public Pollable {
 public:
  Once(Reactor& reactor, Fd fd, std::function<void(Fd)> then)
      : reactor_(reactor), fd_(std::move(fd)), then_(std::move(then)) {}
  void on_ready(std::uint32_t) override {
    // The event may be of a descriptor that had this number before.
    pollfd ready{fd_.get(), POLLIN | POLLRDHUP, 0};
    if (sys::poll_until({&ready, 1}, 0) != 0) return;
    reactor_.remove(fd_.get());
    then_(std::move(fd_));
  }
  void abandon_after_fork() override { fd_.reset(); }

 private:
  Reactor& reactor_;
  Fd fd_;
  const std::function<void(Fd)> then_;
};

}  // namespace

Reactor::~Reactor() {
  stop();
  // Only when one of its own callbacks destroys it, which must be that callback's last act.
  if (thread_.joinable()) thread_.detach();
}

bool Reactor::on_reactor_thread() const {
  return thread_id_.load(std::memory_order_relaxed) == std::this_thread::get_id();
}

Status Reactor::start_locked() {
  if (thread_.joinable()) return {};
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return errno_error("epoll_create1");
  auto wake = create_eventfd();
  if (!wake) return wake.error();
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = wake->get();
  if (sys::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake->get(), &event) != 0) {
    return errno_error("epoll_ctl(wake)");
  }
  epoll_ = std::move(epoll);
  wake_ = std::move(*wake);
  // The application's signals are the application's threads' business.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  Status status;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    status = Error{EAGAIN, "no thread for the driver"};
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return status;
}

Status Reactor::add(int fd, std::shared_ptr<Pollable> pollable) {
  std::lock_guard lock(mutex_);
  if (stopping_.load(std::memory_order_relaxed)) return Error{ESHUTDOWN, "driver has ended"};
  if (auto s = start_locked(); !s) return s;
  pollables_[fd] = std::move(pollable);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.fd = fd;
  if (sys::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    pollables_.erase(fd);
    return errno_error("epoll_ctl(add)");
  }
  return {};
}

Result<int> Reactor::call_at(std::uint64_t at_ns, std::function<void()> then) {
  Fd fd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!fd) return errno_error("timerfd_create");
  at_ns = std::max<std::uint64_t>(at_ns, 1);  // 0 would be never
  itimerspec when{};
  when.it_value.tv_sec = static_cast<time_t>(at_ns / 1'000'000'000u);
  when.it_value.tv_nsec = static_cast<long>(at_ns % 1'000'000'000u);
  if (::timerfd_settime(fd.get(), TFD_TIMER_ABSTIME, &when, nullptr) != 0)
    return errno_error("timerfd_settime");
  return once(std::move(fd), [then = std::move(then)](Fd) { then(); });
}

Result<int> Reactor::once(Fd fd, std::function<void(Fd fd)> then) {
  const int number = fd.get();
  if (auto s = add(number, std::make_shared<Once>(*this, std::move(fd), std::move(then))); !s)
    return s.error();
  return number;
}

void Reactor::remove(int fd) {
  std::shared_ptr<Pollable> keep;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  auto it = pollables_.find(fd);
  if (it == pollables_.end()) return;
  keep = std::move(it->second);
  pollables_.erase(it);
  sys::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void Reactor::watch_output(int fd, bool on) {
  std::lock_guard lock(mutex_);
  if (pollables_.find(fd) == pollables_.end()) return;
  epoll_event event{};
  event.events = on ? EPOLLIN | EPOLLRDHUP | EPOLLOUT : EPOLLIN | EPOLLRDHUP;
  event.data.fd = fd;
  sys::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Reactor::stop() {
  // relaxed: the eventfd behind it, written under the mutex, ends the wait
  stopping_.store(true, std::memory_order_relaxed);
  std::unordered_map<int, std::shared_ptr<Pollable>> gone;  // destroyed outside the lock
  std::thread thread;
  {
    std::lock_guard lock(mutex_);
    if (thread_.joinable()) signal_eventfd(wake_.get());
    // Called on our own thread, it ends when the callback returns; the destructor waits for it.
    if (on_reactor_thread()) return gone.swap(pollables_);
    thread.swap(thread_);
  }
  if (thread.joinable()) thread.join();
  std::lock_guard lock(mutex_);
  gone.swap(pollables_);
}

void Reactor::abandon_after_fork() {
  stopping_.store(true, std::memory_order_relaxed);  // relaxed: the child has one thread
  for (auto& [fd, pollable] : pollables_) pollable->abandon_after_fork();
  epoll_.reset();
  wake_.reset();
  // The std::thread names a thread that this process does not have: forget it, never join it.
  new (&thread_) std::thread();
  thread_id_.store({}, std::memory_order_relaxed);
}

void Reactor::run() {
  pthread_setname_np(pthread_self(), "clan-driver");
  thread_id_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  epoll_event events[16];
  while (!stopping_.load(std::memory_order_relaxed)) {
    int n = sys::epoll_wait(epoll_.get(), events, 16, -1);
    if (n < 0 && errno != EINTR) {  // the program has closed descriptors that are not its own
      CLAN_WARN("a descriptor of the driver thread has been closed: it ends, and serves nobody");
      return;
    }
    for (int i = 0; i < n; ++i) {
      std::shared_ptr<Pollable> pollable;
      {
        std::lock_guard lock(mutex_);
        auto it = pollables_.find(events[i].data.fd);
        if (it != pollables_.end()) pollable = it->second;
      }
      if (pollable) pollable->on_ready(events[i].events);
    }
  }
}

}  // namespace clan
