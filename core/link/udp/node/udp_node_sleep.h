// What a thread that sleeps at a node waits for.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <span>

#include "base/event_count.h"
#include "link/udp/transport/connection.h"

namespace clan::udp {

class UdpLink;

/// Either a word or descriptors.
struct Sleep {
  static constexpr std::size_t kMostFds = 2;
  const std::atomic<std::uint32_t>* word = nullptr;
  std::uint32_t seen = 0;      ///< the sleep ends when the word is another
  std::span<pollfd> fds = {};  ///< or when one of these is ready, as poll() has it
  std::uint64_t deadline_ns = kNever;
  UdpLink* link = nullptr;  ///< whose peer the thread waits for, if that is known
  /// That `word` is the news of, if any: counts this thread while it sleeps by futex. The thread in
  /// charge is not counted; wake_sleepers() reaches it.
  EventCount* count = nullptr;
  /// Whether the thread has locks of the engine. Only one without reports ended transfers itself.
  enum class Locks { kSome, kNone } locks = Locks::kSome;
};

}  // namespace clan::udp
