// Waits for the thread, perhaps of another process of the end, that keeps a counter of calls
// (OpenFileState) closed. A counter closed by a dead thread counts as open.
#pragma once

#include <cstdint>

#include "os/signals.h"
#include "table/open_file.h"

namespace clan::preload {

/// Waits a moment for `counter` to open; `turn` counts these moments from 0. False: a thread sends
/// again what the peer did not read, which may take long.
bool await_gate(OpenFileState::Counter& counter, std::uint32_t turn);

/// Waits until every thread that moves the socket has seen what the caller announced in
/// OpenFileState::held. `counter`: one that such a thread closes.
void await_mover(OpenFileState::Counter& counter);

/// Closes a counter while it lives: a lock of all processes of the end. After the move no counted
/// call is in the kernel: it steps back, or was killed.
class ClosedGate {
 public:
  explicit ClosedGate(OpenFileState::Counter& counter);
  ~ClosedGate() { OpenFileState::open(counter_, me_); }
  ClosedGate(const ClosedGate&) = delete;
  ClosedGate& operator=(const ClosedGate&) = delete;

 private:
  const DeferSignals undisturbed_;
  const std::int32_t me_ = closer_id();
  OpenFileState::Counter& counter_;
};

}  // namespace clan::preload
