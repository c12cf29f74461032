// Channel: one connection's stream, the watch on it, and which thread may touch it when.
//
// The ORB reads and writes from its own threads; while nobody reads, it may ask for the connection
// to be watched (setSelectable), which the Watcher of the endpoint does for all of them by one
// event queue. watch.h has the states.
//
// Switching events on costs a system call, so the Watcher does it at a tick, for calls that are
// still running then, and they stay on for as long as they are of use.
//
// Thread-safety: as giopConnection asks: one thread sends, one receives; shut_down() from any
// thread.
#pragma once

#include <clan/face/wait.h>
#include <clan/stream.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "node.h"
#include "omni.h"
#include "traffic.h"
#include "watch.h"

namespace clan::orb {

class Watcher;

/// Milliseconds until `deadline`, a time of the wall clock: -1 if there is none, 0 if it is over.
std::int64_t milliseconds_left(const omni_time_t& deadline);

class Channel : public std::enable_shared_from_this<Channel> {
 public:
  using Tell = omni::giopConnection::notifyReadable_t;

  Channel(std::shared_ptr<Node> node, Stream stream, bool client);
  ~Channel();

  // As giopConnection: bytes, 0 when the time is over, -1.
  int send(const void* bytes, std::size_t size, const omni_time_t& deadline);
  int receive(void* buffer, std::size_t size, const omni_time_t& deadline);
  void shut_down();
  const PeerInfo& peer() const { return peer_; }

  /// From now on `watcher` watches it for `connection`. False: there is no room for one more.
  bool watch_by(std::shared_ptr<Watcher> watcher, omni::giopConnection* connection);
  /// The connection ends.
  void unwatch();
  bool watched() const { return watcher_ != nullptr; }

  void set_selectable(int now, bool data_in_buffer);
  void clear();
  /// As giopConnection::Peek().
  bool peek();

 private:
  friend class Watcher;

  bool inherited() const { return generation_ != Node::generation(); }
  template <typename Some>
  int move(const omni_time_t& deadline, const Some& some) const;
  void end_watch(const WatchChange& change);
  // The watcher's.
  void arm();
  bool look(Tell tell, void* cookie);
  void on_event(Tell tell, void* cookie);

  const std::uint32_t generation_ = Node::generation();
  std::shared_ptr<Node> node_;
  Stream stream_;
  PeerInfo peer_;
  TrafficEntry traffic_;

  Waiter peek_waiter_;
  std::atomic<bool> shut_{false};
  Reader<> reader_;

  // The watch.
  Watch<> watch_;
  std::shared_ptr<Watcher> watcher_;
  std::uint64_t id_ = 0;  ///< with the watcher
  omni::giopConnection* connection_ = nullptr;
  std::mutex events_;  ///< held while the watch uses the stream, which it does only when armed
  bool events_on_ = false;
};

}  // namespace clan::orb
