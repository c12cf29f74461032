#include "stream/doorbell.h"

#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "clan/clock.h"
#include "clan/dekker.h"
#include "clan/pipe.h"
#include "clan/socket_face.h"
#include "clan/words.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/bells.h"
#include "state/face.h"
#include "state/remote.h"
#include "state/socket.h"
#include "stream/draining.h"
#include "stream/tcp_prefix.h"

namespace clan::preload {
namespace {

using socket_face::kBells;
using socket_face::kRingerSends;
using socket_face::kSendsDoorbell;
using socket_face::kSwallowed;

/// how long a thread that rings waits for another one
constexpr std::uint64_t kForAnotherNs = 2'000'000;
/// whether they live, at most
constexpr std::uint64_t kBetweenLooksNs = 1'000'000;

// By its name in kBells. When in doubt: yes.
bool lives(std::uint64_t word) {
  const auto name = static_cast<std::uint32_t>(word >> socket_face::kRinger);
  return name != 0 && !sys::has_ended(name);
}

}  // namespace

Ringing::Ringing(PipePage::Face& face, WaitBudget& call_waits) : bells_(face.words[kBells]) {
  const std::uint64_t me = bells::name_of(thread_id());
  CallWait wait(call_waits, kForAnotherNs);
  for (std::uint64_t now = bells_.load(std::memory_order_relaxed);;) {
    if ((now & socket_face::kBellsClosed) != 0) {
      allowed_ = false;
      return;
    }
    const std::uint64_t other = now & bells::kName;
    std::uint64_t next = now + 1;
    if (other == 0) {
      next |= me;
    } else if (other != me) {  // else a signal has come between
      if (wait.goes_on(monotonic_ns())) {
        sched_yield();
        now = bells_.load(std::memory_order_relaxed);
        continue;
      }
      if (!lives(now)) next = (bells::without_named(now) + 1) | me;  // it was killed
    }
    // PAIR face.bells
    if (!words::replace(bells_, now, next)) continue;
    me_ = (next & bells::kName) == me && other != me ? me : 0;
    return;
  }
}

Ringing::~Ringing() {
  if (!allowed_) return;
  std::uint64_t now = bells_.load(std::memory_order_relaxed), next;
  do {
    next = now - 1;
    if (me_ != 0 && (now & bells::kName) == me_) next &= ~bells::kName;
    // PAIR face.bells: the doorbell has been sent
  } while (!words::replace(bells_, now, next));
}

DoorbellCall::DoorbellCall(PipePage::Face& face) : bells_(face.words[kBells]) {
  const std::uint64_t me = bells::name_of(thread_id());
  std::uint64_t next, now = bells_.load(std::memory_order_relaxed);  // relaxed: a first guess
  do {
    if ((now & socket_face::kBellsClosed) != 0) return;
    named_before_ = (now & bells::kName) == me;
    // Of those that are waited for the first is named.
    names_ = (now & kRingerSends) == 0 || named_before_;
    next = now + kSendsDoorbell;
    if (names_) next = (next & ~bells::kName) | kRingerSends | me;
    // PAIR face.bells: a thread that closes the gate sees it
  } while (!words::replace(bells_, now, next));
  allowed_ = true;
}

DoorbellCall::~DoorbellCall() {
  if (!allowed_) return;
  std::uint64_t now = bells_.load(std::memory_order_relaxed), next;  // relaxed: as above
  do {
    next = now - kSendsDoorbell;
    if (names_ && (now & bells::kName) == bells::name_of(thread_id()))
      next &= ~(kRingerSends | (named_before_ ? 0 : bells::kName));
    // PAIR face.bells: the doorbell has been sent
  } while (!words::replace(bells_, now, next));
}

ssize_t send_doorbell(int fd) {
  const char byte = 0;
  return sys::send(fd, &byte, sizeof byte, MSG_DONTWAIT | MSG_NOSIGNAL);
}

namespace {

// The gate is closed. `of`: which count of ringers is waited for, all or those of
// bells::kSenders.
bool wait_for_ringers(std::atomic<std::uint64_t>& bells, std::uint64_t of) {
  const std::uint64_t me = bells::name_of(thread_id());
  const std::uint64_t start = monotonic_ns();
  std::uint64_t look_at = start + kBetweenLooksNs;
  // PAIR face.bells: sees that a doorbell has been sent
  std::uint64_t now = words::look(bells);
  // PAIR face.bells: as above
  for (int turns = 1; (now & of) != 0; ++turns, now = words::look(bells)) {
    const std::uint64_t other = now & bells::kName, time = monotonic_ns();
    if (other == me) return false;
    // One of those that only ring that is not named was killed, nearly for sure.
    if (time - start > bells::kForRingersNs) return of == bells::kRingers && other == 0;
    const bool looks = turns % 64 == 0 || time >= look_at;  // a yield may take a slice of time
    if (looks) look_at = time + kBetweenLooksNs;
    if (other != 0 && looks && !lives(now)) {
      // PAIR face.bells: in the place of a ringer that was killed
      words::replace(bells, now, bells::without_named(now));
      continue;
    }
    sched_yield();
  }
  return true;
}

}  // namespace

bool silence(Socket& s) {
  auto& bells = s.mine().words[kBells];
  words::set_bits(bells, socket_face::kBellsClosed);  // PAIR face.bells
  return wait_for_ringers(bells, bells::kSenders);
}

bool silence_other_end(Socket& s) {
  auto& bells = s.theirs().words[kBells];
  words::set_bits(bells, socket_face::kBellsClosed);  // PAIR face.bells
  return wait_for_ringers(bells, bells::kRingers);
}

namespace {

constexpr std::uint64_t kAtOnce = 4096;

}  // namespace

bool swallow_doorbells(int fd, Socket& s, std::uint64_t limit) {
  if (has_remote_bells(s) && take_remote_bells(fd, s, limit)) return true;
  const Draining draining(fd, s);
  if (!draining) return false;
  auto& swallowed = s.mine().words[kSwallowed];
  for (;;) {
    std::uint64_t had = swallowed.load(std::memory_order_relaxed);
    // order: the count is read after the doorbell that told of it
    const std::uint64_t rung = std::min(limit, doorbells_of(s.theirs(), std::memory_order_seq_cst));
    if (had >= rung) return true;
    const ssize_t n =
        sys::recv(fd, nullptr, std::min(rung - had, kAtOnce), MSG_TRUNC | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (!s.inherited.load(std::memory_order_relaxed)) return false;  // relaxed: of this process
      recount_doorbells(fd, s);  // one that was killed may have read them
      return swallowed.load(std::memory_order_relaxed) >= rung;
    }
    note_end(fd, s, n);
    if (n <= 0) return true;
    // relaxed: a count. It fails if a process has counted that has another lock, as it was executed
    // or got the socket passed
    if (!swallowed.compare_exchange_strong(had, had + static_cast<std::uint64_t>(n),
                                           std::memory_order_relaxed))
      recount_doorbells(fd, s);
  }
}

std::int64_t nap_beside_ringer(Socket& s) {
  constexpr std::uint64_t kLivesNs = 10'000'000, kWasKilledNs = 1'000'000'000;
  constexpr std::uint64_t kShortestNs = 1'000'000, kPart = 4;
  // PAIR face.bells: Dekker with Announced, behind the wish for a doorbell
  const std::uint64_t bells = dekker::look(s.theirs().words[kBells]);
  if ((bells & bells::kRingers) == 0) return -1;
  auto relaxed = std::memory_order_relaxed;  // numbers by themselves; two threads look twice
  const std::uint64_t now = monotonic_ns(), next = s.ringer_look_ns.load(relaxed);
  if (s.ringer.exchange(bells, relaxed) != bells || next + kWasKilledNs < now) {
    s.ringer_since_ns.store(now, relaxed);
  } else if (next > now) {
    return static_cast<std::int64_t>(std::max(next - now, kShortestNs));
  }
  // One that is stopped, or a lie, is looked at ever more seldom.
  const bool may_live = (bells & bells::kName) == 0 || lives(bells);
  const std::uint64_t since = now - s.ringer_since_ns.load(relaxed);
  const std::uint64_t nap =
      may_live ? std::clamp(since / kPart, kLivesNs, kWasKilledNs) : kWasKilledNs;
  s.ringer_look_ns.store(now + nap, relaxed);
  return static_cast<std::int64_t>(nap);
}

bool another_rings(const Socket& s) {
  // relaxed: a glance
  const std::uint64_t bells = s.mine().words[kBells].load(std::memory_order_relaxed);
  const std::uint64_t me = bells::name_of(thread_id());
  const std::uint64_t other = (bells & kRingerSends) != 0 ? bells & bells::kName : 0;
  return (bells & bells::kSenders) != 0 && other != 0 && other != me && lives(bells);
}

bool ringer_was_killed(const Socket& s) {
  const std::uint64_t bells = s.mine().words[kBells].load(std::memory_order_relaxed);
  return (bells & bells::kRingers) != 0 && (bells & bells::kName) != 0 && !lives(bells);
}

}  // namespace clan::preload
