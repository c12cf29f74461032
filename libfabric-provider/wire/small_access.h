// Small accesses to a peer's memory that have been sent as messages, at their initiator.
//
// The target makes them in order as it takes its messages (access_word.h). When it does not come to
// them within 10 us the initiator takes the oldest back and makes it by a system call, so nothing
// depends on a peer that does not poll. Where a target answers later than the system call would
// have ended, as one does that waits for its turn on a processor or is far from this one, the next
// ones also go by system calls. All here works on the list of one peer; a Host says what the rest
// of the transport does:
//
//   bool has_left(const SmallAccess&)   the target has dropped the message: the access is made
//   bool make(SmallAccess&)             makes an access that is the initiator's; false: only later
//   void finish_write(SmallAccess&)     the target has made a write
//   std::uint64_t now_ns()              reads the clock
//   std::uint64_t atomics_answered()    of all atomic operations sent to the peer
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "wire/access_word.h"

namespace clan::ofi {

struct Operation;

inline constexpr std::size_t kMostSmallAccess = 8192;
inline constexpr std::uint32_t kLooksPerClock = 16;
inline constexpr std::uint32_t kTurnsPerProgress = 8;
/// A few of the system calls that the access would be otherwise.
inline constexpr std::uint64_t kAccessPatienceNs = 10'000;
/// What the system call takes, about: without its bytes, and how many of these a nanosecond moves.
inline constexpr std::uint64_t kSystemCallNs = 1'800, kBytesPerNs = 8;
/// One access of so many is timed, and each one after a peer was slow.
inline constexpr std::uint32_t kTurnsPerTiming = 8;
/// Accesses made by system calls after a peer did not poll or was slow; doubled as long as it does
/// not.
inline constexpr std::uint32_t kFirstDirect = 8, kMostDirect = 256;
/// The same where a thread of the peer sleeps until a message comes.
inline constexpr std::uint32_t kUnshared = 64;

/// A small access that has been sent as a message and is not known to have been made.
struct SmallAccess {
  SharedAccessWord* word = nullptr;  ///< in the message
  /// once the target has passed it the message is gone, and the access made
  std::uint64_t mark = 0;
  Operation* operation = nullptr;
  /// of the operation; another one: a kGetReply has ended the access
  std::uint64_t generation = 0;
  std::uint64_t key = 0;
  std::uint64_t address = 0;
  std::byte* bytes = nullptr;  ///< of a write, in the message; null: a read
  std::size_t length = 0;
  std::uint64_t atomics = 0;  ///< atomic operations that had been sent to the peer before
};

/// The accesses to one peer, in the order sent.
struct SmallAccesses {
  static constexpr std::size_t kMost = 256;
  std::array<SmallAccess, kMost> ring;
  std::uint64_t first = 0, end = 0;
  std::uint32_t looks = 0;  ///< without success, since one was seen to be made
  /// monotonic ns at the first of them that read the clock, 0: none
  std::uint64_t since = 0;
  /// monotonic ns at the first look without success, 0: this one is not timed
  std::uint64_t asked = 0;
  /// accesses still to be made by system calls, as the peer did not poll
  std::uint32_t direct = 0;
  std::uint32_t next_direct = 0;
  std::uint32_t turn = 0;
  /// false: the kernel forbids the system call, and what a thread of the peer's does is slower
  bool timed = true;
  bool listed = false;  ///< in the transport's list of peers with small accesses

  bool empty() const { return first == end; }
  bool full() const { return end - first == kMost; }
  SmallAccess& front() { return ring[first % kMost]; }
  SmallAccess& back() { return ring[(end - 1) % kMost]; }
  SmallAccess& push() { return ring[end++ % kMost]; }
  void pop() {
    ++first;
    looks = 0;
    since = asked = 0;
  }
  void clear() {
    first = end;
    looks = 0;
    since = asked = 0;
  }
  bool times_this() const { return timed && (next_direct != 0 || turn % kTurnsPerTiming == 0); }
  /// Whether the oldest, which the peer has made, took longer than the system call.
  bool slow(std::uint64_t now_ns) {
    return now_ns - asked > kSystemCallNs + front().length / kBytesPerNs;
  }
  /// The peer did not poll, or was slow: the next accesses go by system calls.
  void avoid_messages() {
    if (next_direct < kMostDirect) next_direct = std::max(kFirstDirect, next_direct * 2);
    direct = next_direct;
  }
};

/// What is left when the accesses that can be made have been.
enum class AccessesLeft {
  kNone,
  kBehindAtomics,  ///< the peer has yet to answer atomic operations that came first
  kTheirs,         ///< the peer is making one, and will not say when it has
};

/// Takes the accesses that the peer has made from the list. True when there were any.
template <typename Host>
bool reap_accesses(SmallAccesses& accesses, Host&& host) {
  const auto state = [&](const SmallAccess& a) {
    return host.has_left(a) ? kAccessDone : look_at_access(*a.word);
  };
  bool moved = false, slow = false;
  // The peer makes them in order, so the last one says it of all. It is asked first, as its line is
  // the least likely to be in use at the other end.
  const bool all = !accesses.empty() && state(accesses.back()) == kAccessDone;
  while (!accesses.empty()) {
    SmallAccess& a = accesses.front();
    const AccessWord now = all ? kAccessDone : state(a);
    if (now == kAccessWaiting || now == kAccessTheirs) break;
    if (now == kAccessDone) {
      // A read is complete when its bytes have come.
      if (a.bytes != nullptr) host.finish_write(a);
      if (accesses.asked != 0 && accesses.slow(host.now_ns())) {
        slow = true;
      } else if (!slow) {
        accesses.next_direct = 0;
      }
    } else {
      // Refused, or a value that no target writes.
      take_refused_access(*a.word);
      if (!host.make(a)) break;
    }
    accesses.pop();
    moved = true;
  }
  if (slow) accesses.avoid_messages();
  return moved;
}

/// Makes what the peer has not come to. What waits for atomic operations must not overtake them.
template <typename Host>
AccessesLeft take_accesses_back(SmallAccesses& accesses, Host&& host) {
  for (bool stuck = false;;) {
    const bool moved = host.reap(accesses);
    if (accesses.empty()) return AccessesLeft::kNone;
    SmallAccess& a = accesses.front();
    if (host.atomics_answered() < a.atomics) return AccessesLeft::kBehindAtomics;
    AccessWord found;
    if (take_access_back(*a.word, &found)) {
      accesses.avoid_messages();
      if (!host.make(a)) return AccessesLeft::kTheirs;
      accesses.pop();
    } else if (found == kAccessTheirs || found == kAccessOurs || (stuck && !moved)) {
      // Ours: its driver thread has yet to answer. Another word that is not reaped: the same, and
      // the peer has written over it.
      return AccessesLeft::kTheirs;
    } else {
      stuck = !moved;
    }
  }
}

/// After a look without success: whether the peer has had its time. `now_ns` is called seldom: it
/// reads the clock.
template <typename Clock>
bool patience_ends(SmallAccesses& accesses, Clock&& now_ns) {
  if (accesses.looks == 0 && accesses.times_this()) accesses.asked = now_ns();
  if (++accesses.looks % kLooksPerClock != 0) return false;
  const std::uint64_t now = now_ns();
  if (accesses.since == 0) {
    accesses.since = now;
    return false;
  }
  return now - accesses.since > kAccessPatienceNs;
}

}  // namespace clan::ofi
