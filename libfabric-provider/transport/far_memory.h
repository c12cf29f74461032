// The memory of peers on other hosts: accesses by RDMA, which the peer's driver thread carries out,
// whether or not its program makes progress.
//
// Accesses to one peer go through one queue: their bytes are placed, and they end, in the order
// begun. Several are under way at a time. What is no RDMA would overtake them, so each holds up
// messages to that peer until it has ended (Peer::barriers), and a write waits for reads.
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

#include "transport/peer.h"

namespace clan::ofi {

class Domain;
class RemoteMemory;

/// One piece of an access: memory of ours, and as much behind an address of the peer's.
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
  bool any() const { return under_way_ > 0; }

  /// Calls ended(peer, copies) for each access that has ended. True when there was one.
  template <typename Ended>
  bool look_after(Ended&& ended) {
    bool moved = false;
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
  /// touched any more.
  template <typename Ended>
  void cancel_abandoned(Ended&& ended) {
    for (auto& queue : queues_) {
      if (!queue || !any_abandoned(*queue)) continue;
      auto accesses = std::move(queue->accesses);
      queue.reset();
      for (auto& [peer, copies] : accesses) {
        copies.err = ECANCELED;
        end(*peer, copies, ended);
      }
    }
  }

 private:
  static constexpr std::size_t kQueues = 16;     ///< peers share them
  static constexpr std::uint32_t kDepth = 1024;  ///< requests in one
  struct Access {
    Peer* peer;
    SlowCopies copies;
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
    auto [peer, copies] = std::move(queue.accesses.front());
    queue.accesses.pop_front();
    end(*peer, copies, ended);
  }
  template <typename Ended>
  void end(Peer& peer, const SlowCopies& copies, Ended& ended) {
    --under_way_;
    --(copies.write ? peer.far_writes : peer.far_reads);
    ended(peer, copies);
  }
  static bool any_abandoned(const Queue& queue);
  template <typename Use>
  int visit(Peer& peer, const FarPiece& piece, Use&& use);
  Result<Queue*> queue_of(const Peer& peer);

  Domain& domain_;
  RemoteMemory& memory_;
  EventQueue* events_ = nullptr;
  std::array<std::optional<Queue>, kQueues> queues_;
  std::size_t under_way_ = 0;
};

}  // namespace clan::ofi
