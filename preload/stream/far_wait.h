// Waiting for connections that are carried to another host (far/): a thread that spins fetches
// packets; one that sleeps does, too, where it is the only one, and else leaves that to the
// carrier's thread.
#pragma once

#include <poll.h>

#include "clan/wait.h"
#include "state/socket.h"

namespace clan::preload {

// relaxed: written before the pipe is known
inline bool is_carried(const Socket& s) { return s.far.load(std::memory_order_relaxed) != nullptr; }

/// Between two looks at a pipe. True: something has come for a connection, perhaps not this one.
bool fetch_packets();
inline bool fetch_for(const Socket& s) { return is_carried(s) && fetch_packets(); }

/// Around a sleep in the kernel.
///
///   PacketSleep packets(...);                  takes what has come
///   has_come()? look again                     it has not begun
///   asks to be rung, looks
///   poll({own descriptors, watch()})
///   ready()? asks to be rung no more, fetch()  what has come needs no doorbell
class PacketSleep {
 public:
  static constexpr nfds_t kMost = 2;
  enum class May { kFetch, kNotFetch };

  /// `carried`: the thread waits for such a connection; else all of this is nothing.
  PacketSleep(bool carried, May may);
  ~PacketSleep();
  PacketSleep(const PacketSleep&) = delete;
  PacketSleep& operator=(const PacketSleep&) = delete;
  bool has_come() const { return has_come_; }
  /// The thread is to sleep on more than its own.
  bool watches() const { return count_ > 0; }
  /// On these; their number.
  nfds_t watch(pollfd* at) const;
  /// Of `at` as the kernel has answered it.
  bool ready(const pollfd* at) const;
  /// The end. True: something has come for a connection, perhaps not this one.
  bool fetch();

 private:
  bool begun_ = false, has_come_ = false;
  nfds_t count_ = 0;
  int fds_[kMost] = {};
};

/// Of the other end: what is known of a process of this host. The carrier, which writes in its
/// place, may have been this very thread.
inline Awaited awaited_of(const Socket& s) {
  if (is_carried(s)) return {};
  return {s.pipe.peer_cpu(), s.rang.load(std::memory_order_relaxed)};
}

}  // namespace clan::preload
