// Which connection a Socket is, and which threads and processes hold it.
#pragma once

#include <atomic>
#include <cstdint>

#include "clan/face/pipe.h"
#include "table/open_file.h"

namespace clan::preload {

struct Identity {
  enum class State : std::uint8_t {
    kTcp,      ///< on TCP, and may move
    kOffered,  ///< connected, and listening for the peer to take up the offer; in CLAN_DIR also:
               ///< an offer was taken up by either end and is being checked
    kShared,   ///< there is a pipe
    kKernel,   ///< stays with the kernel for good
  };

  std::atomic<int> refs{0};  ///< descriptors and calls under way
  std::atomic<int> fds{0};   ///< descriptors alone
  std::atomic<State> state{State::kTcp};
  bool client = false;
  /// other processes may have the same open file
  std::atomic<bool> inherited{false};
  std::atomic<int> nonblocking{-1};  ///< as last seen; -1: ask the kernel
  /// SO_RCVTIMEO, SO_SNDTIMEO in ns, 0: none; negative: ask the kernel
  std::atomic<std::int64_t> receive_timeout{-1}, send_timeout{-1};
  OpenFileState* slot = nullptr;  ///< set before others find the Socket; null in the pool
  Pipe pipe;
  std::atomic<bool> left_slot{false};     ///< it no longer counts as a holder of its slot
  std::atomic<bool> uses_no_slot{false};  ///< nor as a user
  /// the last fork it was counted for; under the lock of fork
  std::uint64_t last_fork = 0;
  bool lost_refs = false;  ///< `refs` includes threads of the parent

  /// Under Migration::moving, or unshared. Never to kShared: that publishes the pipe.
  void become(State next) {
    // order: before the check for sets, see control_add()
    state.store(next, std::memory_order_seq_cst);
  }
  /// Under Migration::moving; elsewhere it may be stale.
  State state_now() const { return state.load(std::memory_order_relaxed); }
  /// Notes that other processes may have the same open file.
  void share() { inherited.store(true, std::memory_order_relaxed); }  // relaxed: of this process
  /// Notes that the timeouts may have changed. Each call stores a new number, so that a thread that
  /// asked the kernel earlier cannot keep a stale answer.
  void forget_timeouts() {
    static constinit std::atomic<std::int64_t> last{-1};
    // relaxed: each is a number by itself
    const std::int64_t next = last.fetch_sub(1, std::memory_order_relaxed) - 1;
    for (auto* one : {&receive_timeout, &send_timeout}) one->store(next, std::memory_order_relaxed);
  }
  /// Leaves the counts of references, which are 0. Relaxed stores: the pool's lock publishes them.
  void reset();
  OpenFileState& open_file() const { return *slot; }
};

}  // namespace clan::preload
