// The word by which two processes agree which of them makes a small access to memory.
//
// It lies in the message (Op::kPut, Op::kGet), in the ring that both map. Either side may take the
// access first; its taker says how it ended:
//
//              the target comes to it       copied
//   waiting ───────────────────> theirs ──────────────> done
//      │                            └── no such memory, no right ──> refused ─ the initiator: ─┐
//      └── the initiator is impatient ─> ours ── copied ──> done, failed <─────────────────────┘
//
// A target that dies while the word is `theirs` leaves it so; the initiator ends the access when it
// hears that the connection has ended. Everything here works on any word of memory, so a test needs
// no peer.
#pragma once

#include <atomic>
#include <cstdint>

namespace clan::ofi {

/// The first word of kPut and kGet. WireHeader::tag is the key, data the address.
using AccessWord = std::uint64_t;
constexpr AccessWord kAccessWaiting = 0;
constexpr AccessWord kAccessTheirs = 1;  ///< the target makes the access
constexpr AccessWord kAccessOurs = 2;    ///< the initiator makes it: the target must not pass it
constexpr AccessWord kAccessDone = 3;
/// by the target; the initiator tries, and says how it ended
constexpr AccessWord kAccessRefused = 4;
constexpr AccessWord kAccessFailed = 5;

using SharedAccessWord = std::atomic<AccessWord>;

// --- the initiator -------------------------------------------------------------------------------

/// Prepares the word of a message that is not published yet.
inline void prepare_access(SharedAccessWord& word) {
  word.store(kAccessWaiting, std::memory_order_relaxed);  // relaxed: commit() publishes it
}

inline AccessWord look_at_access(const SharedAccessWord& word) {
  // PAIR ofi.access: sees what the target has done with its memory before it said so
  return word.load(std::memory_order_acquire);
}

/// True: the access is the initiator's from now on. False: `found` says what it is.
inline bool take_access_back(SharedAccessWord& word, AccessWord* found) {
  *found = kAccessWaiting;
  // PAIR ofi.access: one of the two sides takes it
  return word.compare_exchange_strong(*found, kAccessOurs, std::memory_order_acq_rel);
}

/// One that the target has refused, or whose word it has overwritten with nonsense.
inline void take_refused_access(SharedAccessWord& word) {
  word.store(kAccessOurs, std::memory_order_relaxed);  // relaxed: to the target it is the same
}

/// The initiator has made the access, or could not.
inline void end_own_access(SharedAccessWord& word, bool made) {
  // PAIR ofi.access: the target goes on to what is behind it
  word.store(made ? kAccessDone : kAccessFailed, std::memory_order_release);
}

// --- the target ----------------------------------------------------------------------------------

/// Makes the access by `serve`, which answers whether there is such memory, unless the initiator
/// has taken it. Returns the word's value then.
template <typename Serve>
AccessWord serve_access(SharedAccessWord& word, Serve&& serve) {
  AccessWord state = kAccessWaiting;
  // PAIR ofi.access: one of the two sides takes it; what the initiator has done is seen
  if (word.compare_exchange_strong(state, kAccessTheirs, std::memory_order_acq_rel)) {
    state = serve() ? kAccessDone : kAccessRefused;
    // PAIR ofi.access: our memory is as the initiator wants it
    word.store(state, std::memory_order_release);
  }
  return state;
}

/// Whether the initiator has yet to make the access: nothing behind its message may be read.
constexpr bool is_initiators(AccessWord state) {
  return state == kAccessOurs || state == kAccessRefused;
}

/// The same of a message that is held.
inline bool is_still_initiators(const SharedAccessWord& word) {
  // PAIR ofi.access: sees what the initiator has done
  return is_initiators(word.load(std::memory_order_acquire));
}

}  // namespace clan::ofi
