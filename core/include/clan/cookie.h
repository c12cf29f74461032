// RDMA cookies: capabilities for a stretch of another process's memory.
//
// A cookie is plain data: copy it, send it, hand it to a third process of the same user. Possession
// is permission (clan-distributed-computing section 2.2). It cannot be forged: the key is 64 random
// bits, fresh for every export, of which peers can read only a one-way image.
#pragma once

#include <cstdint>
#include <type_traits>

namespace clan {

/// One NIC: a Context in a process. Random, so a restarted program is another node.
struct NodeId {
  std::uint64_t value = 0;
  friend bool operator==(NodeId, NodeId) = default;
};

/// What a cookie allows its holder.
enum class Rights : std::uint32_t { kNone = 0, kRead = 1, kWrite = 2, kReadWrite = 3 };
constexpr bool includes(Rights have, Rights want) {
  return (static_cast<std::uint32_t>(have) & static_cast<std::uint32_t>(want)) ==
         static_cast<std::uint32_t>(want);
}

/// 48 bytes, native byte order. Source: clan-distributed-computing 2.2.
struct RdmaCookie {
  NodeId node;
  std::uint64_t key = 0;
  std::uint64_t offset = 0;  ///< of the aperture in the memory it shows; informational
  std::uint64_t length = 0;
  std::uint32_t aperture = 0;
  std::uint32_t generation = 0;
  Rights rights = Rights::kNone;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(RdmaCookie) == 48 && std::is_trivially_copyable_v<RdmaCookie>);

}  // namespace clan
