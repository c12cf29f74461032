// What a gateway has from the program that started it, and gives to the one that replaces it:
// listeners, by their descriptors.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace clan::gateway {

/// Listeners of a service manager (LISTEN_FDS), or of the gateway that this one replaces. Asks
/// once.
std::vector<int> inherited_listeners();
/// Says to the gateway that this one replaces that it may drain.
void say_ready();

/// The program that replaces this one.
struct Successor {
  pid_t pid = -1;
  int ready = -1;  ///< a byte comes when it serves; the end without one when it does not
  /// Starts `arguments` with these listeners. -1: it could not be.
  static Successor start(const std::vector<std::string>& arguments,
                         const std::vector<int>& listeners);
};

}  // namespace clan::gateway
