// The ports whose progress may fill a queue or move a counter.
#pragma once

#include <utility>
#include <vector>

namespace clan::ofi {

class Cq;
class Port;

class PortList {
 public:
  /// As often as it is added it must be removed.
  void add(Port& port);
  void remove(Port& port);
  bool empty() const { return ports_.empty(); }
  /// Stops as soon as there is something in `until`, so that nothing else is touched before it is seen.
  void progress(const Cq* until = nullptr);

 private:
  std::vector<std::pair<Port*, unsigned>> ports_;
};

}  // namespace clan::ofi
