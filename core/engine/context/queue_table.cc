#include "engine/context/queue_table.h"

#include <algorithm>

#include "engine/event/event_queue_core.h"

namespace clan::engine {

Result<std::uint32_t> QueueTable::add(EventQueueCore* queue) {
  std::lock_guard lock(mutex_);
  auto free = std::find(queues_.begin(), queues_.end(), nullptr);
  if (free == queues_.end()) {
    if (queues_.size() == shm::kMaxEventQueues) {
      return Error{ENOSPC, "4096 event queues exist in this context already"};
    }
    queues_.push_back(nullptr);
    free = queues_.end() - 1;
  }
  const auto number = static_cast<std::uint32_t>(free - queues_.begin());
  queue->set_index(number);
  *free = queue;
  return number;
}

void QueueTable::remove(std::uint32_t number) {
  std::lock_guard lock(mutex_);
  queues_[number] = nullptr;
}

Result<QueueTable::QueueFd> QueueTable::fd(std::uint32_t number) {
  std::lock_guard lock(mutex_);
  if (fds_.size() <= number) fds_.resize(number + 1);
  Fd& fd = fds_[number];
  if (fd) return QueueFd{fd.get(), false};
  auto made = create_eventfd();
  if (!made) return made.error();
  fd = std::move(*made);
  return QueueFd{fd.get(), true};
}

std::vector<std::pair<std::uint32_t, int>> QueueTable::fds() {
  std::lock_guard lock(mutex_);
  std::vector<std::pair<std::uint32_t, int>> all;
  for (std::uint32_t i = 0; i < fds_.size(); ++i) {
    if (fds_[i]) all.emplace_back(i, fds_[i].get());
  }
  return all;
}

void QueueTable::ring(std::uint32_t number) {
  std::lock_guard lock(mutex_);
  if (number < queues_.size() && queues_[number] != nullptr) queues_[number]->ring();
}

}  // namespace clan::engine
