// Threads of this process that sleep in the kernel on a socket that has moved.
#pragma once

#include <cstring>

#include "kernel/sock_diag.h"
#include "state/socket.h"

namespace clan::preload {

/// A thread that is about to sleep in the kernel until there are bytes or room. To be made before
/// the calls that ask to be rung; when it goes, the thread wants no doorbells any more. A thread
/// that has one does not poll_tcp_socket(), which would take it for another.
class Sleeper {
 public:
  explicit Sleeper(Socket& s, bool for_data, bool for_room)
      : s_(s), data_(for_data), room_(for_room) {
    // order: before the calls that ask to be rung; others check it before they drop a doorbell
    if (data_) s_.data_sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (room_) s_.room_sleepers.fetch_add(1, std::memory_order_seq_cst);
  }
  ~Sleeper() {
    if (data_) s_.pipe.unwant_data(), s_.data_sleepers.fetch_sub(1, std::memory_order_seq_cst);
    // order: after the wish for a doorbell was taken back
    if (room_) s_.room_sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  Socket& s_;
  bool data_, room_;
};

}  // namespace clan::preload
