// How an end sends again what its other end has not read.
//
// What is sent again is a sequence that nobody changes any more: bytes of a file, and bytes of the
// ring that have been set aside (Pipe::set_aside()). The thread that sends it has closed
// OpenFileState::sends (OpenFileState::kSendsAgain). When its process has been killed another one
// of this end takes that over: the kernel's count of bytes tells how many had been sent.
#pragma once

#include <cstdint>

#include "clan/detail/words.h"
#include "table/open_file.h"

namespace clan::preload {

enum class SentAgain {
  kSome,
  kAll,
  kNoRoom,  ///< TCP takes no more for now
  kNobody,  ///< nobody is there to read it
  kBroken,  ///< it cannot be known, or had, what is to be sent
};

/// The one that has closed the sends hands that on, or another one takes it from a dead one. False:
/// `from` has not closed them.
inline bool hand_resend_on(OpenFileState::Counter& sends, std::int32_t from, std::int32_t to) {
  std::uint64_t now = words::load_acquire(sends);  // PAIR preload.gate: sees what that one has done
  while (OpenFileState::is_closed_by(now, from)) {
    // Calls that find it closed and step back change the count in the same word.
    // PAIR preload.gate: publishes that the resend has a new owner
    if (words::cas(sends, now, (now & (OpenFileState::kClosed - 1)) | OpenFileState::closed_by(to)))
      return true;
  }
  return false;
}

/// Counts, by the kernel's number, what a process that was killed had sent again. `most`: bytes of
/// a step. False: that number is not to be had, or impossible.
template <typename Kernel>
bool count_resent(Resent& again, std::uint64_t most, const Kernel& kernel) {
  // PAIR preload.resent: before the first byte
  const std::uint64_t base = words::load_acquire(again.base);
  if (base == 0) return true;  // it had sent none
  std::uint64_t sent = 0;
  if (base == Resent::kUnknown || !kernel.sent(&sent)) return false;
  // PAIR preload.resent: its count
  const std::uint64_t counted = words::load_acquire(again.resent);
  const std::uint64_t by_kernel = sent - (base - 1);
  if (by_kernel < counted || by_kernel - counted > most) return false;
  words::store_release(again.resent, by_kernel);  // PAIR preload.resent: in the place of that one
  return true;
}

/// One step of it, by the thread that has closed the sends.
template <typename Kernel>
SentAgain send_some_again(Resent& again, Kernel& kernel) {
  // PAIR preload.resent: sees what the process before has counted
  const std::uint64_t at = words::load_acquire(again.resent);
  if (words::load_acquire(again.base) == 0) {  // PAIR preload.resent: before the first byte
    std::uint64_t sent = 0;
    // PAIR preload.resent: before the first byte
    words::store_release(again.base, kernel.sent(&sent) ? sent + 1 : Resent::kUnknown);
  }
  const SentAgain what = kernel.send(at);
  // PAIR preload.resent: for one that takes this over
  if (what == SentAgain::kSome) words::store_release(again.resent, at + kernel.count());
  return what;
}

}  // namespace clan::preload
