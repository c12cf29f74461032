// Of a Socket: the epoll sets it is in.
#pragma once

#include <atomic>

namespace clan::preload {

struct Interest;

struct Watch {
  Interest* interests = nullptr;     ///< in epoll sets; under the epoll lock
  std::atomic<bool> in_sets{false};  ///< there are interests; written under the epoll lock

  void reset();
};

}  // namespace clan::preload
