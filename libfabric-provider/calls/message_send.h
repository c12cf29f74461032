// fi_send() in all its forms, with tags and without: what they have in common.
#pragma once

#include <cstddef>
#include <cstdint>

#include "objects/counter.h"
#include "objects/endpoint.h"

namespace clan::ofi {

/// What a message is called, besides its bytes.
struct MessageLabel {
  ReceiveQueue::Kind kind;
  std::uint64_t tag = 0;
  const std::uint64_t* data = nullptr;

  WireHeader header() const {
    WireHeader h{.op = kind == ReceiveQueue::kTagged ? Op::kTagged : Op::kMessage, .tag = tag};
    if (data != nullptr) {
      h.flags = kHasData;
      h.data = *data;
    }
    return h;
  }
};

/// How an operation ends: the counter that counts it, and whether the queue gets a completion.
struct MessageEnding {
  Counter* counter = nullptr;
  bool completion = false;
};

ssize_t send_message(Endpoint& endpoint, const iovec* iov, std::size_t count, fi_addr_t to,
                     const MessageLabel& label, void* context, std::uint64_t flags);
ssize_t send_one_message(fid_ep* ep, const void* buffer, std::size_t length, fi_addr_t to,
                         const MessageLabel& label, void* context);
ssize_t inject_message(fid_ep* ep, const void* buffer, std::size_t length, fi_addr_t to,
                       const MessageLabel& label);

}  // namespace clan::ofi
