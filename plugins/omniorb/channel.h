// Channel: one connection's stream, the watch on it, and which thread may touch it when.
//
// The ORB reads and writes from its own threads; while nobody reads, it may ask for the connection
// to be watched (setSelectable), which the Watcher of the endpoint does for all of them by one
// event queue.
//
//     idle ──set_selectable(0)──> wanted ──a tick later, or (1), (2)──> armed ──event──> idle: told
//       ^──────────────────────── clear() ────────────────────────────────┘
//
// `wanted` is a flag: in a call of a few microseconds nothing else happens. Armed, the client's
// next bytes post an event. Switching events on costs a system call, so the Watcher does it for
// calls that are still running when it looks, and they stay on for as long as they are of use.
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

namespace clan::orb {

class Watcher;

class Channel : public std::enable_shared_from_this<Channel> {
 public:
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
  enum State : std::uint32_t { kIdle, kWanted, kArming, kArmed };

  bool inherited() const { return generation_ != Node::generation(); }
  void arm(std::uint32_t from);
  bool take_event();
  bool take_buffered();
  bool take_buffered_event();
  void take_receiver();
  void leave_receiver() { receiving_ = false; }
  bool readable();

  const std::uint32_t generation_ = Node::generation();
  std::shared_ptr<Node> node_;
  Stream stream_;
  PeerInfo peer_;
  TrafficEntry traffic_;

  Waiter peek_waiter_;
  std::atomic<bool> shut_{false};
  std::atomic<bool> receiving_{false};  ///< a thread is in receive() or peek()
  std::atomic<bool> wants_receiver_{false};

  // The watch.
  std::shared_ptr<Watcher> watcher_;
  std::uint64_t id_ = 0;  ///< with the watcher
  omni::giopConnection* connection_ = nullptr;
  std::mutex arming_;  ///< held while events are switched on or off, and while in_buffer_ is taken
  bool events_on_ = false;
  std::atomic<std::uint32_t> state_{kIdle};
  std::atomic<std::uint32_t> turn_{0};  ///< counts set_selectable(0)
  std::atomic<bool> listed_{false};     ///< the watcher checks it at its next tick
  std::atomic<bool> telling_{false};    ///< the watcher is telling the ORB
  std::atomic<bool> in_buffer_{false};  ///< the ORB holds bytes already
  std::uint32_t seen_turn_ = 0;         ///< the watcher's, at its last tick
};

}  // namespace clan::orb
