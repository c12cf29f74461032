// PacketWait: how a waiting thread fetches packets of other hosts: between its checks, and while it
// sleeps. Until there is a link of packets each call costs one load, and threads sleep in the
// kernel.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <span>

namespace clan::udp {
class UdpNode;
}

namespace clan::engine {

/// Whether a look fetches packets, or the caller has just done so: that is a system call.
enum class Fetch : std::uint8_t { kNo, kYes };

/// Thread-safe after set_source().
class PacketWait {
 public:
  /// While the context is made, if it has a network.
  void set_source(udp::UdpNode* source) { source_ = source; }
  /// There is a link whose peer does not map our tables.
  void link_came() {
    // relaxed: a hint
    linked_.store(true, std::memory_order_relaxed);
  }
  /// Whether there is or was one.
  bool linked() const {
    // relaxed: a hint
    return linked_.load(std::memory_order_relaxed);
  }

  /// Fetches packets, where there are any: a thread that waits calls it between its looks.
  void fetch() {
    if (linked()) [[unlikely]]
      fetch_slowly();
  }
  /// Whether packets may have to be fetched.
  bool has_packets() const { return linked() && source_ != nullptr; }
  /// Sleeps until one is ready, or the word is no longer `seen`, and fetches packets meanwhile: 0,
  /// ETIMEDOUT, EINTR. For a thread without locks of the engine.
  int sleep_on(std::span<pollfd> fds, std::uint64_t deadline_ns);
  int sleep_on(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
               std::uint64_t deadline_ns);
  /// After such a word has changed.
  void wake_sleeper();
  /// A descriptor is about to be slept on elsewhere: the driver thread has to fetch packets.
  void leave_to_driver();

 private:
  void fetch_slowly();

  std::atomic<bool> linked_{false};
  udp::UdpNode* source_ = nullptr;  ///< null: none
};

}  // namespace clan::engine
