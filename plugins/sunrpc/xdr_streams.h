// XDR streams over memory: one that grows, for messages of which nobody knows the size, and
// libtirpc's own to decode from. Neither has seen what a peer writes later: what it decodes may be
// a peer's memory, each word of which is read once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "rpc.h"

namespace clan::rpc {

/// Memory for an encoded message. It stays with its owner from message to message.
struct OutBuffer {
  char* data = nullptr;
  std::size_t size = 0;  ///< encoded
  std::size_t capacity = 0;

  OutBuffer() = default;
  OutBuffer(const OutBuffer&) = delete;
  OutBuffer& operator=(const OutBuffer&) = delete;
  ~OutBuffer();
  /// False: no memory; what is there stays.
  bool reserve(std::size_t bytes);
  std::span<const std::byte> bytes() const {
    return {reinterpret_cast<const std::byte*>(data), size};
  }
};

/// A stream that encodes at the end of `buffer`. At most 2 GiB. XDR_DESTROY does nothing.
void growing_xdr(XDR* xdrs, OutBuffer* buffer);

/// Decodes bytes in memory, by libtirpc's xdrmem: each word is read once.
void memory_xdr(XDR* xdrs, std::span<const std::byte> bytes);

/// The kind for XDR_FREE, where no data move.
void freeing_xdr(XDR* xdrs);

}  // namespace clan::rpc
