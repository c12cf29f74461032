// Node: the carrier of this process. It has one Context, with its driver thread, and two threads:
// one that serves all connections, asleep while their programs take the bytes themselves, and one
// that looks for the other ends of those that have just connected.
//
// Nothing of it is used in a child of fork(), which makes a Node of its own.
#pragma once

#include <clan/context.h>
#include <clan/event_queue.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "carrier/connection.h"
#include "far/carrier_table.h"

namespace clan::preload {

class Node {
 public:
  static Result<Node*> start(const ContextOptions& options, const CarrierCalls& calls);

  /// Null: no memory, or no room for its events.
  Carried* dial(const CarrierNames& names, void* socket);
  Carried* await(const CarrierNames& names, void* socket);
  CarrierStage stage(Carried& carried);
  void release(Carried& carried);
  void finish(std::uint32_t ms);
  /// The child of fork() has its own copy of this memory, and no lock in it may be held.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  Node(Context&& context, EventQueue&& queue, const CarrierCalls& calls);
  Status run();
  Carried* add(const CarrierNames& names, bool client, void* socket);
  std::shared_ptr<Carried> find(std::uint64_t tag);
  void serve_all();
  void serve(std::uint64_t tag);
  void serve_due();
  std::int64_t time_left_ms() const;
  void dial_all();
  void dial_one(Carried& carried);

  std::optional<Context> context_;
  EventQueue queue_;
  const CarrierCalls calls_;
  std::mutex mutex_;  ///< of what follows
  std::unordered_map<std::uint64_t, std::shared_ptr<Carried>> all_;
  std::uint64_t last_tag_ = 0;
  std::deque<std::shared_ptr<Carried>> to_dial_;
  std::condition_variable dials_;
  bool dials_now_ = false;
  /// Of the thread that serves: when connections are to be looked at without an event.
  std::unordered_map<std::uint64_t, std::uint64_t> due_;
  std::atomic<bool> ends_{false};
};

}  // namespace clan::preload
