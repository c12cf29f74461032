// What two nodes say to each other: messages of message endpoints (clan/message.h), one each. Each
// begins with a Head.
//
//   connects                        accepts
//   Connect, and data behind it ->
//                               <-  Accept, or Refuse
//   then either way: Data, Direct, Close
//
// An end numbers its channels to one peer, from 0, and names a channel by its own number: the other
// one looks it up in its table of that peer. All of it is input: the reader checks kind, size,
// numbers, and tag and key, before it uses them.
#pragma once

#include <clan/cookie.h>

#include <cstdint>

namespace clan::unet::library {

enum class Kind : std::uint8_t { kData = 1, kDirect, kConnect, kAccept, kRefuse, kClose };

inline constexpr std::uint32_t kMostChannels = 65536;  ///< to one peer

struct Head {
  Kind kind = Kind::kData;
  std::uint8_t reserved[3] = {};
  std::uint32_t number = 0;  ///< of the sender's channel
};
static_assert(sizeof(Head) == 8, "48 bytes of data fit beside it in a line of the ring");

/// The data lie in the receiver's area.
struct DirectRecord {
  Head head{Kind::kDirect};
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0, reserved = 0;
};

struct ConnectRecord {
  Head head{Kind::kConnect};
  std::uint64_t key = 0;
  std::uint32_t endpoint = 0, tag = 0;
  std::uint32_t serial = 0, reserved = 0;
  RdmaCookie area;  ///< of the sender; no rights: none
};

struct AcceptRecord {
  Head head{Kind::kAccept};
  std::uint32_t to = 0, serial = 0;  ///< the receiver's channel
  RdmaCookie area;
};

struct RefuseRecord {
  Head head{Kind::kRefuse};
  std::uint32_t to = 0, serial = 0;
};

}  // namespace clan::unet::library
