// What the provider can do, as fi_getinfo() tells it, and what other rooms need to know of it.
#pragma once

#include "system/provider.h"

namespace clan::ofi {

inline constexpr std::size_t kIovLimit = 4;
inline constexpr std::size_t kRegionPieces = 64;  ///< of a memory region
inline constexpr std::size_t kInjectBytes = 4096;
inline constexpr std::size_t kQueueSize = 1024;
inline constexpr std::size_t kMostQueueSize = 65536;
inline constexpr std::size_t kMostContexts = 16;  ///< of one kind in a scalable endpoint
inline constexpr std::size_t kMostSharedContexts = 65536;
inline constexpr std::size_t kMaxMessage = std::size_t{1} << 40;
inline constexpr std::size_t kMaxDatagram = 8192;
/// datagrams that nobody has asked for; more are dropped
inline constexpr std::size_t kMostUnheard = 1024;

/// Capabilities of which an endpoint may have some and not others.
inline constexpr std::uint64_t kTransferCaps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
inline constexpr std::uint64_t kSendingCaps = FI_SEND | FI_READ | FI_WRITE;
inline constexpr std::uint64_t kReceivingCaps = FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE;

/// mr_mode as its bits, whichever of the old and new ways of saying it was used.
inline int mr_bits(int mr_mode) {
  if (mr_mode == FI_MR_BASIC) return FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  if (mr_mode == FI_MR_SCALABLE || mr_mode == FI_MR_UNSPEC) return 0;
  return mr_mode & ~(FI_MR_BASIC | FI_MR_SCALABLE);
}

}  // namespace clan::ofi
