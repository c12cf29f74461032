// What a node knows of a link that it is making with a service of another host.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "clan/result.h"
#include "link/udp/node/link_wire.h"
#include "link/udp/wire/socket_address.h"

namespace clan::udp {

class Connection;
class UdpLink;

struct Dialled {
  std::shared_ptr<UdpLink> link;
  Greeting peer;
};

/// Under the node's mutex.
struct Dialling {
  int err = 0;
  bool speaks = false;  ///< the host has answered, if only by asking for a cookie
  Dialled found;
  /// From the driver thread, without the mutex; empty once it has been called or given up.
  std::function<void(Result<Dialled>)> ended;
  Connection* connection = nullptr;  ///< while the host has not answered
  SocketAddress to;
  std::string service;
  int redirections = 0;  ///< from one port of the host to another
};

}  // namespace clan::udp
