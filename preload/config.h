// What the user asked for: CLAN_* variables and the configuration file, read once when the first TCP socket
// appears. Never changes after that.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace clan::preload {

struct Ports {
  static constexpr int kMost = 64;
  struct Range {
    std::uint16_t first, last;
  };
  Range ranges[kMost];
  int count = 0;
  bool contains(std::uint16_t port) const;
};

struct Config {
  bool disabled = false;
  Ports only;    ///< empty: all
  Ports except;
  uid_t uids[16];  ///< besides our own
  int uid_count = 0;
  std::uint32_t ring_bytes = 512 * 1024;

  /// Whether a connection with these ports may leave the kernel.
  bool allows_ports(std::uint16_t local, std::uint16_t remote) const;
  bool allows_uid(uid_t uid) const;
};

const Config& config();

}  // namespace clan::preload
