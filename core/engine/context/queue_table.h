// QueueTable: a context's event queues by number, and the descriptors that wake their sleepers.
//
// Peers ring a queue by number and keep the descriptor they got for it. So a descriptor belongs to
// a number and outlives the queue; the next queue of that number has it too.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/fd.h"

namespace clan::engine {

class EventQueueCore;

/// Thread-safe. A registered queue is alive: it is called under the lock, and removes itself first.
class QueueTable {
 public:
  struct QueueFd {
    int fd = -1;
    bool made = false;  ///< by this call: peers are to be notified
  };

  /// Gives the queue the lowest free number. ENOSPC.
  Result<std::uint32_t> add(EventQueueCore* queue);
  void remove(std::uint32_t number);
  /// The eventfd of a number, made when first asked for.
  Result<QueueFd> fd(std::uint32_t number);
  /// All numbers that have a descriptor, with it.
  std::vector<std::pair<std::uint32_t, int>> fds();

  void ring(std::uint32_t number);
  template <typename Call>
  void for_each(Call&& call) {
    std::lock_guard lock(mutex_);
    for (EventQueueCore* queue : queues_) {
      if (queue != nullptr) call(*queue);
    }
  }

  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
  std::vector<EventQueueCore*> queues_;  ///< by number; null: free
  std::vector<Fd> fds_;
};

}  // namespace clan::engine
