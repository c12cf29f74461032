#include "migrate/policy.h"

#include <time.h>

#include <bit>
#include <cstdint>

#include "attach/attach.h"
#include "clan/face/reasons.h"
#include "migrate/offer.h"
#include "migrate/rendezvous_backoff.h"
#include "os/sys.h"
#include "os/test_settings.h"
#include "state/hooks.h"
#include "state/remote.h"
#include "state/withdraw.h"
#include "table/fd_table.h"
#include "table/open_file.h"
#include "table/slot_table.h"

namespace clan::preload {
namespace {

using reasons::Why;

constexpr std::uint32_t kFirstOfferSends = 2;
constexpr std::uint32_t kFirstOfferReceives = 8;
constexpr std::uint32_t kFirstLook = reasons::kFirstCalls;  ///< after a request and its answer

std::uint32_t calls(const Socket& s) {
  return s.sends.load(std::memory_order_relaxed) + s.receives.load(std::memory_order_relaxed);
}

void consider(int fd, Socket& s) {
  // PAIR preload.shared: sees the pipe
  const auto state = s.state.load(std::memory_order_acquire);
  if (state == Socket::State::kKernel || state == Socket::State::kShared) return;
  KeepErrno keep;
  TryLockGuard once(s);
  if (!once || s.state_now() != state) return;
  if (s.open_file().pinned.load(std::memory_order_relaxed) != 0)
    return stay(fd, s, is_in_a_table(s.open_file()) ? Why::kPinned : Why::kNoMemory);
  // relaxed: enter_pipe() checks again
  if (!OpenFileState::is_alone(s.open_file().held.load(std::memory_order_relaxed))) {
    if (calls(s) < kFirstLook) return;
    say_why(fd, s, Why::kSeveral);
    for (auto* count : {&s.sends, &s.receives}) count->store(0, std::memory_order_relaxed);  // anew
    return;
  }
  if (state == Socket::State::kOffered) {
    if (is_remote(s)) {
      const std::uint32_t n = s.offer_calls.fetch_add(1, std::memory_order_relaxed);
      if (s.pipe || looks_at(n)) move_to_other_host(fd, s, nullptr);
      return;
    }
    return s.place == Socket::Place::kElsewhere ? go_on_in_directory(fd, s) : look_for_taker(fd, s);
  }
  if (s.client) {
    const bool used = s.sends.load(std::memory_order_relaxed) >= kFirstOfferSends ||
                      s.receives.load(std::memory_order_relaxed) >= kFirstOfferReceives;
    if (used || moves_at_once()) offer(fd, s);
    return;
  }
  const std::uint32_t n = calls(s);
  if (gives_up(s, n)) return stay(fd, s, Why::kNoPeer);
  const bool looks = n >= kFirstLook && n % kFirstLook == 0 && std::has_single_bit(n / kFirstLook);
  if (!looks && !(moves_at_once() && looks_at(n))) return;
  look_for_offer(fd, s);
  if (looks && s.state_now() == Socket::State::kTcp) say_why(fd, s, Why::kUnused, n);
}

}  // namespace

void before_send(int fd, Socket& s) {
  s.sends.fetch_add(1, std::memory_order_relaxed);
  consider(fd, s);
}

void before_receive(int fd, Socket& s) {
  if (moves_at_once()) consider(fd, s);
}

void was_connected(int fd, Socket& s) {
  if (moves_at_once() && s.state_now() == Socket::State::kTcp) consider(fd, s);
}

void was_accepted(int fd) {
  constexpr int kTurns = 20;
  const timespec nap{0, 100'000};  // the other end is about to return from connect()
  if (!moves_at_once()) return;
  KeepErrno keep;
  const SocketRef s = acquire(fd);
  for (int turn = 0; s && turn < kTurns && s->state_now() == Socket::State::kTcp; ++turn) {
    if (turn > 0) sys::call(SYS_nanosleep, &nap, nullptr);
    consider(fd, *s);
  }
}

void after_receive(int fd, Socket& s) {
  s.receives.fetch_add(1, std::memory_order_relaxed);
  consider(fd, s);
}

}  // namespace clan::preload
