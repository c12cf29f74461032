// Client or server of a measurement: its loops, and how they are timed.
#pragma once

#include <array>

#include "endpoint.h"
#include "transports/slices.h"

namespace clan::bench::ofi {

class Side;

enum class Access { kNone, kWrite, kRead, kInject };

/// What can be measured.
struct Entry {
  const char *name, *family;
  double (Side::*loop)(const Order&);
  /// Whether all bytes arrive; null: the loop checks all that it does.
  void (Side::*verify)(const Order&) = nullptr;
  bool windows = false;  ///< 64 at once
  bool both = false;     ///< both sides, at once
  Access access = Access::kNone;
};

class Side : public Endpoint {
 public:
  static const Entry kEntries[12];
  Side(bool client, const Channel& channel, const std::array<int, 2>& eventfds)
      : Endpoint(channel), client_(client), eventfds_(eventfds) {}

  /// The server: follows the client's orders until their end.
  void serve();
  /// The client: microseconds per operation.
  Figure measure(int entry, std::size_t bytes, double ms);

 private:
  double run(Order order);
  template <typename Send, typename Wait>
  double back_and_forth(const Order& order, const char* what, Send&& send, Wait&& wait);
  double ping_pong(const Order& order);
  double window(const Order& order);
  double wake_up(const Order& order);
  double access_window(const Order& order);
  double access_single(const Order& order);
  double fetch_add(const Order& order);
  void sleep_until_received();
  double idle(const Order& order);
  double eventfd(const Order& order);
  // Every byte, before and after each measurement.
  void verify_message(const Order& order);
  void verify_write(const Order& order);
  void verify_read(const Order& order);

  bool client_;
  std::array<int, 2> eventfds_;  ///< the server waits for [0], the client for [1]
  unsigned seed_ = 0;            ///< of the next check
  Spent spent_;                  ///< by both sides in the last run(); the client knows
};

}  // namespace clan::bench::ofi
