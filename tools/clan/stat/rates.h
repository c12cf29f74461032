// Rates of connections between two looks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "connection.h"

namespace clan::tool {

/// What the counters were at the last look, by connection and local address.
class Rates {
 public:
  /// Rates since the last call with this connection; nothing at the first.
  std::optional<Rate> next(const Connection& connection, double elapsed_s) {
    const auto key = std::pair(connection.id, connection.ends[0].address);
    const Counters now{{connection.ends[0].bytes, connection.ends[1].bytes},
                       {connection.ends[0].messages, connection.ends[1].messages}};
    const auto before = last_.find(key);
    current_[key] = now;
    if (before == last_.end() || elapsed_s <= 0) return std::nullopt;
    Rate rate;
    for (int end = 0; end < 2; ++end) {
      rate.bytes[end] = static_cast<double>(now.bytes[end] - before->second.bytes[end]) / elapsed_s;
      rate.messages[end] =
          static_cast<double>(now.messages[end] - before->second.messages[end]) / elapsed_s;
    }
    return rate;
  }
  /// A look is complete.
  void turn() {
    last_ = std::move(current_);
    current_.clear();
  }

 private:
  struct Counters {
    std::uint64_t bytes[2];
    std::uint64_t messages[2];
  };
  std::map<std::pair<Identity, Address>, Counters> last_;
  std::map<std::pair<Identity, Address>, Counters> current_;
};

}  // namespace clan::tool
