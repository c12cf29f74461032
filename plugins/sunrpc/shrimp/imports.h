// The memory of clients that want to be bound, mapped in threads of its own: a client that has
// stopped is asked for ten seconds, and the server goes on with the others.
//
// Thread-safety: one thread, the server's.
#pragma once

#include <clan/aperture.h>
#include <clan/message.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace clan::shrimp {

class Imports {
 public:
  struct Done {
    PeerIndex peer;
    Result<RemoteAperture> memory;
  };

  void begin(PeerIndex peer, const RdmaCookie& memory);
  /// Nobody waits for it any more.
  void forget(PeerIndex peer);
  bool has(PeerIndex peer) const;
  bool idle() const { return asked_.empty(); }
  /// Costs one load.
  bool any_done() const {
    return shared_->done_count.load(std::memory_order_relaxed) > 0;
  }  // relaxed: take() looks
  /// The next that is done, well or not.
  std::optional<Done> take();

 private:
  struct Asked {
    PeerIndex peer;
    RdmaCookie memory;
    bool started;
  };
  /// Threads have it as well, which may outlive the server.
  struct Shared {
    std::mutex mutex;
    std::deque<Done> done;
    std::atomic<std::size_t> done_count{0};
    std::size_t running = 0;
  };
  static void import(const std::shared_ptr<Shared>& shared, PeerIndex peer,
                     const RdmaCookie& memory);
  void start();

  std::vector<Asked> asked_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace clan::shrimp
