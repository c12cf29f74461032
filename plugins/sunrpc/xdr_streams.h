// Two kinds of XDR stream that libtirpc does not have.
//
//  - growing: encodes into private memory that grows as needed, for messages of which nobody knows the size
//  - remote: decodes a message that still lies in its sender's memory. Small items come through a window that
//    is copied a piece at a time; long opaque data are copied straight to where they are wanted
//
// Both know only private memory: what a peer writes later is never seen.
#pragma once

#include <clan/message.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "rpc.h"

namespace clan::rpc {

/// Memory for an encoded message. It stays with its owner from message to message.
struct OutBuffer {
  char* data = nullptr;
  std::size_t size = 0;  ///< encoded
  std::size_t capacity = 0;
  bool busy = false;  ///< a peer may still copy from it

  OutBuffer() = default;
  OutBuffer(const OutBuffer&) = delete;
  OutBuffer& operator=(const OutBuffer&) = delete;
  ~OutBuffer();
  /// False: no memory; what is there stays.
  bool reserve(std::size_t bytes);
  std::span<const std::byte> bytes() const { return {reinterpret_cast<const std::byte*>(data), size}; }
};

/// A stream that encodes at the end of `buffer`. At most 2 GiB. XDR_DESTROY does nothing.
void growing_xdr(XDR* xdrs, OutBuffer* buffer);

/// Decodes bytes in memory, by libtirpc's xdrmem: each word is read once.
void memory_xdr(XDR* xdrs, std::span<const std::byte> bytes);

/// What a remote stream reads from.
class RemoteMessage {
 public:
  /// `lock` is held while the endpoint is used; it may be null.
  RemoteMessage(MessageEndpoint& endpoint, std::mutex* lock, const SetAside& message)
      : endpoint_(endpoint), lock_(lock), message_(message) {}
  RemoteMessage(const RemoteMessage&) = delete;
  RemoteMessage& operator=(const RemoteMessage&) = delete;
  /// The sender is told that its memory is free again.
  ~RemoteMessage();

  void xdr(XDR* xdrs);
  bool get(void* to, std::size_t bytes);
  char* get_inline(std::size_t bytes);
  std::uint64_t position() const { return window_at_ + used_; }
  bool set_position(std::uint64_t position);

 private:
  static constexpr std::size_t kWindow = 16 * 1024;
  bool copy(std::uint64_t offset, std::span<std::byte> to);
  bool refill();

  MessageEndpoint& endpoint_;
  std::mutex* lock_;
  SetAside message_;
  std::uint64_t window_at_ = 0;  ///< offset in the message of the window's first byte
  std::size_t filled_ = 0;
  std::size_t used_ = 0;
  alignas(8) std::byte window_[kWindow];
};

/// The kind for XDR_FREE, where no data move.
void freeing_xdr(XDR* xdrs);

}  // namespace clan::rpc
