// Client or server of a measurement: its loops, and how they are timed.
#pragma once

#include <array>
#include <cstddef>

#include "endpoint.h"
#include "transports/slices.h"

namespace clan::bench::ofi {

class Side : public Endpoint {
 public:
  Side(bool client, const Channel& channel, const std::array<int, 2>& eventfds)
      : Endpoint(channel), client_(client), eventfds_(eventfds) {}

  /// The server: follows the client's orders until their end.
  void serve();
  /// The client: microseconds per operation.
  Figure measure(Kind kind, std::size_t bytes, double ms);

 private:
  double run(Order order);
  double run_loop(const Order& order);

  // loops_message.cc
  template <typename Send, typename Wait>
  double back_and_forth(const Order& order, const char* what, Send&& send, Wait&& wait);
  double ping_pong(const Order& order);
  double window(const Order& order);
  double wake_up(const Order& order);
  // loops_access.cc
  double access_window(const Order& order);
  double access_single(const Order& order);
  double fetch_add(const Order& order);
  // loops_wait.cc
  void sleep_until_received();
  double idle();
  double eventfd(const Order& order);
  // verify.cc: every byte, before and after each measurement
  void verify(const Order& order);
  void verify_message(std::size_t bytes);
  void verify_write(bool inject, bool both, std::size_t bytes);
  void verify_read(bool both, std::size_t bytes);

  bool client_;
  std::array<int, 2> eventfds_;  ///< the server waits for [0], the client for [1]
  unsigned seed_ = 0;            ///< of the next check
  Spent spent_;                  ///< by both sides in the last run(); the client knows
};

}  // namespace clan::bench::ofi
