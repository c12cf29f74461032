#include "stream/draining.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "clan/dekker.h"
#include "os/sys.h"
#include "state/call_place.h"
#include "state/open_file.h"
#include "state/socket.h"
#include "stream/gate_wait.h"
#include "stream/tcp_prefix.h"

namespace clan::preload {
namespace {

static_assert(sizeof(iovec) == 16 && offsetof(Reader, length) == offsetof(Reader, base) + 8 &&
              offsetof(iovec, iov_base) == 0 && offsetof(iovec, iov_len) == 8);

/// turns of a wait without a look at /proc: the lock is kept for a microsecond or two
constexpr int kTurnsBetweenLooks = 16;

}  // namespace

Draining::Draining(int fd, Socket& s) : fd_(fd), slot_(&s.open_file()) {
  if (s.inherited.load(std::memory_order_relaxed) ||  // relaxed: of this process
      !Slot::try_close(slot_->receives, me_)) [[unlikely]] {
    enter(s);
  } else {
    UntilOpen::found_open(s, s.receives_wait);
  }
}

Draining::~Draining() {
  if (reader_ == nullptr) {
    if (has_it_) Slot::open(slot_->receives, me_);
    return;
  }
  // Stopped behind any of these, it is known by what is left.
  end_call(reader_->owner, reader_->length, owner_word());
  if (has_it_) Slot::open(slot_->receives, me_);
  reader_->owner.store(0, std::memory_order_release);  // PAIR preload.call_place: as above
}

bool Draining::is_ours() const {
  // order: what was looked at, then the word, as with a sequence count
  std::atomic_thread_fence(std::memory_order_acquire);
  const std::uint64_t now = slot_->receives.load(std::memory_order_relaxed);
  return (now & Slot::kClosed) != 0 && now >> Slot::kCloser == closer();
}

ssize_t Draining::discard(std::size_t n) {
  if (reader_ == nullptr) return sys::recv(fd_, nullptr, n, MSG_TRUNC | MSG_DONTWAIT);
  begin_call<dekker::FullFence>(reader_->owner, reader_->length, owner_word(), n);
  ssize_t got = 0;
  if (is_ours()) {
    msghdr message{};
    message.msg_iov = reinterpret_cast<iovec*>(&reader_->base);
    message.msg_iovlen = 1;
    got = sys::call(SYS_recvmsg, fd_, &message, MSG_TRUNC | MSG_DONTWAIT);
  }
  reader_->length.store(0, std::memory_order_relaxed);  // relaxed: of this thread
  if (got != 0 || is_ours()) return got;
  errno = EBUSY;
  return -1;
}

Reader* Draining::free_reader() {
  const std::uint64_t mine = owner_word();
  for (std::uint32_t i = 0; i < 2 * Slot::kReaders; ++i) {
    const std::uint32_t number = (static_cast<std::uint32_t>(thread_id()) + i) % Slot::kReaders;
    Reader& reader = slot_->readers[number];
    std::uint64_t before = 0;
    if (i >= Slot::kReaders) {  // none: perhaps one of a thread that was killed, and read nothing
      before = reader.owner.load(std::memory_order_relaxed);  // relaxed: the exchange decides
      if ((before & kInCall) != 0 || condition_of(before) != Condition::kHasDied) continue;
    }
    // PAIR preload.call_place: sees that nobody reads by it
    if (!reader.owner.compare_exchange_strong(before, mine, std::memory_order_acq_rel)) continue;
    me_ = thread_id() | static_cast<std::int32_t>((number + 1) << Slot::kReader);
    return &reader;
  }
  return nullptr;
}

// From a thread that is stopped, or dead.
bool Draining::take_over(std::uint64_t now) {
  const std::uint64_t number = now >> Slot::kCloser >> Slot::kReader;
  const std::int32_t id = Slot::id_of(now);
  if (number == 0 || number > Slot::kReaders || id == thread_id()) return false;
  // PAIR preload.call_place: sees whose it is
  const std::uint64_t owner = slot_->readers[number - 1].owner.load(std::memory_order_acquire);
  if ((owner & Slot::kId) != static_cast<std::uint32_t>(id) ||
      condition_of(owner) == Condition::kRuns)
    return false;
  // PAIR preload.gate: closed in the place of its owner
  recounts_ = slot_->receives.compare_exchange_strong(
      now, (now & (Slot::kClosed - 1)) | Slot::closed_by(me_), std::memory_order_acq_rel);
  return recounts_;
}

// Under the lock. False: a thread of another process may be in the middle of reading.
bool Draining::others_read_nothing() {
  begin_looking<dekker::FullFence>();
  for (Reader& reader : slot_->readers) {
    const std::uint64_t owner = &reader == reader_ ? 0 : take_call(reader.owner, reader.length);
    if (owner == 0) continue;
    if (condition_of(owner) == Condition::kRuns) return false;
    recounts_ = true;
  }
  return true;
}

// Under the lock, and what threads that were killed have read has been counted.
void Draining::free_readers_of_dead() {
  for (Reader& reader : slot_->readers) {
    // PAIR preload.call_place: as above
    std::uint64_t owner = reader.owner.load(std::memory_order_acquire);
    if ((owner & kInCall) != 0 && condition_of(owner) == Condition::kHasDied)
      // PAIR preload.call_place: nobody reads by it
      reader.owner.compare_exchange_strong(owner, 0, std::memory_order_acq_rel);
  }
}

Draining::Turn Draining::try_enter(Socket& s, bool looks_at_owner) {
  slot_ = &s.open_file();  // fork moves it
  reader_ = free_reader();
  if (reader_ != nullptr) {
    // relaxed: the exchange decides
    const std::uint64_t now = slot_->receives.load(std::memory_order_relaxed);
    const bool closed = (now & Slot::kClosed) != 0;
    // Once it has moved no thread that is counted is in the kernel: it steps back, or was killed.
    if (closed ? looks_at_owner && take_over(now) : Slot::try_close_over(slot_->receives, me_)) {
      if (others_read_nothing()) return Turn::kHasIt;
      Slot::open(slot_->receives, me_);
    }
    // PAIR preload.call_place: nobody reads by it
    reader_->owner.store(0, std::memory_order_release);
    reader_ = nullptr;
  }
  return Turn::kAgain;
}

void Draining::enter(Socket& s) {
  const bool shared = s.inherited.load(std::memory_order_relaxed);  // relaxed: of this process
  UntilOpen until(fd_, s);
  for (int turn = 1;; ++turn) {
    if (shared) {
      const bool looks = s.receives_wait.gave_up() || turn % kTurnsBetweenLooks == 0;
      if (try_enter(s, looks) == Turn::kHasIt) break;
    } else {
      slot_ = &s.open_file();
      if (Slot::try_close_over(slot_->receives, me_)) break;
    }
    if ((has_it_ = until.wait(slot_->receives))) continue;
    return;
  }
  if (s.receives_wait.is_on()) s.receives_wait.over(s.pipe.owner_waits());
  if (!recounts_ && !until.took_over()) return;
  recount_doorbells(fd_, s);
  if (shared) free_readers_of_dead();
}

}  // namespace clan::preload
