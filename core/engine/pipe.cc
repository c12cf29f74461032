#include "clan/pipe.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fd.h"
#include "base/mapping.h"
#include "clan/clock.h"
#include "clan/log.h"
#include "clan/system_call.h"
#include "engine/pipe_ring.h"
#include "shm/asymmetric_fence.h"

namespace clan {
namespace {

constexpr std::uint8_t kBytesRecord = 1;
constexpr std::uint8_t kEndRecord = 2;
constexpr std::uint8_t kLeaveRecord = 3;

constexpr std::uint64_t kStampBytes = sizeof(PipeStamp);  ///< in front of each record's bytes
constexpr std::uint64_t kLeastPiece = kCacheLine - shm::kRingHeadBytes - kStampBytes;  ///< takes one line

constexpr std::uint32_t kAnybody = 1;  ///< of `waiting`; no thread of a program has this id but init's
constexpr std::uint32_t kWindowWanted = 2;  ///< of a sender's `waiting`: room in the window will do
constexpr std::uint64_t kFewestLines = 256;    ///< a limit lets through, unless the ring is small
constexpr std::uint64_t kPublishLines = 1024;  ///< that have been read, at most, before the writer is told
constexpr std::uint64_t kFirstReceiveBuffer = 128 * 1024;  ///< of one that grows
constexpr std::uint64_t kMostLimit = std::uint64_t{1} << 32;
constexpr int kMostLooks = 64;          ///< at a head that moves
constexpr int kSpinsBeforeYield = 200;
constexpr int kYieldsBeforeNap = 64;
constexpr long kNapNs = 1'000'000;
constexpr std::uint64_t kLockPatienceNs = 10'000'000'000u;  ///< with a lock, whoever has it
/// With one whose owner is no thread that we see: it has died, or it counts in another pid namespace.
constexpr std::uint64_t kUnseenPatienceNs = 500'000'000;
/// What a nap counts for at most, so that the time in which we were stopped, as the owner then was, does not.
constexpr std::uint64_t kMostOfANapNs = 100'000'000;
constexpr std::uint32_t kMostThreadId = 1u << 22;  ///< the kernel's limit
/// With the thread's id in a lock: it releases memory, perhaps of the other end's ring.
constexpr std::uint32_t kReleases = 1u << 31;
constexpr std::uint64_t kReleasePatienceNs = 2'000'000;  ///< of a sender, that then has no room
constexpr std::uint64_t kSmallLines = 4096 / kCacheLine;

struct Thread {
  std::uint32_t id = 0;
  std::atomic<std::uint32_t> locks{0};  ///< that it has, or waits for
  std::uint64_t past_pipes = 0;         ///< order_stamp() of when it last wrote by another way
};
// initial-exec: signal handlers read it too
thread_local Thread t_thread __attribute__((tls_model("initial-exec")));

std::uint32_t thread_id() {
  if (t_thread.id == 0) t_thread.id = static_cast<std::uint32_t>(sys::call(SYS_gettid));
  return t_thread.id;
}

// Between a store that the other side looks for and a load of what it stores: one of us sees the other's.
void store_load_fence() {
#if defined(__SANITIZE_THREAD__)
  shm::AsymmetricFence::full();  // ThreadSanitizer knows no fences
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

std::size_t bytes_for(std::uint32_t ring_bytes) { return kPageSize + 2 * std::size_t{ring_bytes}; }

std::size_t total(const iovec* buffers, int count) {
  std::size_t n = 0;
  for (int i = 0; i < count; ++i) n += buffers[i].iov_len;
  return n;
}

std::atomic<Pipe::CopyGuard> copy_guard{nullptr};

// `copy()` touches the application's buffers. False: they are not there.
template <typename Copy>
bool guarded(Copy& copy) {
  const Pipe::CopyGuard guard =
      copy_guard.load(std::memory_order_relaxed);  // relaxed: set before there is a pipe
  if (guard == nullptr) {
    copy();
    return true;
  }
  return guard([](void* argument) { (*static_cast<Copy*>(argument))(); }, &copy);
}

// Walks through the buffers of an application.
class Cursor {
 public:
  Cursor(const iovec* buffers, int count) : at_(buffers), end_(buffers + count) {}

  // Copies `n` bytes out of the buffers, which hold as many.
  void gather(std::byte* to, std::size_t n) {
    while (n > 0) {
      const std::size_t k = step(n);
      if (k > 0) std::memcpy(to, static_cast<const std::byte*>(at_->iov_base) + done_, k);
      to += k;
      n -= k;
      advance(k);
    }
  }

  // Copies `n` bytes into the buffers, which have room for as many. Null buffers discard.
  void scatter(const std::byte* from, std::size_t n) {
    while (n > 0) {
      const std::size_t k = step(n);
      if (k > 0 && at_->iov_base != nullptr) {
        std::memcpy(static_cast<std::byte*>(at_->iov_base) + done_, from, k);
      }
      from += k;
      n -= k;
      advance(k);
    }
  }

 private:
  std::size_t step(std::size_t n) const { return at_ == end_ ? n : std::min(n, at_->iov_len - done_); }
  void advance(std::size_t k) {
    done_ += k;
    while (at_ != end_ && done_ == at_->iov_len) {
      ++at_;
      done_ = 0;
    }
  }
  const iovec* at_;
  const iovec* end_;
  std::size_t done_ = 0;
};

}  // namespace

// The lock of one side of one end. Processes that share the end take it, and the other end when it does our
// part in going back; that one can also write whatever it likes there. So it is waited for no longer than
// kLockPatienceNs, whatever the word says: nobody keeps a lock for longer than a copy takes.
class Pipe::Locked {
 public:
  Locked(const Pipe& pipe, std::atomic<std::uint32_t>& word, bool may_give_up = false) : word_(word) {
    const std::uint32_t me = thread_id();
    // Counted before the word is ours and until it is not: a handler has to find both.
    const std::uint32_t outer = t_thread.locks.load(std::memory_order_relaxed);
    t_thread.locks.store(outer + 1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    std::uint32_t owner = 0;
    // PAIR pipe.lock: sees the cursors the last owner left
    if (!word_.compare_exchange_strong(owner, me, std::memory_order_acquire, std::memory_order_relaxed))
        [[unlikely]] {
      err_ = pipe.wait_for_lock(word_, me, outer > 0, may_give_up);
    }
  }
  ~Locked() {
    // PAIR pipe.lock: publishes the cursors
    if (err_ == 0) word_.store(0, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    t_thread.locks.store(t_thread.locks.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  int err() const { return err_; }

 private:
  std::atomic<std::uint32_t>& word_;
  int err_ = 0;
};

// 0: the lock is ours. `in_handler`: this thread was in a call already, so its own id may well be its own.
// `may_give_up`: EBUSY, if memory is being released and that does not end, as its thread has been stopped.
int Pipe::wait_for_lock(std::atomic<std::uint32_t>& word, std::uint32_t me, bool in_handler,
                        bool may_give_up) const {
  const int saved_errno = errno;
  std::uint64_t last = 0, waited = 0, unseen = 0;
  int err = 0;
  for (int round = 0; err == 0; ++round) {
    std::uint32_t owner = 0;
    for (int i = 0; i < kSpinsBeforeYield; ++i) {
      owner = 0;
      // PAIR pipe.lock: as above
      if (word.compare_exchange_strong(owner, me, std::memory_order_acquire, std::memory_order_relaxed)) {
        errno = saved_errno;
        return 0;
      }
      if (owner == me && in_handler) {
        errno = saved_errno;
        return EDEADLK;
      }
      cpu_pause();
    }
    if (broken()) {
      err = EPROTO;
    } else if (round < kYieldsBeforeNap) {
      sched_yield();
    } else {
      // A nap, and not one more yield, lets an owner run that has a lower priority.
      const timespec nap{0, kNapNs};
      sys::call(SYS_nanosleep, &nap, nullptr);
      const std::uint64_t now = monotonic_ns();
      const std::uint64_t step = last == 0 ? 0 : std::min(now - last, kMostOfANapNs);
      last = now;
      waited += step;
      const bool releases = (owner & kReleases) != 0;
      const std::uint32_t thread = owner & ~kReleases;
      const bool seen = thread <= kMostThreadId && owner != me && sys::exists(static_cast<pid_t>(thread));
      unseen = seen ? 0 : unseen + step;
      if (thread > kMostThreadId || unseen > (releases ? 4 : 1) * kUnseenPatienceNs) {
        broke("the owner of a lock has died");
        err = EPROTO;
      } else if (waited > kLockPatienceNs) {
        broke("a lock that is not let go");
        err = EPROTO;
      } else if (may_give_up && releases && seen && waited > kReleasePatienceNs) {
        err = EBUSY;
      }
    }
  }
  errno = saved_errno;
  return err;
}

void Pipe::after_fork_in_child() { t_thread.id = 0; }

Pipe::Pipe(PipePage* page, std::size_t bytes, int memfd, std::uint64_t inode, int end)
    : page_(page), bytes_(bytes), memfd_(memfd), inode_(inode), end_(end) {
  const std::size_t ring = (bytes - kPageSize) / 2;
  lines_ = ring / kCacheLine;
  std::byte* rings = reinterpret_cast<std::byte*>(page) + kPageSize;
  out_ = rings + (end == 0 ? 0 : ring);
  in_ = rings + (end == 0 ? ring : 0);
}

Pipe::Pipe(Pipe&& other) noexcept { *this = std::move(other); }

Pipe& Pipe::operator=(Pipe&& other) noexcept {
  if (this != &other) {
    reset();
    page_ = std::exchange(other.page_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    memfd_ = std::exchange(other.memfd_, -1);
    inode_ = other.inode_;
    end_ = other.end_;
    lines_ = other.lines_;
    out_ = std::exchange(other.out_, nullptr);
    in_ = std::exchange(other.in_, nullptr);
    peer_cpu_.store(other.peer_cpu_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    broken_.store(other.broken_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    large_.store(other.large_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  return *this;
}

void Pipe::guard_copies(CopyGuard guard) { copy_guard.store(guard, std::memory_order_relaxed); }

Pipe::~Pipe() { reset(); }

void Pipe::reset() {
  if (page_ != nullptr) sys::munmap(page_, bytes_);
  if (memfd_ >= 0) sys::close(memfd_);
  page_ = nullptr;
  memfd_ = -1;
}

Result<Pipe> Pipe::create(const char* name, std::uint32_t ring_bytes, int end) {
  if (!std::has_single_bit(ring_bytes) || ring_bytes < 4096 || ring_bytes > (64u << 20) ||
      (end != 0 && end != 1)) {
    return Error{EINVAL, "a pipe's ring has a power of two from 4 KiB to 64 MiB"};
  }
  auto fd = create_memfd(name, bytes_for(ring_bytes));
  if (!fd) return fd.error();
  struct stat st {};
  if (sys::fstat(fd->get(), &st) != 0) return errno_error("looking at a pipe");
  auto mapping = Mapping::map(fd->get(), bytes_for(ring_bytes), Mapping::Access::kReadWrite);
  if (!mapping) return mapping.error();
  auto* page = reinterpret_cast<PipePage*>(mapping->release());
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  page->head.created_ns =
      static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
  page->head.ring_bytes = ring_bytes;
  page->head.version = PipePage::kVersion;
  page->head.magic = PipePage::kMagic;
  return Pipe(page, bytes_for(ring_bytes), fd->release(), st.st_ino, end);
}

Result<Pipe> Pipe::open(int memfd, int end) {
  Fd fd(memfd);
  struct stat st {};
  if (sys::fstat(fd.get(), &st) != 0) return errno_error("looking at a pipe");
  const int seals = sys::fcntl(fd.get(), F_GET_SEALS);
  constexpr int kWanted = F_SEAL_SHRINK | F_SEAL_GROW;
  if (seals < 0 || (seals & kWanted) != kWanted) return Error{EPROTO, "a pipe that is not sealed"};
  const auto size = static_cast<std::size_t>(st.st_size);
  if (size < bytes_for(4096) || size > bytes_for(64u << 20)) {
    return Error{EPROTO, "a pipe of an impossible size"};
  }
  auto mapping = Mapping::map(fd.get(), size, Mapping::Access::kReadWrite);
  if (!mapping) return mapping.error();
  auto* page = reinterpret_cast<PipePage*>(mapping->data());
  // The size of the file decides, not what the head says of it.
  const std::size_t ring = (size - kPageSize) / 2;
  if (page->head.magic != PipePage::kMagic || page->head.version != PipePage::kVersion ||
      !std::has_single_bit(ring) || bytes_for(static_cast<std::uint32_t>(ring)) != size) {
    return Error{EPROTO, "not a pipe of this version of CLAN"};
  }
  mapping->release();
  return Pipe(page, size, fd.release(), st.st_ino, end);
}

Result<Pipe> Pipe::at_other_end() const {
  // Of a shared mapping, nothing to begin with makes another one of the same pages.
  void* copy = ::mremap(page_, 0, bytes_, MREMAP_MAYMOVE);
  if (copy == MAP_FAILED) return errno_error("mapping a pipe once more");
  return Pipe(static_cast<PipePage*>(copy), bytes_, -1, inode_, 1 - end_);
}

void Pipe::broke(const char* what) const {
  page_->head.broken.store(1, std::memory_order_relaxed);
  if (!broken_.exchange(true, std::memory_order_relaxed)) CLAN_WARN("a connection's shared memory: %s", what);
}

// --- sending ---------------------------------------------------------------------------------------

namespace {

PipeProducer load(const PipePage::Sender& s) {
  auto relaxed = std::memory_order_relaxed;  // under the lock
  return {s.tail.load(relaxed),    s.bound.load(relaxed),   s.consumed.load(relaxed), s.look_at.load(relaxed),
          s.skip_at.load(relaxed), s.jump_at.load(relaxed), s.jump_gap.load(relaxed)};
}

void store(PipePage::Sender& s, const PipeProducer& p) {
  auto relaxed = std::memory_order_relaxed;  // under the lock
  s.tail.store(p.tail, relaxed);
  s.bound.store(p.bound, relaxed);
  s.consumed.store(p.consumed, relaxed);
  s.look_at.store(p.look_at, relaxed);
  s.skip_at.store(p.skip_at, relaxed);
  s.jump_at.store(p.jump_at, relaxed);
  s.jump_gap.store(p.jump_gap, relaxed);
}

// After a record that was planned by reserve() has been published.
void advance(const PipeRing& ring, PipePage::Sender& s, PipeProducer& p, const PipeSlot& slot,
             std::uint64_t most) {
  auto relaxed = std::memory_order_relaxed;  // under the lock
  ring.advance(p, slot);
  p.bound = ring.next_bound(p, most);
  // Until we are here again.
  const std::uint64_t touched = std::min(std::max(ring.index(p.tail) + 1, p.bound), ring.lines);
  if (touched > s.touched.load(relaxed)) s.touched.store(touched, relaxed);
  store(s, p);
}

void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) {
  // relaxed: one writer, under the lock
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

// After something has been published: does the other side sleep? Once per sleep.
bool take_waiting(std::atomic<std::uint32_t>& waiting) {
  store_load_fence();
  // PAIR pipe.waiting: Dekker with want_data() and want_room()
  return waiting.load(std::memory_order_relaxed) != 0 && waiting.exchange(0, std::memory_order_seq_cst) != 0;
}

}  // namespace

void Pipe::set_limits(std::uint64_t sends, std::uint64_t receives, bool grows) {
  auto& mine = page_->ends[end_];
  auto relaxed = std::memory_order_relaxed;  // one number each, which the other end bounds
  mine.sender.limit.store(std::min(sends, kMostLimit), relaxed);
  mine.receiver.limit.store(std::min(receives, kMostLimit) << 1 | (grows ? 1 : 0), relaxed);
}

// That an end may send and the other one not have read.
std::uint64_t Pipe::most_lines(int end, PipeRoom room) const {
  auto relaxed = std::memory_order_relaxed;
  const std::uint64_t sends = page_->ends[end].sender.limit.load(relaxed);
  const std::uint64_t word = page_->ends[1 - end].receiver.limit.load(relaxed);
  std::uint64_t receives = std::min(word >> 1, kMostLimit);
  if ((word & 1) != 0) receives = std::min(receives, std::max(sends / 4, kFirstReceiveBuffer));
  const std::uint64_t whole = lines_ - lines_ / 8;
  std::uint64_t most = whole;
  if (sends != 0) {
    most = std::clamp((std::min(sends, kMostLimit) + receives) / kCacheLine,
                      std::min(kFewestLines, lines_ / 2), whole);
  }
  return room == PipeRoom::kWhole ? most : std::min(most, kPipeWindow / kCacheLine);
}

// The other end has slept or answered since this was last asked: no stream without a pause. Under the lock.
bool Pipe::is_calm() const {
  auto& mine = page_->ends[end_];
  auto relaxed = std::memory_order_relaxed;  // hints
  const std::uint64_t head = mine.receiver.head.load(relaxed);
  const bool calm = mine.sender.rang.load(relaxed) != 0 || mine.sender.answered.load(relaxed) != head;
  mine.sender.rang.store(0, relaxed);
  mine.sender.answered.store(head, relaxed);
  return calm;
}

// Plans a record of `n` bytes, or of fewer. 1 = planned, 0 = no room, -1 = broken.
int Pipe::plan(const PipeRing& ring, PipeProducer& p, std::uint64_t most, std::uint64_t* n,
               PipeSlot* slot) const {
  auto& peer = page_->ends[1 - end_].receiver;
  // PAIR pipe.credit: the reader has finished with the lines before it
  auto credit = [&] { return peer.credit.load(std::memory_order_acquire); };
  // A line stays for put_last().
  int rc = ring.reserve(p, kStampBytes + *n + kCacheLine, most + 1, credit, slot);
  while (rc == 0 && *n > kLeastPiece) {  // not all of it: then part of it
    *n /= 2;
    rc = ring.reserve(p, kStampBytes + *n + kCacheLine, most + 1, credit, slot);
  }
  slot->lines = shm::lines_for(kStampBytes + *n);
  if (rc < 0) broke("impossible credit");
  return rc;
}

Pipe::Done Pipe::send(const iovec* buffers, int count, PipeRoom room) {
  Done done;
  auto& sender = page_->ends[end_].sender;
  auto& peer = page_->ends[1 - end_].receiver;
  const std::size_t wanted = total(buffers, count);
  if (wanted == 0) return done;
  {
    Locked lock(*this, sender.lock, true);
    if (lock.err() == EBUSY) return done;  // no room for now
    if ((done.err = lock.err()) != 0) return done;
    if (broken()) return {0, false, EPROTO};
    if (sender.ended.load(std::memory_order_relaxed) != 0) return {0, false, EPIPE};
    const PipeRing ring{lines_};
    const std::uint64_t piece = std::min<std::uint64_t>(shm::kRingPiece, ring.max_payload()) - kStampBytes;
    const PipeStamp stamp = PipeStamp::make(order_stamp(), t_thread.past_pipes);
    const std::uint16_t cpu = current_cpu_tag();
    Cursor cursor(buffers, count);
    while (done.bytes < wanted) {
      std::uint64_t n = std::min<std::uint64_t>(wanted - done.bytes, piece);
      const std::uint64_t tail = sender.tail.load(std::memory_order_relaxed);  // under the lock, as is the bound
      PipeSlot slot{tail, tail, shm::lines_for(kStampBytes + n), 0};
      PipeProducer p;
      std::uint64_t most = 0;
      const bool goes_on = ring.goes_on(tail, sender.bound.load(std::memory_order_relaxed), slot.lines);
      if (!goes_on) [[unlikely]] {
        p = load(sender);
        p.calm = is_calm();
        most = most_lines(end_, room);
        const int rc = plan(ring, p, most, &n, &slot);
        if (rc < 0) return {0, false, EPROTO};
        if (rc == 0) break;
      }
      std::byte* payload = ring.payload_at(out_, slot);
      std::memcpy(payload, &stamp, kStampBytes);
      auto copy = [&] { cursor.gather(payload + kStampBytes, n); };
      if (!guarded(copy)) {
        done.err = EFAULT;
        break;
      }
      ring.publish(out_, slot,
                   shm::RingHead::make(static_cast<std::uint32_t>(kStampBytes + n), kBytesRecord, cpu));
      if (goes_on) {
        sender.tail.store(tail + slot.lines, std::memory_order_relaxed);
      } else {
        advance(ring, sender, p, slot, most);
        if (sender.touched.load(std::memory_order_relaxed) > kSmallLines) note_large();
      }
      done.bytes += n;
    }
    if (done.bytes == 0) return done;
    add(sender.bytes, done.bytes);
    add(sender.messages, 1);
  }
  done.must_ring = take_waiting(peer.waiting);
  if (done.must_ring) sender.rang.store(1, std::memory_order_relaxed);  // relaxed: a hint
  return done;
}

Pipe::Done Pipe::put_last(std::uint8_t type) {
  Done done;
  auto& sender = page_->ends[end_].sender;
  auto& peer = page_->ends[1 - end_].receiver;
  {
    Locked lock(*this, sender.lock);
    if ((done.err = lock.err()) != 0) return done;
    if (broken()) return {0, false, EPROTO};
    if (sender.ended.load(std::memory_order_relaxed) != 0) return {0, false, EPIPE};
    const PipeRing ring{lines_};
    auto p = load(sender);
    PipeSlot slot;
    auto credit = [&] { return peer.credit.load(std::memory_order_acquire); };  // PAIR pipe.credit
    const int rc = ring.reserve(p, kStampBytes, lines_, credit, &slot);
    if (rc <= 0) {  // there always is a line
      broke("impossible credit");
      return {0, false, EPROTO};
    }
    const PipeStamp stamp = PipeStamp::make(order_stamp(), t_thread.past_pipes);
    std::memcpy(ring.payload_at(out_, slot), &stamp, kStampBytes);
    ring.publish(out_, slot, shm::RingHead::make(kStampBytes, type, current_cpu_tag()));
    advance(ring, sender, p, slot, lines_);
    sender.ended.store(type == kEndRecord ? 1 : 2, std::memory_order_relaxed);
    done.bytes = 1;
  }
  done.must_ring = take_waiting(peer.waiting);
  return done;
}

Pipe::Done Pipe::end_sending() { return put_last(kEndRecord); }
Pipe::Done Pipe::leave() { return put_last(kLeaveRecord); }

void Pipe::wrote_past_pipes() { t_thread.past_pipes = order_stamp(); }

// Without the lock: a cursor that another thread has half moved says "room" once too often at worst.
bool Pipe::has_room(int end, PipeRoom room) const {
  const auto& peer = page_->ends[1 - end].receiver;
  const PipeRing ring{lines_};
  auto p = load(page_->ends[end].sender);
  PipeSlot slot;
  const std::uint64_t most = most_lines(end, room);
  // PAIR pipe.credit
  const std::uint64_t seen = peer.credit.load(std::memory_order_acquire);
  if (seen - p.consumed <= p.tail - p.consumed) p.consumed = seen;
  // Not at the first free line: whoever is woken for room should find some.
  const std::uint64_t used = ring.used(p);
  const bool within = used <= (room == PipeRoom::kWhole ? most - most / 3 : most - most / 8) || used > lines_;
  return within && ring.reserve(p, kCacheLine, lines_, [&] { return p.consumed; }, &slot) != 0;
}

// After lines have been given back: does the sender sleep until there are as many as there are now?
bool Pipe::must_ring_for_room(bool drained) const {
  auto& waiting = page_->ends[1 - end_].sender.waiting;
  store_load_fence();
  // PAIR pipe.waiting: Dekker with want_room(); sees the cursors of the sender that waits
  const std::uint32_t now = waiting.load(std::memory_order_acquire);
  if (now == 0) return false;
  const PipeRoom room = now == kWindowWanted ? PipeRoom::kWindow : PipeRoom::kWhole;
  if (!drained && !has_room(1 - end_, room)) return false;  // we are going to give back more
  return waiting.exchange(0, std::memory_order_seq_cst) != 0;
}

bool Pipe::writable(PipeRoom room) const {
  return broken() || has_room(end_, room);  // broken: the call that is made then says why
}

std::uint64_t Pipe::unread_by_peer() const {
  const std::uint64_t sent = page_->ends[end_].sender.bytes.load(std::memory_order_relaxed);
  const std::uint64_t got = page_->ends[1 - end_].receiver.bytes.load(std::memory_order_relaxed);
  const std::uint64_t unread = sent - got;
  return unread > bytes_ ? 0 : unread;  // the peer's word
}

bool Pipe::want_room(PipeRoom room) {
  auto& waiting = page_->ends[end_].sender.waiting;
  const std::uint32_t mine = room == PipeRoom::kWhole ? kAnybody : kWindowWanted;
  const std::uint32_t now = waiting.load(std::memory_order_relaxed);
  // PAIR pipe.waiting: Dekker with must_ring_for_room()
  if (now != mine && now != kAnybody) {
    waiting.store(now == 0 ? mine : kAnybody, std::memory_order_seq_cst);
  }
  store_load_fence();
  return !writable(room);
}

// --- receiving -------------------------------------------------------------------------------------

PipeFront Pipe::front() const {
  if (broken()) return PipeFront::kBroken;
  if (seems_empty()) return PipeFront::kNothing;
  const auto& receiver = page_->ends[end_].receiver;
  const PipeRing ring{lines_};
  // Without the lock: nobody writes over a record before the head has passed it. So what is found at a head
  // that is still the head is the record there.
  for (int looks = 0; looks < kMostLooks; ++looks) {
    // PAIR pipe.front: if it has changed, so has what we read
    const std::uint64_t head = receiver.head.load(std::memory_order_acquire);
    shm::RingConsumer c{head, 0};
    shm::RingRecord record;
    const int rc = ring.peek(c, in_, &record);  // its loads are acquire: the next one comes after
    if (receiver.head.load(std::memory_order_acquire) != head) continue;
    if (rc == 0) return PipeFront::kNothing;
    if (rc > 0 && record.head.type() == kBytesRecord) return PipeFront::kBytes;
    if (rc > 0 && record.head.type() == kEndRecord) return PipeFront::kEnd;
    if (rc > 0 && record.head.type() == kLeaveRecord) return PipeFront::kLeave;
    broke(rc < 0 ? "impossible record" : "a record of no kind");
    return PipeFront::kBroken;
  }
  return PipeFront::kBytes;  // somebody is reading them, one after the other
}

PipeStamp Pipe::front_stamp() const {
  const PipeRing ring{lines_};
  shm::RingConsumer c{page_->ends[end_].receiver.head.load(std::memory_order_relaxed), 0};
  shm::RingRecord record;
  PipeStamp stamp;
  if (ring.peek(c, in_, &record) > 0 && record.head.length() >= kStampBytes) {
    std::memcpy(&stamp, record.payload, kStampBytes);
  }
  return stamp;
}

bool Pipe::seems_empty() const {
  const PipeRing ring{lines_};
  const std::uint64_t head = page_->ends[end_].receiver.head.load(std::memory_order_relaxed);
  // relaxed: a glance
  return shm::head_at(in_, ring.index(head)).load(std::memory_order_relaxed) == 0 && !broken();
}

Pipe::Done Pipe::receive(const iovec* buffers, int count, bool peek) {
  Done done;
  auto& receiver = page_->ends[end_].receiver;
  const std::size_t wanted = total(buffers, count);
  bool published = false, drained = false;
  {
    Locked lock(*this, receiver.lock);
    if ((done.err = lock.err()) != 0) return done;
    if (broken()) return {0, false, EPROTO};
    auto relaxed = std::memory_order_relaxed;  // under the lock
    const PipeRing ring{lines_};
    shm::RingConsumer c{receiver.head.load(relaxed), receiver.published.load(relaxed)};
    std::uint64_t offset = receiver.offset.load(relaxed);
    Cursor cursor(buffers, count);
    shm::RingRecord record;
    // Enough lines that the writer is told, a part of those it waits for.
    auto enough = [&](std::uint64_t lines) {
      return lines >= std::min<std::uint64_t>(kFewestLines / 8, lines_ / 16) &&
             lines >= std::min(kPublishLines, most_lines(1 - end_, PipeRoom::kWhole) / 8);
    };
    int rc = 0;
    while (done.bytes < wanted && (rc = ring.peek(c, in_, &record)) > 0) {
      if (record.head.type() != kBytesRecord) break;
      const std::uint64_t length = record.head.length() - kStampBytes;
      // Nobody sends an empty one, and a ring full of them has no end.
      if (record.head.length() <= kStampBytes || offset > length) {
        rc = -1;
        break;
      }
      const std::uint64_t n = std::min<std::uint64_t>(length - offset, wanted - done.bytes);
      auto copy = [&] { cursor.scatter(record.payload + kStampBytes + offset, n); };
      if (!guarded(copy)) {
        done.err = EFAULT;
        break;
      }
      peer_cpu_.store(record.head.cpu(), std::memory_order_relaxed);  // relaxed: a hint
      done.bytes += n;
      offset += n;
      if (ring.index(c.head) + record.lines > kSmallLines) note_large();
      if (offset == length) {
        offset = 0;
        c.head += record.lines;
        if (!peek && enough(c.head - c.published)) {
          c.published = c.head;
          receiver.head.store(c.head,
                              std::memory_order_release);  // PAIR pipe.front: before it is written over
          // PAIR pipe.credit: we have finished with the lines before it
          receiver.credit.store(c.head, std::memory_order_release);
          published = true;
        }
      }
    }
    if (rc < 0) {
      broke("impossible record");
      return {0, false, EPROTO};
    }
    if (peek) return done;
    const bool ahead = c.head - c.published >= ring.keep_up();
    // Whoever asks for as many bytes as there are does not see that these were all.
    drained = rc == 0 || (ahead && offset == 0 && ring.peek(c, in_, &record) == 0);
    receiver.head.store(c.head, std::memory_order_release);  // PAIR pipe.front: as above
    if (drained && ahead) {
      c.published = c.head;
      receiver.credit.store(c.head, std::memory_order_release);  // PAIR pipe.credit
      published = true;
    }
    receiver.published.store(c.published, relaxed);
    receiver.offset.store(offset, relaxed);
    add(receiver.bytes, done.bytes);
  }
  if (published) done.must_ring = must_ring_for_room(drained);
  return done;
}

std::uint64_t Pipe::readable_bytes() const {
  const auto& receiver = page_->ends[end_].receiver;
  const PipeRing ring{lines_};
  Locked lock(*this, page_->ends[end_].receiver.lock);
  if (lock.err() != 0 || broken()) return 0;
  shm::RingConsumer c{receiver.head.load(std::memory_order_relaxed), 0};
  shm::RingRecord record;
  std::uint64_t bytes = 0;
  for (std::uint64_t records = 0;
       records < lines_ && ring.peek(c, in_, &record) > 0 && record.head.type() == kBytesRecord;
       ++records) {
    bytes += record.head.length() - std::min<std::uint64_t>(record.head.length(), kStampBytes);
    c.head += record.lines;
  }
  return bytes - std::min(bytes, receiver.offset.load(std::memory_order_relaxed));
}

// --- memory ----------------------------------------------------------------------------------------

bool Pipe::release() {
  large_.store(false, std::memory_order_relaxed);
  const bool mine = release(end_), theirs = release(1 - end_);
  if (mine && theirs) return true;
  note_large();
  return false;
}

// Of the ring that `end` writes. When its reader has read all there is, nobody looks at any line but the one at
// the tail, which holds a zero, and under the sender's lock nobody writes. A line without memory reads as zero.
bool Pipe::release(int end) {
  auto& sender = page_->ends[end].sender;
  auto relaxed = std::memory_order_relaxed;
  const std::uint64_t glance = sender.touched.load(relaxed);
  if (glance <= kSmallLines || sender.released_at.load(relaxed) == sender.tail.load(relaxed)) return true;
  // Counted as all locks are, for handlers.
  const std::uint32_t outer = t_thread.locks.load(relaxed), me = thread_id();
  t_thread.locks.store(outer + 1, relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::uint32_t owner = 0;
  // PAIR pipe.lock: sees the cursors the last owner left
  bool done = sender.lock.compare_exchange_strong(owner, me | kReleases, std::memory_order_acquire, relaxed);
  if (done) {
    const std::uint64_t tail = sender.tail.load(relaxed);
    // PAIR pipe.front: if it has passed them all, it has read them all
    const std::uint64_t head = page_->ends[1 - end].receiver.head.load(std::memory_order_acquire);
    if (head == tail && !broken()) {
      const std::size_t ring = lines_ * kCacheLine, keeps = tail % lines_ * kCacheLine / kPageSize * kPageSize;
      const std::size_t touched = std::min(sender.touched.load(relaxed), lines_) * kCacheLine;
      std::byte* memory = (end == end_ ? out_ : in_);
      const std::size_t behind = std::min(round_to_pages(touched), ring);
      sender.bound.store(0, relaxed);  // whatever it writes next it notes
      sender.touched.store((keeps + kPageSize) / kCacheLine, relaxed);
      sender.released_at.store(tail, relaxed);
      if (keeps > 0) ::madvise(memory, keeps, MADV_REMOVE);
      if (behind > keeps + kPageSize) {
        ::madvise(memory + keeps + kPageSize, behind - keeps - kPageSize, MADV_REMOVE);
      }
    } else {
      done = false;
    }
    sender.lock.store(0, std::memory_order_release);  // PAIR pipe.lock: publishes the cursors
  }
  std::atomic_signal_fence(std::memory_order_seq_cst);
  t_thread.locks.store(outer, relaxed);
  return done;
}

// --- waiting for bytes -----------------------------------------------------------------------------

// The flag holds the id of the one thread that waits, or kAnybody when there is more than one, so that a
// thread that has done with waiting does not take back another's wish.
void Pipe::fetch_ahead() const {
  const PipeRing ring{lines_};
  const auto &mine = page_->ends[end_], &theirs = page_->ends[1 - end_];
  auto relaxed = std::memory_order_relaxed;  // hints
  __builtin_prefetch(in_ + ring.index(mine.receiver.head.load(relaxed)) * kCacheLine);
  __builtin_prefetch(out_ + ring.index(mine.sender.tail.load(relaxed)) * kCacheLine, 1);
  __builtin_prefetch(&theirs.receiver.waiting, 1);
  __builtin_prefetch(&theirs.sender.ended);
  __builtin_prefetch(&theirs.face);
  __builtin_prefetch(&mine.receiver.waiting, 1);
}

bool Pipe::want_data() {
  auto& waiting = page_->ends[end_].receiver.waiting;
  const std::uint32_t me = thread_id();
  std::uint32_t now = waiting.load(std::memory_order_relaxed);
  // PAIR pipe.waiting: Dekker with take_waiting()
  while (now != me && now != kAnybody &&
         !waiting.compare_exchange_weak(now, now == 0 ? me : kAnybody, std::memory_order_seq_cst,
                                        std::memory_order_relaxed)) {
  }
  store_load_fence();
  return front() == PipeFront::kNothing;
}

void Pipe::unwant_data() {
  auto& waiting = page_->ends[end_].receiver.waiting;
  std::uint32_t me = thread_id();
  if (me == kAnybody || waiting.load(std::memory_order_relaxed) != me) return;
  waiting.compare_exchange_strong(me, 0, std::memory_order_seq_cst, std::memory_order_relaxed);
}

void Pipe::keep_wanted(bool room) {
  // PAIR pipe.waiting: Dekker with take_waiting()
  page_->ends[end_].receiver.waiting.store(kAnybody, std::memory_order_seq_cst);
  if (room) page_->ends[end_].sender.waiting.store(kAnybody, std::memory_order_seq_cst);
  store_load_fence();
}

}  // namespace clan
