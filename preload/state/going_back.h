// How processes that share an end agree on its way back to TCP, though each of them may be stopped
// at any instruction, or be killed: by the word that counts calls which send (Slot::sends).
//
//   open --- kUndecided ---+--- kTogether --- open, behind kGone
//                          '--- a thread --- open, when it, or another one, has sent all again
//
// Undecided: each one that comes joins, and puts the last record into the ring if none is there.
// Then each says what it wants, and the first one has decided for all. Together: nothing is to be
// sent again. Each makes all of the steps that are left, and each step may be made several times,
// at any time: migrate/demote_end.h. A thread: it sends again what the other end has not read, and
// nobody else may meanwhile.
//
// Stopped or killed, undecided or together: another one that comes does what is left, and opens.
// While one sends again: another one takes that from it (state/resend_words.h).
// One that goes on later finds what is done, and changes nothing.
//
// Templates over the word, so that tests/preload/state/going_back_test.cc runs these very lines
// under every interleaving of a machine with store buffers.
#pragma once

#include <cstdint>

#include "clan/words.h"
#include "state/open_file.h"

namespace clan::preload::going_back {

// As closers of the counter: no thread has such an id.
constexpr std::int32_t kUndecided = 1 << Slot::kReader, kTogether = 2 << Slot::kReader;
/// With the id of a thread: it sends again.
constexpr std::int32_t kSendsAgain = 3 << Slot::kReader;

inline bool is_closed_by(std::uint64_t word, std::int32_t closer) {
  return (word & Slot::kClosed) != 0 && word >> Slot::kCloser == static_cast<std::uint32_t>(closer);
}
inline bool may_be_joined(std::uint64_t word) {
  return is_closed_by(word, kUndecided) || is_closed_by(word, kTogether);
}

inline bool is_resend(std::uint64_t word) {
  return (word & Slot::kClosed) != 0 &&
         (word >> Slot::kCloser & ~std::uint64_t{Slot::kId}) == std::uint64_t{kSendsAgain};
}

/// Closes the counter, whatever is counted, or joins those that have. False: another one has it
/// closed.
template <typename Word>
bool join(Word& sends) {
  std::uint64_t now = words::look(sends);  // PAIR preload.gate: as below
  for (;;) {
    if ((now & Slot::kClosed) != 0) return may_be_joined(now);
    // PAIR preload.gate: sees that a switch is over
    if (words::replace(sends, now, now | Slot::closed_by(kUndecided))) return true;
  }
}

enum class Decided {
  kForAll,    ///< together
  kForUs,     ///< the caller alone sends again
  kByOthers,  ///< it is open, or somebody else sends again
};

/// By one that has joined, and has found the last record in the ring. `wish`: kTogether, or the
/// thread that is to send again, with kSendsAgain.
template <typename Word>
Decided decide(Word& sends, std::int32_t wish) {
  std::uint64_t now = words::look(sends);  // PAIR preload.gate: sees what has been decided
  while (is_closed_by(now, kUndecided)) {
    const std::uint64_t next = (now & (Slot::kClosed - 1)) | Slot::closed_by(wish);
    // PAIR preload.gate: publishes it
    if (words::replace(sends, now, next))
      return wish == kTogether ? Decided::kForAll : Decided::kForUs;
  }
  return is_closed_by(now, kTogether) ? Decided::kForAll : Decided::kByOthers;
}

/// Opens what may be joined. `gone`: the end has said kGone; before that it stays closed once it
/// has been decided.
template <typename Word>
void open(Word& sends, bool gone) {
  std::uint64_t now = words::look(sends);  // PAIR preload.gate: as below
  while ((is_closed_by(now, kUndecided) || (gone && is_closed_by(now, kTogether))) &&
         // PAIR preload.gate: publishes what was done behind it
         !words::replace(sends, now, now & (Slot::kClosed - 1))) {
  }
}

}  // namespace clan::preload::going_back
