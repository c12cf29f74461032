#include "stream/bell_call.h"

#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "clan/clock.h"
#include "clan/dekker.h"
#include "clan/socket_face.h"
#include "clan/words.h"
#include "os/sys.h"
#include "state/bells.h"
#include "state/call_place.h"
#include "state/open_file.h"
#include "state/socket.h"

namespace clan::preload {
namespace {

using socket_face::kBellsClosed;
using socket_face::kIrrevocable;
using socket_face::kRingerIrrevocable;

constexpr char kByte = 0;

static_assert(sizeof(cmsghdr) == kControlBytes && offsetof(cmsghdr, cmsg_len) == 0 &&
              offsetof(Ringer, kind) == offsetof(Ringer, length) + 8);
constexpr std::uint64_t kMeansNothing = IPPROTO_TCP;  ///< any level but SOL_SOCKET

}  // namespace

ssize_t send_by(Ringer& place, int fd, iovec bytes) {
  place.kind.store(kMeansNothing, std::memory_order_relaxed);  // relaxed: of this thread
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = &place.length;
  message.msg_controllen = sizeof(cmsghdr);
  return sys::call(SYS_sendmsg, fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

BellCall::BellCall(Socket& s) : bells_(s.mine().words[socket_face::kBells]) {
  Slot& slot = s.open_file();
  // Of counters that processes share: others see no places of a socket's own.
  if (&slot != &s.own_slot) place_ = free_place(slot);
  if (place_ == nullptr) {
    allowed_ = count_in_bells();
    return;
  }
  begin_call<dekker::FullFence>(place_->owner, place_->length, owner_word(), kControlBytes);
  // relaxed: behind the fence
  allowed_ = (bells_.load(std::memory_order_relaxed) & kBellsClosed) == 0;
}

BellCall::~BellCall() {
  if (place_ != nullptr) {
    end_call(place_->owner, place_->length, 0);
  } else if (allowed_) {
    count_out_of_bells();
  }
}

ssize_t BellCall::send(int fd) {
  if (place_ == nullptr) return sys::send(fd, &kByte, sizeof kByte, MSG_DONTWAIT | MSG_NOSIGNAL);
  const ssize_t sent = send_by(*place_, fd, {const_cast<char*>(&kByte), sizeof kByte});
  if (sent >= 0 || errno != EINVAL) return sent;
  // Closed before the length is taken back. Else it is no kernel that lets such data pass.
  // relaxed: behind the length, which it was closed before
  if ((bells_.load(std::memory_order_relaxed) & kBellsClosed) != 0) return 0;
  end_call(place_->owner, place_->length, 0);
  place_ = nullptr;
  allowed_ = count_in_bells();
  return allowed_ ? send(fd) : 0;
}

Ringer* BellCall::free_place(Slot& slot) const {
  const std::uint64_t me = owner_word();
  for (std::uint32_t i = 0; i < 2 * Slot::kRingers; ++i) {
    Ringer& ringer = slot.ringers[(static_cast<std::uint32_t>(thread_id()) + i) % Slot::kRingers];
    std::uint64_t before = 0;
    if (i >= Slot::kRingers) {  // none: perhaps one of a thread that was killed
      before = ringer.owner.load(std::memory_order_relaxed);  // relaxed: the exchange decides
      if (before != 0 && condition_of(before) != Condition::kHasDied) continue;
    }
    // PAIR preload.call_place: sees that nobody rings by it
    if (words::replace(ringer.owner, before, me)) return &ringer;
  }
  return nullptr;
}

bool BellCall::count_in_bells() {
  const std::uint64_t me = bells::name_of(thread_id());
  std::uint64_t next, now = bells_.load(std::memory_order_relaxed);  // relaxed: a first guess
  do {
    if ((now & kBellsClosed) != 0) return false;
    named_before_ = (now & bells::kName) == me;
    // Of those that are waited for the first is named.
    names_ = (now & kRingerIrrevocable) == 0 || named_before_;
    next = now + kIrrevocable;
    if (names_) next = (next & ~bells::kName) | kRingerIrrevocable | me;
    // PAIR face.bells: a thread that closes the gate sees it
  } while (!words::replace(bells_, now, next));
  return true;
}

void BellCall::count_out_of_bells() {
  std::uint64_t now = bells_.load(std::memory_order_relaxed), next;  // relaxed: as above
  do {
    next = now - kIrrevocable;
    if (names_ && (now & bells::kName) == bells::name_of(thread_id()))
      next &= ~(kRingerIrrevocable | (named_before_ ? 0 : bells::kName));
    // PAIR face.bells: the doorbell has been sent
  } while (!words::replace(bells_, now, next));
}

bool take_bells_back(Slot& slot) {
  const std::uint64_t start = monotonic_ns();
  begin_looking<dekker::FullFence>();
  for (Ringer& ringer : slot.ringers) {
    for (;;) {
      const std::uint64_t owner = take_call(ringer.owner, ringer.length);
      if (owner == 0 || condition_of(owner) != Condition::kRuns) break;
      if (monotonic_ns() - start > bells::kForRingersNs) return false;
      sched_yield();
    }
  }
  return true;
}

bool another_is_in_its_call(const Slot& slot) {
  for (const Ringer& ringer : slot.ringers) {
    const std::uint64_t owner = ringer.owner.load(std::memory_order_relaxed);  // relaxed: a glance
    if ((owner & kInCall) != 0 && (owner & ~kInCall) != owner_word() &&
        condition_of(owner) == Condition::kRuns)
      return true;
  }
  return false;
}

}  // namespace clan::preload
