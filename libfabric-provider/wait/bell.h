// Bell: for programs that wait with FI_WAIT_MUTEX_COND, a thread that sleeps on a descriptor and
// signals a condition. A program that never asks for one has no such thread.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <thread>

#include "system/provider.h"

namespace clan::ofi {

/// Signals a condition whenever a descriptor that can be polled has something new.
class Bell {
 public:
  /// `fd` must live as long.
  static Result<std::unique_ptr<Bell>> create(int fd);
  ~Bell();
  fi_mutex_cond face() { return {&mutex_, &condition_}; }

 private:
  Bell() = default;
  void run();

  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition_ = PTHREAD_COND_INITIALIZER;
  int epoll_ = -1;  ///< edge-triggered: each event rings once
  int stop_ = -1;
  std::optional<std::thread> thread_;
  pid_t owner_ = 0;
};

}  // namespace clan::ofi
