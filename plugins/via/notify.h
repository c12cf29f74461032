// Notifier: the thread of a queue on which VipSendNotify(), VipRecvNotify() or VipCQNotify() has
// been called. It takes one completion for each call, in the order of the calls, and calls the
// handler.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "provider.h"

namespace clan::via {

class Notifier {
 public:
  /// Waits for a completion, until `ends`, and calls the handler.
  using Task = std::function<void(const std::atomic<bool>& ends)>;

  explicit Notifier(Place& place);
  /// Waits for a handler that is being called, but where that is the caller.
  ~Notifier();
  void add(Task task);

 private:
  struct State;
  std::shared_ptr<State> state_;
  Place& place_;
};

}  // namespace clan::via
