// Bulk: the process's RDMA queues, which VIs share, and the thread that attends to transfers whose
// end no call of the program waits for: it writes the transfer queue's record behind the data
// (via-over-clan 3.3.3), and sends what had to wait for a buffer or for room.
//
// On one host nearly every transfer is over when VipPostSend() returns, and the thread, which is
// made when first needed, sleeps.
#pragma once

#include <clan/event_queue.h>
#include <clan/rdma.h>

#include <array>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace clan::via {

class Vi;

/// A part of a transfer, between memory of this process and memory of the peer.
struct Move {
  RdmaOp op = RdmaOp::kWrite;
  const RemoteAperture* remote = nullptr;
  std::uint64_t offset = 0;
  std::byte* local = nullptr;
  std::uint64_t bytes = 0;
};

/// Thread-safe; a VI calls it with its lock held.
class Bulk {
 public:
  explicit Bulk(Context& context) : context_(context) {}

  /// Posts them as one group. EAGAIN: others first. Completions come in the order of posting.
  Status post(Vi& vi, std::span<const Move> moves);
  /// The errno of each request of the VI that has completed since.
  void take(Vi& vi, std::vector<int>* statuses);

  /// The VI has something under way that must go on by itself; with `waits` it waits for what its
  /// stream brings, too.
  void need(Vi& vi, bool waits);
  void release(Vi& vi);
  /// The VI goes, and nothing of it is under way. Waits until the thread has called the error
  /// handlers of its errors; a handler may call it, too.
  void remove(Vi& vi);

 private:
  static constexpr std::uint32_t kQueues = 16, kDepth = 1024;
  struct Queue {
    std::mutex mutex;
    std::optional<RdmaQueue> rdma;
    std::deque<Vi*> order;  ///< whose the outstanding requests are
    bool watched = false;   ///< its completions are events
  };

  Queue& queue_of(const Vi& vi);
  void poll(Queue& queue);
  bool start();
  void run();
  void serve();

  Context& context_;
  std::array<Queue, kQueues> queues_;
  std::mutex mutex_;  ///< what is below; taken before none
  std::condition_variable work_;
  std::optional<EventQueue> events_;
  bool started_ = false;
  std::vector<Vi*> needy_;
  /// Taken before a VI's: none goes while the thread is at it, or calls handlers of its errors.
  std::recursive_mutex serving_;
};

}  // namespace clan::via
