// A connection as `clan stat` shows it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "address.h"

namespace clan::tool {

struct EndView {
  Address address;
  std::set<pid_t> processes;
  std::uint64_t bytes = 0;  // sent by this end, through the pipe
  std::uint64_t messages = 0;
  std::uint64_t sleeps = 0;
  std::uint64_t wakeups = 0;
  std::uint64_t tcp_bytes = 0;  // sent by TCP before the move
  std::uint64_t state = 0;
  ino_t socket = 0;                    // its inode, 0: not known
  std::optional<std::uint32_t> calls;  // that it has made by TCP, if it says so
  std::optional<uid_t> owner;          // of the socket
  std::uint64_t network = 0;           // number of its network namespace, 0: not known
};

/// What stays the same from one look to the next: device, inode and time of creation of the memfd.
using Identity = std::tuple<dev_t, ino_t, std::uint64_t>;

struct Connection {
  Identity id{};
  bool in_pipe = false;  // false: a TCP connection that has not moved; it has no counters
  EndView ends[2];
  const char* path = "tcp";
  std::string why;
  bool corba = false;          // a connection of omniORB's, which has no addresses
  bool about_to_move = false;  // there is a pipe, and nothing has gone through it
};

struct Rate {
  double bytes[2] = {0, 0};
  double messages[2] = {0, 0};
};

}  // namespace clan::tool
