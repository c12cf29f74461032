// Waiting: by looking, by a descriptor, and by a thread of the library that calls back.
#include <clan/detail/clock.h>
#include <clan/detail/words.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "endpoint.h"

namespace clan::unet::library {

int Endpoint::poll() {
  const Held held(*port_);
  if (armed_ || untold_ > 0) [[unlikely]] {
    disarm();
    tell_closed();
  }
  port_->take(*this);
  return has_received() ? 0 : EAGAIN;
}

// Costs little where there is nothing.
bool Endpoint::something() {
  if (has_received()) return true;
  Held held(*port_);
  held.leave_armed();
  return !port_->quiet() || untold_ > 0;
}

int Endpoint::wait(std::int64_t timeout_ms) {
  static const std::atomic<bool> never{false};
  return wait(deadline_after_ms(timeout_ms), never);
}

int Endpoint::wait(std::uint64_t deadline_ns, const std::atomic<bool>& ends) {
  std::uint32_t done = 0;
  for (bool first = true; !words::load_acquire(ends); first = false) {
    {
      const Held held(*port_);
      if (first) done = first_send_;
      disarm();
      tell_closed();
      port_->take(*this);
      if (const int error = pump(); error != 0) return error;
      if (has_received() || first_send_ != done) return 0;
    }
    int error = 0;
    const auto asleep = [&] { return sleep(deadline_ns, ends, &error); };
    if (waiter_.wait([this] { return something(); }, {}, deadline_ns, asleep) ==
        WaitResult::kTimedOut)
      return ETIMEDOUT;
    if (error != 0) return error;
  }
  return EINTR;
}

// False: there is something to take already.
bool Endpoint::sleep(std::uint64_t deadline_ns, const std::atomic<bool>& ends, int* error) {
  pollfd fds[2] = {{-1, POLLIN, 0}, {own_fd_, POLLIN, 0}};
  bool deferred, flies;
  {
    Held held(*port_);
    held.leave_armed();
    deferred = deferred_;
    flies = flies_;
  }
  if (deferred || flies) {  // this thread may as well take the page fault
    if (!deferred || !node().translator->resolve()) ::sched_yield();
    return false;
  }
  {
    Held held(*port_);
    held.leave_armed();
    const auto fd = port_->messages.fd();
    if (!fd) *error = fd.error().err;
    if (words::load_acquire(ends) || !fd || !make_armed()) return false;
    fds[0].fd = *fd;
  }
  timespec left{};
  if (deadline_ns != kNoDeadline) {
    const std::uint64_t now = monotonic_ns();
    const std::uint64_t ns = deadline_ns > now ? deadline_ns - now : 0;
    left = {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  }
  if (::ppoll(fds, 2, deadline_ns == kNoDeadline ? nullptr : &left, nullptr) < 0) *error = errno;
  return true;
}

// With the port held. What arrives from now on makes the descriptors readable.
bool Endpoint::make_armed() {
  disarm();
  if (untold_ > 0 || has_received() || !port_->messages.arm_fd()) return false;
  armed_ = true;
  ++port_->sleepers;
  return true;
}

void Endpoint::disarm() {
  std::uint64_t value = 0;
  if (!std::exchange(armed_, false)) return;
  if (own_fd_ >= 0) (void)!::read(own_fd_, &value, sizeof value);
  --port_->sleepers;
}

void Endpoint::wake() {
  const std::uint64_t one = 1;
  (void)!::write(own_fd_, &one, sizeof one);
}

int Endpoint::fd() {
  const Held held(*port_);
  const auto fd = port_->messages.fd();
  if (!fd) return -1;
  if (own_fd_ < 0) return *fd;
  if (both_fd_ >= 0) return both_fd_;
  both_fd_ = ::epoll_create1(EPOLL_CLOEXEC);
  for (const int each : {*fd, own_fd_}) {
    epoll_event event{EPOLLIN, {}};
    (void)::epoll_ctl(both_fd_, EPOLL_CTL_ADD, each, &event);
  }
  return both_fd_;
}

int Endpoint::arm() {
  Held held(*port_);
  held.leave_armed();
  return !flies_ && !deferred_ && make_armed() ? 0 : EAGAIN;
}

int Endpoint::on_receive(void (*arrived)(unet_endpoint*, void*), void* context) {
  if (notifier_) {
    words::store_release(notifier_->ends, true);
    {
      Held held(*port_);
      held.leave_armed();
      port_->messages.ring_fd();
    }
    notifier_->thread.join();
    notifier_.reset();
  }
  if (arrived == nullptr) return 0;
  if ((flags_ & UNET_THREADS) == 0) return EINVAL;
  notifier_ = std::make_unique<Notifier>();
  notifier_->thread = std::thread([this, arrived, context, &ends = notifier_->ends] {
    while (!words::load_acquire(ends)) {
      const int error = wait(kNoDeadline, ends);
      if (error != 0 && error != EINTR) return;
      if (!words::load_acquire(ends) && has_received()) arrived(this, context);
    }
  });
  return 0;
}

}  // namespace clan::unet::library
