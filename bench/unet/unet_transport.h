// U-Net endpoints as the measuring loops see them: one channel, polled. Only the calls of unet.h.
#pragma once

#include <unet.h>

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "transports/transport.h"

namespace clan::bench {

/// Where messages lie: in the endpoint's area; where the loop has them.
enum class UnetMemory { kArea, kAnywhere };
std::string unet_name(UnetMemory memory);

class UnetEnd {
 public:
  struct Close {
    void operator()(unet_node* node) const { unet_close(node); }
    void operator()(unet_endpoint* endpoint) const { unet_destroy(endpoint); }
  };
  UnetEnd(std::unique_ptr<unet_node, Close> node, std::unique_ptr<unet_endpoint, Close> endpoint,
          UnetMemory memory)
      : node_(std::move(node)), endpoint_(std::move(endpoint)), memory_(memory) {}

  bool send(std::span<const std::byte> message) {
    unet_endpoint* const e = endpoint_.get();
    unet_send* const d = unet_send_next(e);
    if (d == nullptr) return false;
    d->tag = 1;
    d->flags = 0;
    if (message.size() <= UNET_INLINE) {
      d->pieces = 0;
      d->bytes = static_cast<std::uint32_t>(message.size());
      std::memcpy(d->u.data, message.data(), message.size());
    } else {
      d->pieces = 1;
      d->u.piece[0].bytes = static_cast<std::uint32_t>(message.size());
      d->u.piece[0].at = out(message);
    }
    unet_send_push(e);
    if (unet_doorbell(e) != 0) return false;
    while (unet_send_done(e) == nullptr) (void)unet_doorbell(e);
    const int status = unet_send_done(e)->status;
    unet_send_take(e);
    return status == 0;
  }
  bool recv(std::span<std::byte> message) {
    unet_endpoint* const e = endpoint_.get();
    if (message.size() > UNET_INLINE && !given_) give(message);
    const unet_receive* d = nullptr;
    while ((d = unet_receive_next(e)) == nullptr) (void)unet_poll(e);
    const bool right = d->status == 0 && d->flags == 0 && d->bytes == message.size();
    if (d->buffers == 0) {
      std::memcpy(message.data(), d->u.data, message.size());
    } else if (memory_ == UnetMemory::kArea) {
      look(message, e->area + d->u.buffer[0]);
    }
    if (d->buffers != 0) (void)unet_free_push(e, d->u.buffer[0]);
    unet_receive_take(e);
    return right;
  }
  bool flush() { return true; }

 private:
  static constexpr std::uint64_t kOut = 64 * 1024;
  /// What differs from message to message (support/pattern.h): a program has its messages in the
  /// area, and copies nothing.
  static void look(std::span<std::byte> to, const void* from) {
    const auto* bytes = static_cast<const std::byte*>(from);
    for (const std::size_t i : {std::size_t{0}, to.size() / 2, to.size() - 1}) to[i] = bytes[i];
  }
  std::uint64_t out(std::span<const std::byte> message) {
    if (memory_ == UnetMemory::kAnywhere) return reinterpret_cast<std::uint64_t>(message.data());
    if (!filled_) std::memcpy(endpoint_->area + kOut, message.data(), message.size());
    filled_ = true;
    look({reinterpret_cast<std::byte*>(endpoint_->area + kOut), message.size()}, message.data());
    return kOut;
  }
  void give(std::span<std::byte> message) {
    given_ = true;
    const bool area = memory_ == UnetMemory::kArea;
    (void)unet_free_push(endpoint_.get(),
                         area ? 0 : reinterpret_cast<std::uint64_t>(message.data()));
    (void)unet_doorbell(endpoint_.get());
  }
  std::unique_ptr<unet_node, Close> node_;
  std::unique_ptr<unet_endpoint, Close> endpoint_;
  UnetMemory memory_;
  bool given_ = false, filled_ = false;
};

class UnetTransport {
 public:
  explicit UnetTransport(UnetMemory memory) : memory_(memory) {}
  std::string name() const { return unet_name(memory_); }
  std::string prepare(std::size_t bytes);
  std::optional<UnetEnd> open(Side side);

 private:
  UnetMemory memory_;
  std::string name_;
  std::uint32_t bytes_ = 0;
};

}  // namespace clan::bench
