// AnswerSink: hears that what it has asked for has been answered.
#pragma once

namespace clan::engine {

/// Called when something that it has asked for is answered. Called by any thread, which holds none
/// of the engine's locks.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  virtual void on_answer() = 0;
};

}  // namespace clan::engine
