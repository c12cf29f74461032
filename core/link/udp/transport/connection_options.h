// What a connection of the UDP link may take and how long it waits: options, and the constants of
// the transport.
#pragma once

#include <cstddef>
#include <cstdint>

#include "link/udp/wire/wire.h"

namespace clan::udp {

constexpr std::uint64_t kNever = ~std::uint64_t{0};
constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr std::uint64_t kSecond = 1'000'000'000;

// docs/wire.md, Reliability.
constexpr std::uint64_t kLeastAckDelay = 100'000;
constexpr std::uint64_t kMostAckDelay = kMillisecond;
constexpr unsigned kAckEvery = 32;  ///< packets
/// packets whose fate is not known; more end the connection
constexpr std::uint64_t kMostLog = 1u << 17;
/// so that acknowledgements are acknowledged now and then
constexpr unsigned kBareAcksPerPing = 64;
constexpr std::uint64_t kLeastLossWait = 250'000;
constexpr std::uint64_t kLeastProbeWait = 2 * kMillisecond;
constexpr std::uint64_t kMostProbeWait = 300 * kMillisecond;
constexpr unsigned kMostReordering = 64;
/// for what a process that ends has sent to be acknowledged, while some of it is
constexpr std::uint64_t kMostGoodBye = 30 * kSecond;
constexpr std::uint64_t kRefusedWait = 300 * kMillisecond;
constexpr std::uint64_t kRemembered = 256;   ///< packets for which a lost one is still known
constexpr std::uint64_t kUrgentReserve = 8;  ///< packets channel 0 may exceed the window by
/// of so many packets, one begins with the channel that waits longest
constexpr unsigned kFairTurn = 8;

struct Options {
  std::uint32_t packet_window = 2048;             ///< packets the peer may have under way to us
  std::uint32_t largest_packet = kLargestPacket;  ///< that we can receive and our socket can send
  std::uint64_t credit[kChannels] = {256 * 1024, 256 * 1024, 256 * 1024, 8 << 20};
  std::uint64_t silence = 10 * kSecond;         ///< until an idle peer is asked whether it is there
  std::uint64_t watched_silence = kSecond / 2;  ///< the same while a thread sleeps until it sends
  std::uint64_t dead = 15 * kSecond;            ///< until a peer that does not answer is dead
  std::uint64_t handshake = 10 * kSecond;  ///< until a server that does not answer is not there
  /// until an accepted client that sends nothing is forgotten
  std::uint64_t half_open = 5 * kSecond;
  std::size_t most_half_open = 1024;
  std::size_t most_connections = 16'384;  ///< with which a server accepts no further one
};

}  // namespace clan::udp
