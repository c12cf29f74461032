// One thread does something, and another one reads it, with nothing between them but what the two
// of them do: ThreadSanitizer then sees whether that orders them. tests/model/orders runs such
// tests with the orders of the code weakened.
#pragma once

#include <atomic>
#include <thread>

#include "support/backoff.h"

namespace clan::test {

/// `first()` in one thread, then `second()` in another one, which has begun before.
template <typename First, typename Second>
void hand_over(First&& first, Second&& second) {
  std::atomic<bool> done{false};
  std::thread looks([&] {
    // relaxed, and so no help to what `second` is about
    for (Backoff backoff; !done.load(std::memory_order_relaxed);) backoff.wait();
    second();
  });
  std::thread does([&] {
    first();
    done.store(true, std::memory_order_relaxed);
  });
  looks.join();
  does.join();
}

}  // namespace clan::test
