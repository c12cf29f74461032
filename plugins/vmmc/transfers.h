// Transfers by RDMA: asynchronous ones, and long ones of vmmc_send(). All of a VMMC go through one
// queue; one thread at a time takes completions, for whichever thread waits for them.
#pragma once

#include <clan/rdma.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

struct vmmc_remote;

namespace clan::vmmc {

/// The part of a remote's memory that a send writes.
struct Stretch {
  std::uint64_t offset = 0, bytes = 0;
};

/// Thread-safe.
class Transfers {
 public:
  explicit Transfers(Context& context) : context_(context) {}

  /// Starts a send. EAGAIN: the queue is full.
  Status post(vmmc_remote& remote, const Stretch& to, const void* source, bool notify,
              std::uint64_t* handle);
  /// Returns the result of a send, once, and ESRCH after that. EAGAIN: it is under way.
  Status test(std::uint64_t handle);
  /// Waits for the result. ETIMEDOUT.
  Status wait(std::uint64_t handle, std::uint64_t deadline_ns);
  /// Waits until no send to the remote is under way.
  Status drain(const vmmc_remote& remote);

 private:
  static constexpr std::uint32_t kDepth = 1024;
  struct Request {
    vmmc_remote* remote = nullptr;  ///< null: it has ended, with `status`
    Stretch to;
    bool notify = false;
    int status = 0;
  };

  void finish(const RdmaCompletion& completion);
  void take();
  template <typename Done>
  Status wait_until(std::unique_lock<std::mutex>& lock, Done done, std::uint64_t deadline_ns);
  std::optional<int> take_result(std::uint64_t handle);

  Context& context_;
  std::mutex mutex_;  ///< all below, but for completions while `taking_`
  std::condition_variable taken_;
  std::optional<RdmaQueue> queue_;
  bool taking_ = false;  ///< a thread waits for completions
  std::uint64_t last_ = 0;
  std::unordered_map<std::uint64_t, Request> requests_;
};

}  // namespace clan::vmmc
