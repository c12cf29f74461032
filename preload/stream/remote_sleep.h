// Sleeps for remote connections (state/remote.h): a thread that alone sleeps so fetches packets;
// otherwise the component's thread does.
#pragma once

#include <poll.h>

#include "state/remote.h"

namespace clan::preload {

/// A sleep in the kernel:
///
///   PacketSleep packets(...);                       fetches what has come
///   has_come()? check again                         it has not begun
///   ask to be rung, check
///   poll({own descriptors, watch()})
///   ready()? ask to be rung no more, fetch()        what has come needs no ring
class PacketSleep {
 public:
  static constexpr nfds_t kMost = PacketFds::kMost;
  enum class May { kFetch, kNotFetch };

  /// `remote`: the thread waits for such a connection; otherwise nothing here has an effect.
  PacketSleep(bool remote, May may);
  ~PacketSleep();
  PacketSleep(const PacketSleep&) = delete;
  PacketSleep& operator=(const PacketSleep&) = delete;
  bool has_come() const { return has_come_; }
  /// Whether the thread has to watch packets too.
  bool watches() const { return watched_.count > 0; }
  /// Puts their descriptors at `at`, and returns their number.
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
