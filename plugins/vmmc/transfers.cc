#include "transfers.h"

#include <array>
#include <cerrno>
#include <chrono>

#include "objects.h"
#include "send.h"

namespace clan::vmmc {

Status Transfers::post(vmmc_remote& remote, const Stretch& to, const void* source, bool notify,
                       std::uint64_t* handle) {
  std::lock_guard lock(mutex_);
  if (!queue_) {
    auto made = RdmaQueue::create(context_, kDepth);
    if (!made) return made.error();
    queue_ = std::move(*made);
  }
  const std::uint64_t number = ++last_;
  if (auto s = queue_->write(*remote.aperture, to.offset, source, to.bytes, {.cookie = number}); !s)
    return s;
  requests_[number] = {&remote, to, notify, 0};
  words::add(remote.under_way, 1u);
  *handle = number;
  if (!taking_) take();
  return {};
}

void Transfers::finish(const RdmaCompletion& completion) {
  const auto at = requests_.find(completion.cookie);
  if (at == requests_.end()) return;
  Request& request = at->second;
  request.status = completion.status;
  if (request.status == 0 && request.notify) {
    const int refused = -answer(notify_exporter(*request.remote, request.to));
    request.status = refused == EAGAIN ? ENOBUFS : refused;  // EAGAIN is of sends under way
  }
  words::subtract(request.remote->under_way, 1u);
  request.remote = nullptr;
}

void Transfers::take() {
  std::array<RdmaCompletion, 32> completions;
  for (std::size_t n = completions.size(); n == completions.size();) {
    n = queue_->poll(completions);
    for (std::size_t i = 0; i < n; ++i) finish(completions[i]);
  }
}

template <typename Done>
Status Transfers::wait_until(std::unique_lock<std::mutex>& lock, Done done,
                             std::uint64_t deadline_ns) {
  for (;;) {
    if (queue_ && !taking_) take();
    if (done()) return {};
    if (deadline_ns != kNoDeadline && monotonic_ns() >= deadline_ns)
      return Error{ETIMEDOUT, "a transfer is under way"};
    if (taking_) {
      const std::chrono::milliseconds most(milliseconds_until(deadline_ns));
      most.count() < 0 ? taken_.wait(lock) : (void)taken_.wait_for(lock, most);
      continue;
    }
    taking_ = true;
    lock.unlock();
    std::array<RdmaCompletion, 32> completions;
    const auto n = queue_->wait(completions, milliseconds_until(deadline_ns));
    lock.lock();
    taking_ = false;
    for (std::size_t i = 0; n.ok() && i < *n; ++i) finish(completions[i]);
    taken_.notify_all();
    if (!n && n.error().err != ETIMEDOUT && n.error().err != EINTR) return n.error();
  }
}

std::optional<int> Transfers::take_result(std::uint64_t handle) {
  const auto at = requests_.find(handle);
  if (at == requests_.end()) return ESRCH;
  if (at->second.remote != nullptr) return std::nullopt;
  const int status = at->second.status;
  requests_.erase(at);
  return status;
}

namespace {

Status status_of(int err) { return err == 0 ? Status() : Error{err, "a transfer has failed"}; }

}  // namespace

Status Transfers::test(std::uint64_t handle) {
  std::lock_guard lock(mutex_);
  if (queue_ && !taking_) take();
  return status_of(take_result(handle).value_or(EAGAIN));
}

Status Transfers::wait(std::uint64_t handle, std::uint64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  std::optional<int> result;
  const auto done = [&] { return (result = take_result(handle)).has_value(); };
  if (auto s = wait_until(lock, done, deadline_ns); !s) return s;
  return status_of(*result);
}

Status Transfers::drain(const vmmc_remote& remote) {
  const auto done = [&] { return words::load_acquire(remote.under_way) == 0; };
  if (done()) return {};
  std::unique_lock lock(mutex_);
  return wait_until(lock, done, kNoDeadline);
}

}  // namespace clan::vmmc
