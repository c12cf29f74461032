// Where threads are cancelled (pthread_cancel), and where not: nowhere within the engine, nor
// between what has been read from a socket and its being noted.
#pragma once

#include <pthread.h>

namespace clan::rpc {

/// Where a thread that runs engine code may be cancelled.
class Cancellable {
 public:
  explicit Cancellable(int state) { (void)pthread_setcancelstate(state, nullptr); }
  Cancellable(const Cancellable&) = delete;
  Cancellable& operator=(const Cancellable&) = delete;
  ~Cancellable() { (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr); }
};

/// Where it may not. `state`: takes what it was before.
class Uncancelled {
 public:
  explicit Uncancelled(int* state) : state_(state) {
    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, state);
  }
  Uncancelled(const Uncancelled&) = delete;
  Uncancelled& operator=(const Uncancelled&) = delete;
  ~Uncancelled() { (void)pthread_setcancelstate(*state_, nullptr); }

 private:
  int* const state_;
};

}  // namespace clan::rpc
