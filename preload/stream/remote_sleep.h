// Sleeps in the kernel for connections to other hosts (state/remote.h): the thread fetches packets
// where it is the only one that sleeps so, and else leaves that to the component's thread.
#pragma once

#include <poll.h>

#include "state/remote.h"

namespace clan::preload {

/// Around a sleep in the kernel.
///
///   PacketSleep packets(...);                  takes what has come
///   has_come()? look again                     it has not begun
///   asks to be rung, looks
///   poll({own descriptors, watch()})
///   ready()? asks to be rung no more, fetch()  what has come needs no ring
class PacketSleep {
 public:
  static constexpr nfds_t kMost = PacketFds::kMost;
  enum class May { kFetch, kNotFetch };

  /// `remote`: the thread waits for such a connection; else all of this is nothing.
  PacketSleep(bool remote, May may);
  ~PacketSleep();
  PacketSleep(const PacketSleep&) = delete;
  PacketSleep& operator=(const PacketSleep&) = delete;
  bool has_come() const { return has_come_; }
  /// The thread is to sleep on more than its own.
  bool watches() const { return watched_.count > 0; }
  /// Puts these to `at`, and returns their number.
  nfds_t watch(pollfd* at) const;
  /// Whether one of `at` is ready, as the kernel has answered it.
  bool ready(const pollfd* at) const;
  /// Ends the sleep. True: something has come for a connection, perhaps not this one.
  bool fetch();

 private:
  bool begun_ = false, has_come_ = false;
  PacketFds watched_;
};

}  // namespace clan::preload
