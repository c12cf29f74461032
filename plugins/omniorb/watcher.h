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
  using Tell = omni::giopConnection::notifyReadable_t;

  static Result<std::shared_ptr<Watcher>> create(Context& context);
  Watcher(EventQueue queue, std::uint32_t poke);

  /// Waits until something has happened and tells the ORB of connections that can be read. False:
  /// never again.
  bool wait(Tell tell, void* cookie);
  /// Makes wait() return. Any thread.
  void poke() { queue_.post_user(poke_); }

  /// Connections that wait in `listener` make wait() return.
  Status add(Listener& listener) { return listener.register_with(queue_, kPoke); }
  /// Its number, 0 if there is no room for its event.
  std::uint64_t add(const std::shared_ptr<Channel>& channel);
  void remove(std::uint64_t id);
  /// To be checked at the next ticks.
  void list(const std::shared_ptr<Channel>& channel);
  /// The ORB itself has bytes of this one: tell it, from the waiting thread.
  void tell_soon(std::uint64_t id) { put(&buffered_, id); }
  /// As if an event had come for this one.
  void look_again(std::uint64_t id) { put(&again_, id); }

 private:
  static constexpr std::uint64_t kPoke = 0;
  std::shared_ptr<Channel> find(std::uint64_t id);
  void event(std::uint64_t id, Tell tell, void* cookie);
  void put(std::vector<std::uint64_t>* list, std::uint64_t id);
  void tick();
  void tell_listed(Tell tell, void* cookie);

  EventQueue queue_;
  std::uint32_t poke_;
  std::mutex mutex_;  ///< the tables; not held during calls into the ORB
  std::uint64_t last_id_ = kPoke;
  std::unordered_map<std::uint64_t, std::shared_ptr<Channel>> channels_;
  std::vector<std::shared_ptr<Channel>> listed_;
  std::vector<std::uint64_t> buffered_, again_;
  std::atomic<bool> any_put_{false};
  std::atomic<bool> ticking_{false};
  int idle_ticks_ = 0;
  std::uint64_t next_tick_ns_ = 0;
};

}  // namespace clan::orb
