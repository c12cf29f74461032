// Where a rank is found by those of other hosts: what it publishes, and in which order others try
// it.
#pragma once

#include <clan/context.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace clan::mpi {

/// A part of what ranks tell each other when they meet. Plain data.
struct FarAddress {
  static constexpr std::size_t kMostHosts = 6, kMostText = 46;
  std::uint16_t port = 0;  ///< of UDP; 0: this rank does not talk to other hosts
  std::uint8_t mode = 0;   ///< NetworkOptions::Mode
  std::uint8_t hosts = 0;
  char host[kMostHosts][kMostText] = {};  ///< numeric addresses, ended by a zero byte
};

/// An address of this host.
struct Interface {
  std::string text;
  int family = 0;
  std::array<std::uint8_t, 16> bytes{};
  unsigned prefix = 0;  ///< bits of the network
};

/// Those that others may reach: of interfaces that are up, neither loopback nor of one link only.
std::vector<Interface> interfaces();
/// As many of them as there are places for.
FarAddress far_address(std::span<const Interface> own, std::uint16_t port,
                       NetworkOptions::Mode mode);
/// Which of a rank's addresses to try, as hosts of a service's name: those in one of our networks
/// first, never one that is our own. What another process has written is untrusted input.
std::vector<std::string> hosts_to_try(std::span<const Interface> own, const FarAddress& peer);

}  // namespace clan::mpi
