// Operations that wait for a counter: FI_TRIGGER and deferred work queues. What is to be done is
// kept as a function, which runs under the domain's lock when the counter has come to its threshold
// and somebody makes progress. Then the counter wakes those that sleep (Domain::start_soon()), and
// they look again as long as something due cannot be started.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "system/atomic_types.h"
#include "system/provider.h"
#include "wire/matching.h"

namespace clan::ofi {

class Counter;
class Domain;
class Endpoint;

struct Deferred {
  Counter* trigger = nullptr;
  std::uint64_t threshold = 0;
  Endpoint* endpoint = nullptr;  ///< null: it is a counter's
  fi_addr_t peer = FI_ADDR_UNSPEC;
  const void* work = nullptr;  ///< the fi_deferred_work, by which it can be cancelled
  /// -FI_EAGAIN: once more later.
  std::function<ssize_t()> start;
  Counter* changes = nullptr;  ///< the counter that it adds to or sets
  // What gets the error when it cannot be started.
  Counter* counter = nullptr;
  void* context = nullptr;
  std::uint64_t flags = 0;  ///< of the completion
  bool due() const;
  /// Whether the two are for the same peer, and so begin in their order.
  bool goes_with(const Deferred& other) const {
    return endpoint != nullptr && endpoint == other.endpoint && peer == other.peer;
  }
  bool uses(const Counter& which) const {
    return trigger == &which || changes == &which || counter == &which;
  }
};

/// What a call with FI_TRIGGER names in its context. False: nothing that we know.
bool trigger_of(void* context, Deferred* deferred);

/// What an operation that begins later keeps of its caller's: the pieces (iovec, or fi_ioc of
/// values of `size` bytes), and with FI_INJECT their bytes, which are the caller's again when its
/// call returns.
template <typename Piece>
class Kept {
 public:
  Kept(const Piece* pieces, std::size_t count, bool with_bytes, std::size_t size = 1)
      : pieces_(pieces, pieces + count), size_(size) {
    if (!with_bytes) return;
    for (const auto& [at, n] : pieces_) {
      const auto* const bytes = static_cast<const std::byte*>(at);
      bytes_.insert(bytes_.end(), bytes, bytes + n * size);
    }
    if (!bytes_.empty()) pieces_.resize(1);
  }
  /// They lie in this object, wherever it has been moved to.
  std::span<const Piece> get() {
    if (!bytes_.empty()) pieces_.front() = {bytes_.data(), bytes_.size() / size_};
    return pieces_;
  }

 private:
  std::vector<Piece> pieces_;
  std::size_t size_;
  std::vector<std::byte> bytes_;
};

/// FI_QUEUE_WORK. Not under the lock.
int queue_work(Domain& domain, const fi_deferred_work& work);

// Operations as deferred work starts them: `counter` (may be null) counts their completion, the
// queue gets it only with FI_COMPLETION. Under the lock.
ssize_t start_send(Endpoint& endpoint, ReceiveQueue::Kind kind, const fi_msg_tagged& msg,
                   std::uint64_t flags, Counter* counter);
ssize_t start_receive(Endpoint& endpoint, ReceiveQueue::Kind kind, const fi_msg_tagged& msg,
                      std::uint64_t flags, Counter* counter);
ssize_t start_access(Endpoint& endpoint, bool write, const fi_msg_rma& msg, std::uint64_t flags,
                     Counter* counter);
ssize_t start_atomic(Endpoint& endpoint, AtomicKind kind, const fi_msg_atomic& msg,
                     const fi_msg_fetch* fetch, const fi_msg_compare* compare, std::uint64_t flags,
                     Counter* counter);

}  // namespace clan::ofi
