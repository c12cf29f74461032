// What the user asked for: CLAN_* variables and the configuration file, read once when the first TCP socket
// appears. Never changes after that, but for disable().
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>

#include "clan/shared_directory.h"

namespace clan::preload {

/// What a program must be allowed to write into files (RLIMIT_FSIZE), to have pipes.
constexpr std::uint64_t kFileBytes = 64u << 20;

/// Of an offer's name in CLAN_DIR: clan1-0123456789abcdef.
constexpr std::size_t kOfferName = 22;

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
  std::atomic<bool> disabled{false};
  Ports only;    ///< empty: all
  Ports except;
  uid_t uids[16];  ///< besides our own
  int uid_count = 0;
  std::uint32_t ring_bytes = 512 * 1024;
  /// CLAN_DIR.
  static constexpr std::size_t kMostDirectory = kMostSharedDirectory;
  char directory[kMostDirectory + 1] = {};
  bool has_directory() const { return directory[0] != 0; }

  /// Whether a connection with these ports may leave the kernel.
  bool allows_ports(std::uint16_t local, std::uint16_t remote) const;
  bool allows_uid(uid_t uid) const;
};

const Config& config();
/// From now on this process leaves new connections alone.
void disable();

}  // namespace clan::preload
