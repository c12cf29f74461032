// Which connection a Socket is, and whose.
#pragma once

#include <atomic>
#include <cstdint>

#include "clan/face/pipe.h"
#include "table/open_file.h"

namespace clan::preload {

struct Identity {
  enum class State : std::uint8_t {
    kTcp,      ///< not moved; may be
    kOffered,  ///< we have connected, and listen for the other end to take up the offer; in
               ///< CLAN_DIR also: an offer has been taken up, by us or by the other end, and not
               ///< all has been checked
    kShared,   ///< there is a pipe
    kKernel,   ///< stays with the kernel for good
  };

  std::atomic<int> refs{0};  ///< descriptors, and calls under way
  std::atomic<int> fds{0};   ///< descriptors alone
  std::atomic<State> state{State::kTcp};
  bool client = false;
  /// other processes may have the same open file
  std::atomic<bool> inherited{false};
  std::atomic<int> nonblocking{-1};  ///< as last heard; -1: ask
  OpenFileState* slot = nullptr;  ///< from before others find the Socket; of one in the pool none
  Pipe pipe;
  std::atomic<bool> left_slot{false};     ///< not among the holders of its slot any more
  std::atomic<bool> uses_no_slot{false};  ///< nor among the users
  /// which it has been counted for; under the lock of fork
  std::uint64_t last_fork = 0;
  bool lost_refs = false;  ///< `refs` counts those of threads of the parent

  /// Under Migration::moving, or with nobody else there. Not into kShared: that publishes the pipe.
  void become(State next) {
    // order: before the check whether a set holds it; see control_add()
    state.store(next, std::memory_order_seq_cst);
  }
  /// Under Migration::moving; elsewhere it may be old.
  State state_now() const { return state.load(std::memory_order_relaxed); }
  /// Other processes may have the same open file from now on.
  void share() { inherited.store(true, std::memory_order_relaxed); }  // relaxed: of this process
  /// For the next connection. Not the counts of references: there are none. Relaxed stores: a
  /// thread that gets the Socket next gets it by the pool's lock.
  void reset();
  OpenFileState& open_file() const { return *slot; }
};

}  // namespace clan::preload
