// How processes that share an end send again what its other end has not read, though each of them
// may be stopped (SIGSTOP, a debugger) at any instruction, or be killed.
//
// What is sent again is a sequence that nobody changes any more: bytes of a file, and bytes of the
// ring that have been set aside (Pipe::set_aside()). One thread sends it, as Slot::sends says; any
// other may take that from it, at any time, and goes on where it stands. A step:
//
//   1 a place of its own: owner = thread | kInCall, length = a cmsghdr's
//   2 fence
//   3 sends still mine? else 8
//   4 of every other place with kInCall: length = 0; stopped or dead? else it is waited for
//   5 how many have been sent again: `resent`; if there was such a place, by the kernel's count
//   6 sendmsg() of some that follow, with control data in the place as in stream/bell_call.h
//   7 counts them, by an exchange from the number of 5
//   8 owner = 0
//
// Stopped or killed at
//   1 to 5  it sends nothing: 3 sees that the other one has taken its turn, or that one has seen
//           kInCall, and the kernel refuses the call
//   6, 7    what it has sent is in the kernel's count, which nobody else raises. Its exchange fails
//           when another one has counted
//   8       the next one asks the kernel for nothing
// A place that a thread was killed in stays as it is: it says that the kernel is to be asked.
//
// Templates over the words and the fence, so that tests/preload/state/resend_words_test.cc runs
// these very lines under every interleaving of a machine with store buffers.
#pragma once

#include <atomic>
#include <cstdint>

#include "clan/socket_face.h"
#include "clan/words.h"
#include "state/call_place.h"
#include "state/going_back.h"
#include "state/open_file.h"

namespace clan::preload {

enum class SentAgain {
  kSome,
  kAll,
  kNoRoom,  ///< TCP takes no more for now
  kLater,   ///< somebody is stopped, or at it, for now
  kTaken,   ///< another one sends it again
  kNobody,  ///< nobody is there to read it, or it is not this slot's to be sent
  kBroken,  ///< it cannot be known, or had, what is to be sent
};

/// A place of the caller's, in its call from now on. nullptr: none is free.
template <typename Places>
auto* free_place(Places& places, std::uint64_t me) {
  for (auto& place : places) {
    std::uint64_t none = 0;
    // PAIR preload.call_place: sees that nobody is in a call by it
    if (words::replace(place.owner, none, me | kInCall)) return &place;
  }
  return static_cast<decltype(&places[0])>(nullptr);
}

/// The processes of a slot are those that send again, and not another one of this end that has a
/// slot of its own. `state`: of the end's face; `name`: the slot's; `fresh`: what it is to be if it
/// has none, not 0. Each of them asks before each step, and is answered the same.
template <typename State, typename Name>
bool claims_resend(State& state, Name& name, std::uint32_t fresh) {
  std::uint32_t ours = 0;
  // PAIR preload.resent: the same for all of them, before any claims by it
  if (words::replace(name, ours, fresh)) ours = fresh;
  std::uint64_t now = words::look(state);  // PAIR face.state
  while (now >> socket_face::kSendsAgain == 0) {
    const std::uint64_t next = now | std::uint64_t{ours} << socket_face::kSendsAgain;
    if (words::replace(state, now, next)) return true;  // PAIR face.state
  }
  return now >> socket_face::kSendsAgain == ours;
}

/// Takes the turn from the thread that `now`, of `sends`, names. False: it is not its any more.
template <typename Word>
bool take_resend(Word& sends, std::uint64_t now, std::int32_t closer) {
  // PAIR preload.gate: sees what that one has done
  return words::replace(sends, now, (now & (Slot::kClosed - 1)) | Slot::closed_by(closer));
}

/// The one that has the turn hands it on, as to a thread of its own. False: it has not any more.
template <typename Word>
bool hand_resend_on(Word& sends, std::int32_t from, std::int32_t to) {
  std::uint64_t now = words::look(sends);  // PAIR preload.gate: as in take_resend()
  while (going_back::is_closed_by(now, from)) {
    if (take_resend(sends, now, to)) return true;
    // Calls that find it closed and step back change the count in the same word.
    now = words::look(sends);  // PAIR preload.gate: as in take_resend()
  }
  return false;
}

/// The bytes that have been sent again, by one whose turn it is. False: the kernel's count is not
/// to be had, or impossible.
template <typename Word, typename Kernel>
bool count_again(Word& resent, std::uint64_t base, std::uint64_t most, std::uint64_t* at,
                 Kernel& kernel) {
  std::uint64_t sent = 0;
  if (base == Resent::kUnknown || !kernel.sent(&sent)) return false;
  const std::uint64_t by_kernel = sent - (base - 1);
  if (by_kernel < *at || by_kernel - *at > most) return false;
  // PAIR preload.resent: in the place of one that has not. If it fails, that one has
  words::replace(resent, *at, by_kernel);
  *at = by_kernel;
  return true;
}

/// One step of it. `closer`: the caller, in `sends`; `me`: its place's owner_word(); `most`: bytes
/// of a step.
template <typename Fence, typename Sends, typename Progress, typename Places, typename Kernel>
SentAgain send_some_again(Sends& sends, std::int32_t closer, Progress& progress, Places& places,
                          std::uint64_t me, std::uint64_t most, Kernel& kernel) {
  // PAIR preload.gate: if it is the caller's still, nobody has taken it
  const auto is_mine = [&] { return going_back::is_closed_by(words::look(sends), closer); };
  auto* mine = free_place(places, me);
  if (mine == nullptr) return is_mine() ? SentAgain::kLater : SentAgain::kTaken;
  const auto over = [&](SentAgain what) {
    end_call(mine->owner, mine->length, 0);
    return what;
  };
  begin_call<Fence>(mine->owner, mine->length, me, kernel.kControl);
  if (!is_mine()) return over(SentAgain::kTaken);
  bool asks = false;
  for (auto& other : places) {
    if (&other == mine) continue;
    const std::uint64_t owner = take_call(other.owner, other.length);
    if (owner != 0 && kernel.runs(owner)) return over(SentAgain::kLater);
    asks |= owner != 0;
  }
  std::uint64_t at = words::look(progress.resent);  // PAIR preload.resent: as below
  std::uint64_t base = words::look(progress.base);  // PAIR preload.resent: before the first byte
  if (base == 0) {
    std::uint64_t sent = 0;
    const std::uint64_t now = kernel.sent(&sent) ? sent + 1 : Resent::kUnknown;
    if (words::replace(progress.base, base, now)) base = now;  // PAIR preload.resent: as above
  }
  if (asks && !count_again(progress.resent, base, most, &at, kernel))
    return over(is_mine() ? SentAgain::kBroken : SentAgain::kTaken);
  const SentAgain what = kernel.send(at, *mine);
  if (what == SentAgain::kSome) {
    // PAIR preload.resent: if it fails, another one has counted them
    words::replace(progress.resent, at, at + kernel.count());
  }
  // What ends it holds if nobody has taken the turn meanwhile, and sent.
  const bool ends =
      what == SentAgain::kBroken || what == SentAgain::kAll || what == SentAgain::kNobody;
  return over(ends && !is_mine() ? SentAgain::kTaken : what);
}

}  // namespace clan::preload
