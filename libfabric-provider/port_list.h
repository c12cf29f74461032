// The ports whose progress may fill a queue or move a counter.
#pragma once

#include <utility>
#include <vector>

namespace clan::ofi {

class Port;

class PortList {
 public:
  /// As often as it is added it must be removed.
  void add(Port& port);
  void remove(Port& port);
  void progress();

 private:
  std::vector<std::pair<Port*, unsigned>> ports_;
};

}  // namespace clan::ofi
