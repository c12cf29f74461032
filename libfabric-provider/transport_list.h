// The ports whose progress may fill a queue or move a counter.
#pragma once

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
  /// seen.
  void progress(const Cq* until = nullptr);

 private:
  std::vector<std::pair<Transport*, unsigned>> transports_;
};

}  // namespace clan::ofi
