// Steps of sending: each tries once, and answers EAGAIN where there is no room. The transport makes
// progress and tries again. Wire is the engine's MessageEndpoint, or what a test has in its place.
#pragma once

#include <clan/message.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <span>

#include "transport/operation_table.h"
#include "wire/pieces.h"
#include "wire/wire.h"

namespace clan::ofi {

/// A longer message to another host stays with its sender until its receiver says where it goes.
constexpr std::size_t kLongestInFragments = 64 * 1024;

/// A write or read for Transport::start_small_access().
struct SmallTransfer {
  bool write = false;
  std::uint16_t context = 0;
  std::uint64_t key = 0;
  std::uint64_t address = 0;
  const iovec* local = nullptr;  ///< one piece, where it is a read
  std::size_t local_count = 0;
  std::size_t length = 0;
  const std::uint64_t* data = nullptr;  ///< remote CQ data
  void* program_context = nullptr;
  bool completion = false;
  Counter* counter = nullptr;
};

/// A message whose bytes lie in one piece.
template <typename Wire>
Status send_whole(Wire& wire, PeerIndex to, const WireHeader& header, const void* bytes,
                  std::size_t length) {
  return wire.try_send(to, bytes_of(header), {static_cast<const std::byte*>(bytes), length});
}

/// A message in pieces, gathered in the peer's ring.
template <typename Wire>
Status send_pieces(Wire& wire, PeerIndex to, const WireHeader& header, const SendRequest& request) {
  const std::size_t total = sizeof header + request.length;
  auto room = wire.reserve(to, total);
  if (!room) return room.error();
  std::memcpy(room->data(), &header, sizeof header);
  gather(room->data() + sizeof header, request.iov, request.count);
  wire.commit(to, total);
  return {};
}

template <typename Wire>
Status send_request(Wire& wire, PeerIndex to, const SendRequest& request) {
  return request.count == 1
             ? send_whole(wire, to, request.header, request.iov->iov_base, request.length)
             : send_pieces(wire, to, request.header, request);
}

/// The bytes of a message that is to be posted. Those in pieces, and those that are the caller's
/// again when the call returns, are copied into the operation, which is released where there is no
/// memory for that.
inline std::span<const std::byte> lasting_bytes(OperationTable& operations, Operation& operation,
                                                const SendRequest& request) {
  if (request.count <= 1 && !request.inject) {
    const void* const bytes = request.count > 0 ? request.iov[0].iov_base : nullptr;
    return {static_cast<const std::byte*>(bytes), request.length};
  }
  try {
    operation.gathered.resize(request.length);
  } catch (const std::bad_alloc&) {
    operations.release(operation);
    throw;
  }
  gather(operation.gathered.data(), request.iov, request.count);
  return operation.gathered;
}

}  // namespace clan::ofi
