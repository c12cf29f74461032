#include "native.h"

#include <clan/detail/clock.h>
#include <clan/face/settings.h>
#include <sys/epoll.h>

#include <cstring>
#include <thread>

namespace clan::gateway {

Result<std::unique_ptr<Natives>> Natives::create(int set, std::uint64_t tag) {
  const Settings settings = settings_of_environment("no service is reached");
  if (settings.disable) return Error{EPERM, "CLAN is disabled by its settings"};
  auto context = create_context(settings.context_options(), "connections");
  if (!context) return context.error();
  auto queue = EventQueue::create(*context);
  if (!queue) return queue.error();
  const auto done = queue->add_user(0);
  if (!done) return done.error();
  const auto fd = queue->fd();
  if (!fd) return fd.error();
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  if (epoll_ctl(set, EPOLL_CTL_ADD, *fd, &event) != 0) return errno_error("epoll_ctl");
  return std::unique_ptr<Natives>(new Natives(std::move(*context), std::move(*queue), *done, set));
}

Natives::Natives(Context context, EventQueue queue, std::uint32_t done, int set)
    : context_(std::move(context)),
      queue_(std::move(queue)),
      done_(done),
      set_(set),
      waiter_(context_.options().wait) {}

void Natives::connect(const std::string& service, std::uint64_t id, std::uint64_t deadline_ns) {
  const std::lock_guard lock(shared_.mutex);
  const bool first = shared_.jobs.find(service) == shared_.jobs.end();
  shared_.jobs[service].push_back({id, deadline_ns});
  if (first) std::thread([this, service] { serve(service); }).detach();  // as long as the process
  shared_.wake.notify_all();
}

void Natives::serve(const std::string& service) {
  std::unique_lock lock(shared_.mutex);
  std::deque<Job>& jobs = shared_.jobs[service];
  for (;;) {
    shared_.wake.wait(lock, [&] { return !jobs.empty(); });
    const Job job = jobs.front();
    jobs.pop_front();
    lock.unlock();
    const std::uint64_t now = monotonic_ns();  // it may have waited behind others
    const auto left_ms = job.deadline_ns > now ? (job.deadline_ns - now) / 1'000'000 : 0;
    const bool waits = job.deadline_ns == kNoDeadline;
    auto stream =
        Stream::connect(context_, service, waits ? -1 : static_cast<std::int64_t>(left_ms));
    lock.lock();
    shared_.outcomes.emplace_back(job.id, std::move(stream));
    queue_.post_user(done_);
  }
}

std::vector<Natives::Outcome> Natives::connected() {
  const std::lock_guard lock(shared_.mutex);
  return std::exchange(shared_.outcomes, {});
}

std::span<const Event> Natives::poll() {
  std::size_t n = queue_.poll(events_);
  if (n == 0 && streams > 0) {
    const auto ready = [&] { return (n = queue_.poll(events_)) > 0; };
    const auto look = [&] {
      epoll_event event;
      return epoll_wait(set_, &event, 1, 0) > 0;
    };
    (void)waiter_.spin(ready, PeerHint{}, kNoDeadline, look);
  }
  return {events_.data(), n};
}

}  // namespace clan::gateway
