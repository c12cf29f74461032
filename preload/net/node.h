// Node: the carrier of this process. It has one Context, with its driver thread, and two threads:
// one that serves all connections, and one that looks for the other ends of those that have just
// connected.
//
// Packets are fetched by the program's threads as long as one waits and looks (look()), as the wait
// policy has it (clan/face/wait.h): so a packet is with the program without a switch of threads.
// The thread that serves keeps out meanwhile, and looks each millisecond whether one still does. It
// does so, too, while one thread of the program sleeps on the sockets itself (begin_sleep()); where
// several sleep, it sleeps on the network in their place (poller_election.h).
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
#include <unordered_set>

#include "net/connection.h"
#include "net/poller_election.h"
#include "state/remote.h"

namespace clan::preload {

class Node {
 public:
  static Result<Node*> start(const ContextOptions& options, const CarrierCalls& calls);

  /// Null: no memory, or no room for its events.
  RemoteConnection* dial(const Route& names, void* socket);
  RemoteConnection* await(const Route& names, void* socket);
  CarrierStage stage(RemoteConnection& carried);
  void release(RemoteConnection& carried);
  /// A thread of the program waits: takes what has come, for all. True: something has.
  bool look();
  /// A thread of the program has sent or received: the same, if nobody has for a moment.
  void look_now_and_then();
  /// It goes to sleep, and has slept: as in the table of calls.
  bool begin_sleep(pid_t thread, bool may_fetch, PacketFds* watched);
  bool end_sleep(pid_t thread, bool fetches);
  void finish(std::uint32_t ms);
  /// The child of fork() has its own copy of this memory, and no lock in it may be held.
  void lock();
  void unlock();

 private:
  Node(Context&& context, EventQueue&& queue, const CarrierCalls& calls);
  Status run();
  RemoteConnection* add(const Route& names, bool client, void* socket);
  std::shared_ptr<RemoteConnection> find(std::uint64_t tag);
  void serve_all();
  bool arm(bool naps, PacketFds* watched);
  void wake_if_wanted();
  bool fetch(), take_events();
  bool keeps_out();
  void nap();
  void serve_called();
  void call(std::uint64_t tag);
  void serve(std::uint64_t tag);
  void serve_due();
  std::int64_t time_left_ms() const;
  void dial_all();
  void dial_one(RemoteConnection& carried);

  std::optional<Context> context_;
  EventQueue queue_;
  const CarrierCalls calls_;
  std::mutex mutex_;  ///< of what follows
  std::unordered_map<std::uint64_t, std::shared_ptr<RemoteConnection>> all_;
  std::uint64_t last_tag_ = 0;
  std::deque<std::shared_ptr<RemoteConnection>> to_dial_;
  std::condition_variable dials_;
  bool dials_now_ = false;
  /// The serving thread's: when to check connections without an event.
  std::unordered_map<std::uint64_t, std::uint64_t> due_;
  std::atomic<bool> ends_{false};
  /// For threads of the program that look: when one did last, 0 when one has gone to sleep since;
  /// how often.
  std::atomic<std::uint64_t> looked_ns_{0};
  std::atomic<std::uint32_t> looks_{0};
  /// When one has looked that has sent or received, 0 when one has gone to sleep since.
  std::atomic<std::uint64_t> worked_ns_{0};
  std::uint32_t looks_seen_ = 0;  ///< of the thread that serves, at the begin of its last nap
  bool has_napped_ = false;       ///< the same
  // Under the mutex.
  PollerElection election_;
  bool naps_ = false, is_left_ = false;
  std::condition_variable wakes_;
  std::unordered_set<std::uint64_t> called_;  ///< to be served by that thread, others found them
  std::uint32_t called_event_ = 0;            ///< of the queue, which wakes it
};

}  // namespace clan::preload
