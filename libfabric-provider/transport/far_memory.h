// The memory of peers on other hosts: accesses by RDMA, which the peer's driver thread carries out,
// whether or not its program makes progress.
//
// Accesses to one peer go through one queue: their bytes are placed, and they end, in the order
// begun. Several are under way at a time. What is no RDMA would overtake them, so each holds up
// messages to that peer until it has ended (Peer::barriers), and a write waits for reads. Long
// messages go the same way, to where their receivers have said, and hold up nothing.
// Everything is under the domain's lock, and nothing waits but for the first access to a key.
#pragma once

#include <clan/event_queue.h>
#include <clan/rdma.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "transport/far_message.h"
#include "transport/peer.h"

namespace clan::ofi {

class Domain;
class RemoteMemory;

/// One piece of an access: our memory, and as much behind an address of the peer's.
struct FarPiece {
  std::byte* local = nullptr;
  std::size_t length = 0;
  std::uint64_t key = 0, address = 0;
};

class FarMemory {
 public:
  FarMemory(Domain& domain, RemoteMemory& memory) : domain_(domain), memory_(memory) {}

  /// Queues tell here when accesses have ended. Once, before or after accesses.
  int register_with(EventQueue& events);
  /// Begins an access; `copies` is what to remember of it, whose operation waits for its end. 0;
  /// else nothing has been begun: -FI_EAGAIN, or why it cannot be.
  int begin(Peer& peer, std::span<const FarPiece> pieces, SlowCopies copies);
  /// Begins a message, as soon as there is room in the peer's queue. `copies` as with begin(), its
  /// `receive` is not 0.
  void begin_message(Peer& peer, FarMessage message, SlowCopies copies);
  bool any() const { return under_way_ > 0; }

  /// Calls ended(peer, copies) for each access that has ended. True when there was one.
  template <typename Ended>
  bool look_after(Ended&& ended) {
    bool moved = false;
    start_messages();
    for (; !unsent_.empty(); moved = true) {
      const Access access = std::move(unsent_.front());
      unsent_.pop_front();
      end(*access.peer, access.copies, ended);
    }
    for (auto& queue : queues_) {
      if (!queue || queue->accesses.empty()) continue;
      RdmaCompletion done[16];
      for (std::size_t n = std::size(done); n == std::size(done);) {
        n = queue->rdma.poll(done);
        for (const RdmaCompletion& completion : std::span(done).first(n))
          note(*queue, completion.status, ended);
        moved = moved || n > 0;
      }
    }
    return moved;
  }
  /// Ends, as ECANCELED, what shares a queue with an access whose owner has gone: its memory is not
  /// touched any more. Messages of others begin anew.
  template <typename Ended>
  void cancel_abandoned(Ended&& ended) {
    std::deque<Access> cancelled = std::move(messages_);
    messages_.clear();
    for (auto& queue : queues_) {
      if (!queue || !any_abandoned(*queue)) continue;
      for (Access& access : queue->accesses) cancelled.push_back(std::move(access));
      queue.reset();
    }
    for (Access& access : cancelled) {
      if (access.copies.receive != 0 && !is_abandoned(access)) {
        access.copies.left = 0;
        messages_.push_back(std::move(access));
        continue;
      }
      access.copies.err = ECANCELED;
      end(*access.peer, access.copies, ended);
    }
  }

 private:
  static constexpr std::size_t kQueues = 16;     ///< peers share them
  static constexpr std::uint32_t kDepth = 1024;  ///< requests in one
  struct Access {
    Peer* peer;
    SlowCopies copies;
    FarMessage message{};
  };
  struct Queue {
    RdmaQueue rdma;
    std::deque<Access> accesses{};  ///< in the order begun, and so in which they end
    std::size_t requests = 0;
  };

  /// A request of the access in front has ended.
  template <typename Ended>
  void note(Queue& queue, int status, Ended& ended) {
    --queue.requests;
    SlowCopies& front = queue.accesses.front().copies;
    if (front.err == 0) front.err = status;
    if (--front.left > 0) return;
    const Access access = std::move(queue.accesses.front());
    queue.accesses.pop_front();
    end(*access.peer, access.copies, ended);
  }
  template <typename Ended>
  void end(Peer& peer, const SlowCopies& copies, Ended& ended) {
    --under_way_;
    if (copies.receive == 0) --(copies.write ? peer.far_writes : peer.far_reads);
    ended(peer, copies);
  }
  void start_messages();
  static void post_message(Queue& queue, Access access, std::deque<Access>& unsent);
  static bool is_abandoned(const Access& access);
  static bool any_abandoned(const Queue& queue);
  template <typename Use>
  int visit(Peer& peer, const FarPiece& piece, Use&& use);
  Result<Queue*> queue_of(const Peer& peer);

  Domain& domain_;
  RemoteMemory& memory_;
  EventQueue* events_ = nullptr;
  std::array<std::optional<Queue>, kQueues> queues_;
  std::deque<Access> messages_;  ///< wait for room in their queues
  std::deque<Access> unsent_;    ///< messages of which nothing could be posted
  std::size_t under_way_ = 0;
};

}  // namespace clan::ofi
