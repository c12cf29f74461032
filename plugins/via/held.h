// A VI that is held, and what waits for it. Included by vi.h.
#pragma once

#include "vi.h"

namespace clan::via {

/// Takes the first completed descriptor of a queue, when there is one; VIP_TIMEOUT: not in time, or
/// `ends` is set.
VIP_RETURN wait_for(Vi& vi, WorkQueue Vi::*member, std::uint64_t deadline_ns,
                    const std::atomic<bool>* ends, VIP_DESCRIPTOR** descriptor);

/// A VI that is held: makes progress, and tells errors once it is let go.
class Held {
 public:
  /// With `later` they are left there, for a caller that holds more.
  explicit Held(Vi& vi, Reports* later = nullptr) : vi_(vi), later_(later) { vi_.mutex.lock(); }
  ~Held() { vi_.reports.empty() ? vi_.mutex.unlock() : let_go_and_tell(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  void let_go_and_tell();
  Vi& vi_;
  Reports* const later_;
};

/// Ends a use (Vi::users) of a VI that is not held; the last one of a destroyed VI deletes it.
void leave(Vi& vi);

}  // namespace clan::via
