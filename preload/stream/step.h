// What a step of a call on a stream says: go on to the next step, begin again with the first, or
// the call's answer.
#pragma once

#include <sys/types.h>

namespace clan::preload {

class StepResult {
 public:
  static StepResult next() { return StepResult(kNext); }
  static StepResult again() { return StepResult(kAgain); }
  /// The call is over: bytes, or -1 with errno.
  static StepResult over(ssize_t answer) { return StepResult(answer); }
  bool goes_on() const { return value_ == kNext; }
  bool is_answer() const { return value_ >= -1; }
  ssize_t answer() const { return value_; }

 private:
  static constexpr ssize_t kNext = -2, kAgain = -3;
  explicit StepResult(ssize_t value) : value_(value) {}
  ssize_t value_;
};

}  // namespace clan::preload
