// fi_recv() in all its forms, with tags and without: what they have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "objects/endpoint.h"
#include "objects/shared_context.h"

namespace clan::ofi {

inline constexpr std::uint64_t kAnyTag = ~std::uint64_t{0};

/// Which messages a receive takes.
struct WantedMessage {
  ReceiveQueue::Kind kind;
  fi_addr_t from = FI_ADDR_UNSPEC;
  std::uint64_t tag = 0;
  std::uint64_t ignore = kAnyTag;
};

/// Receives are posted on an Endpoint or on a SharedReceive. Under the lock.
template <typename Receiver>
Posted* make_receive(Receiver& endpoint, const iovec* iov, std::size_t count,
                     const WantedMessage& wanted, const Peer* from, void* context,
                     std::uint64_t flags) {
  Posted* posted = endpoint.receives().make_posted();
  posted->from = from;
  posted->tag = wanted.tag;
  posted->ignore = wanted.ignore;
  posted->context = context;
  posted->flags = flags & ~FI_TRIGGER;
  posted->least = endpoint.least_multi_receive();
  posted->pieces = static_cast<std::uint32_t>(count);
  posted->length = 0;
  for (std::size_t i = 0; i < count; ++i) {
    posted->iov[i] = iov[i];
    posted->length += iov[i].iov_len;
  }
  return posted;
}

template <typename Receiver>
ssize_t receive_message(Receiver& endpoint, const iovec* iov, std::size_t count,
                        const WantedMessage& wanted, void* context, std::uint64_t flags) {
  if (count > kIovLimit) return -FI_EINVAL;
  std::lock_guard lock(endpoint.lock());
  if (!endpoint.enabled()) return -FI_EOPBADSTATE;
  const Peer* from;
  if (!endpoint.find_source(wanted.from, &from)) return -FI_EINVAL;
  if ((flags & FI_MULTI_RECV) != 0 && count != 1) return -FI_EINVAL;
  Posted* posted = make_receive(endpoint, iov, count, wanted, from, context, flags);
  post_receive(endpoint.receives(), wanted.kind, *posted);
  return 0;
}

template <typename Receiver>
ssize_t receive_one_message(fid_ep* ep, void* buffer, std::size_t length,
                            const WantedMessage& wanted, void* context) {
  auto& endpoint = *static_cast<Receiver*>(ep);
  const iovec iov{buffer, length};
  return receive_message(endpoint, &iov, 1, wanted, context, endpoint.receive_flags());
}

/// FI_PEEK: is there such a message? With FI_CLAIM it is kept for the caller, with FI_DISCARD
/// thrown away. Under the lock.
ssize_t peek_message(Endpoint& endpoint, const WantedMessage& wanted, void* context,
                     std::uint64_t flags);
/// FI_CLAIM alone: receives what was claimed under this context before, or throws it away. Under
/// the lock.
ssize_t take_claimed_message(Endpoint& endpoint, const iovec* iov, std::size_t count,
                             const WantedMessage& wanted, void* context, std::uint64_t flags);

}  // namespace clan::ofi
