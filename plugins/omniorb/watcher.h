// Watcher: one event queue for any number of connections and listeners, and the thread of the ORB
// that waits for it: an endpoint's (AcceptAndMonitor) or the active collection's (Monitor).
//
// Connections whose calls run long enough to be watched are armed at a tick (see Channel); ticks
// come every millisecond while there are calls, and not at all when there are none.
//
// Thread-safety: one thread in wait(), the rest from any thread.
#pragma once

#include <clan/event_queue.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "channel.h"

namespace clan::orb {

class Watcher {
 public:
  static Result<std::shared_ptr<Watcher>> create(Context& context);
  Watcher(EventQueue queue, std::uint32_t poke);

  /// Waits until something has happened and tells the ORB of connections that can be read. False:
  /// never again.
  bool wait(Channel::Tell tell, void* cookie);
  /// Makes wait() return. Any thread.
  void poke() { queue_.post_user(poke_); }

  /// Connections that wait in `listener` make wait() return.
  Status add(Listener& listener) { return listener.register_with(queue_, kPoke); }
  /// Its number, 0 if there is no room for its event.
  std::uint64_t add(const std::shared_ptr<Channel>& channel);
  void remove(std::uint64_t id);
  /// To be checked at the next ticks.
  void list(const std::shared_ptr<Channel>& channel);
  /// The waiting thread checks this one, as if an event had come.
  void look_at(std::uint64_t id);

 private:
  static constexpr std::uint64_t kPoke = 0;
  std::shared_ptr<Channel> find(std::uint64_t id);
  void tick();

  EventQueue queue_;
  std::uint32_t poke_;
  std::mutex mutex_;  ///< the tables; not held during calls into the ORB
  std::uint64_t last_id_ = kPoke;
  std::unordered_map<std::uint64_t, std::shared_ptr<Channel>> channels_;
  std::vector<std::shared_ptr<Channel>> listed_;
  std::vector<std::uint64_t> to_look_at_;
  std::atomic<bool> any_to_look_at_{false};
  std::atomic<bool> ticking_{false};
  int idle_ticks_ = 0;
  std::uint64_t next_tick_ns_ = 0;
};

/// The connections of clients that carry calls in both directions: a thread of the ORB watches
/// them. Any thread; Monitor() is called by one at a time.
class ActiveCollection final : public omni::giopActiveCollection {
 public:
  ActiveCollection() { last_ = this; }
  const char* type() const override { return "giop:clan"; }
  void Monitor(Channel::Tell tell, void* cookie) override;
  _CORBA_Boolean isEmpty() const override;
  void deactivate() override;

  /// A connection is to be watched. False: it cannot be.
  bool add(Context& context, Channel& channel, omni::giopConnection* connection);
  void remove();
  /// Nothing is watched any more: lets go of the engine.
  void end();

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Watcher> watcher_;  ///< made for the first one
  int count_ = 0;
  bool stopped_ = false;
  static inline std::atomic<ActiveCollection*> last_{nullptr};
  ActiveCollection* const before_ = last_;  ///< they are kept; a search for lost memory finds them
};

}  // namespace clan::orb
