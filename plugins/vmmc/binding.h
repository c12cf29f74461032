// Automatic update: a binding of local memory to a stretch of a remote, in one of three modes, and
// the thread that flushes mirrors at intervals.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "alias.h"
#include "mirror.h"
#include "objects.h"

struct vmmc_binding : clan::vmmc::Object {
  vmmc_remote_t* remote = nullptr;
  vmmc_buffer_t* landing = nullptr;  ///< where the peer sends to; null: one way
  vmmc_mode_t mode = VMMC_STORE;
  std::uint64_t offset = 0;
  std::byte* address = nullptr;
  std::size_t bytes = 0;
  std::optional<clan::Memory> own;  ///< memory that the library gave, not for ALIAS
  std::unique_ptr<clan::vmmc::Alias> alias;
  std::unique_ptr<clan::vmmc::Mirror> mirror;
  unsigned interval_ms = 0;
  std::uint64_t due_ns = 0;  ///< under the Flusher's mutex
};

namespace clan::vmmc {

/// Flushes mirrors at their intervals. Its thread is made with the first of them.
class Flusher {
 public:
  Flusher();
  ~Flusher();
  void add(vmmc_binding& binding);
  /// Ends the flushes of a binding. When it returns, none is under way.
  void remove(vmmc_binding& binding);

 private:
  void run();
  std::mutex mutex_;  ///< held during a flush
  std::condition_variable changed_;
  std::vector<vmmc_binding*> bindings_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace clan::vmmc
