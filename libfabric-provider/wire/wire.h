// What endpoints say to each other, as messages of the engine. Both sides are processes of one user
// on one host, but what a peer wrote is input all the same: lengths and numbers are checked where
// they are used.
//
//   WireHeader (24 bytes) | what the operation needs | bytes
//
// A message of up to 32 bytes travels with its header in one cache line.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace clan::ofi {

constexpr std::uint32_t kWireVersion = 3;

enum class Op : std::uint8_t {
  kHello = 1,    ///< first message of a connection: Hello
  kMessage,      ///< fi_send
  kTagged,       ///< fi_tsend
  kAck,          ///< `id` has been delivered
  kRmaDone,      ///< an access to memory has been made: RmaNotice
  kAtomic,       ///< AtomicRequest, operands
  kAtomicReply,  ///< AtomicReply, results
  kPut,          ///< a small write to memory: AccessWord, remote CQ data with kHasData, bytes
  kGet,          ///< a small read: AccessWord, GetRequest
  kGetReply,     ///< the bytes that `id` has asked for
  // Of message endpoints, with the program's own data behind the header. `tag` is the number that
  // the connecting endpoint has given to the attempt.
  kConnect,  ///< to a passive endpoint
  kAccept,   ///< the connection that it comes by is the one
  kReject,
  kLongAtomic,  ///< AtomicRequest, targets, operands: more than fits kAtomic
  // Of messages to other hosts that their sender has kept: kOffered.
  kPlace,   ///< where the message of operation `id` is to be written: PlaceReply, cookies
  kPlaced,  ///< it has been: `tag` is PlaceReply::receive, `data` 0 or why it has not been
};

struct GetRequest {
  std::uint64_t length = 0;
};

/// Flags of WireHeader.
constexpr std::uint8_t kHasData = 1;   ///< `data` is remote CQ data
constexpr std::uint8_t kWantsAck = 2;  ///< answer kAck{id} on delivery
constexpr std::uint8_t kMore = 4;      ///< of kAtomicReply: there will be another
constexpr std::uint8_t kOffered = 8;   ///< of kMessage, kTagged: FarOffer in place of the bytes

/// Bytes of a program's own that go with kConnect, kAccept and kReject.
constexpr std::size_t kMostConnectionData = 1024;

struct WireHeader {
  Op op = Op::kMessage;
  std::uint8_t flags = 0;
  std::uint16_t context = 0;  ///< receive context of a scalable endpoint
  std::uint32_t id = 0;       ///< of the sender's operation, for answers
  std::uint64_t tag = 0;
  std::uint64_t data = 0;
};
static_assert(sizeof(WireHeader) == 24 && std::is_trivially_copyable_v<WireHeader>);

struct Hello {
  std::uint32_t version = kWireVersion;
  std::uint32_t length = 0;
  sockaddr_in6 address{};  ///< of the sender; a sockaddr_in in its beginning where it is one
};

/// A long message to another host. It stays with its sender until the receiver has said where it
/// is to be written, by RDMA.
struct FarOffer {
  std::uint64_t length = 0;
  std::uint64_t number = 0;  ///< of the operation: tells it from others with the same `id`
};

/// Followed by `count` RDMA cookies, at most kIovLimit: the pieces of the receive, in their order.
/// None: nothing of the message is wanted.
struct PlaceReply {
  std::uint64_t number = 0;   ///< FarOffer::number
  std::uint64_t receive = 0;  ///< the receiver's
  std::uint32_t count = 0;
  std::uint32_t reserved = 0;
};

/// WireHeader::tag is the key, data the remote CQ data.
struct RmaNotice {
  std::uint64_t address = 0;
  std::uint64_t length = 0;
  std::uint32_t read = 0;  ///< 1: it was a read
  std::uint32_t reserved = 0;
};

/// WireHeader::tag is the key. Followed by count operands, and as many to compare with where the
/// operation compares.
struct AtomicRequest {
  std::uint64_t address = 0;
  std::uint32_t count = 0;
  std::uint8_t type = 0;  ///< fi_datatype
  std::uint8_t op = 0;    ///< fi_op
  std::uint8_t kind = 0;  ///< AtomicKind
  std::uint8_t reserved = 0;
};

/// What follows an AtomicRequest of kLongAtomic, whose `count` is the number of these (at most
/// kIovLimit). Where it is 0 there is one target: WireHeader::tag is the key, data the number of
/// values.
struct AtomicTarget {
  std::uint64_t address = 0;
  std::uint64_t count = 0;
  std::uint64_t key = 0;
};

/// Followed by values found, where they were asked for. Those of kLongAtomic come in several
/// replies: WireHeader::tag is the number of bytes that came before.
struct AtomicReply {
  std::int32_t err = 0;
  std::uint32_t reserved = 0;
};

// Reply credit. Replies (kAck, kGetReply, kAtomicReply) that find no room are kept by the process
// that owes them. A peer may be asked for at most kMostOwed bytes of replies at a time; a peer that
// is owed more than kMostKept is not read until it has taken some. Replies are always read, so two
// peers that ask each other for much cannot block each other.
constexpr std::size_t kMostOwed = std::size_t{2} << 20;
constexpr std::size_t kMostKept = 2 * kMostOwed;
/// What an answer counts for beside the bytes that it brings.
constexpr std::size_t kAnswerCost = 64;
/// A kLongAtomic with more results than that is answered as far as there is room, while its
/// initiator sends nothing but answers to that peer: so it is not overtaken.
constexpr std::size_t kMostAtOnce = std::size_t{256} << 10;

}  // namespace clan::ofi
