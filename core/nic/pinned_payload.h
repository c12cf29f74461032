// PinnedPayload: bytes that a link of packets reads until the peer has acknowledged all, instead of
// a copy for each packet. Its one writer checks `busy` first; any thread of the link clears it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "clan/detail/words.h"

namespace clan::nic {

struct PinnedPayload {
  explicit PinnedPayload(std::size_t size) : bytes(new std::byte[size]) {}
  // PAIR pinned_payload.busy: the link reads no more
  bool is_free() const { return !words::load_acquire(busy); }
  // relaxed: the writer's own, until the link has it
  void hand_over() { busy.store(true, std::memory_order_relaxed); }
  // PAIR pinned_payload.busy: behind the last read
  void let_go() { words::store_release(busy, false); }

  std::atomic<bool> busy{false};
  std::unique_ptr<std::byte[]> bytes;
};

}  // namespace clan::nic
