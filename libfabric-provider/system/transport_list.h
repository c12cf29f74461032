// The ports whose progress may fill a queue or move a counter.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace clan::ofi {

class Cq;
class Transport;

class TransportList {
 public:
  /// As often as it is added it must be removed.
  void add(Transport& transport);
  void remove(Transport& transport);
  bool empty() const { return transports_.empty(); }
  /// Stops as soon as there is something in `until`, so that nothing else is touched before it is
  /// seen; the next call begins behind the transport that has brought it.
  void progress(const Cq* until = nullptr);

 private:
  std::vector<std::pair<Transport*, unsigned>> transports_;
  std::size_t first_ = 0;  ///< whose turn it is: a busy one would keep all others waiting
};

}  // namespace clan::ofi
