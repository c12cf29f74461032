#include "clan/face/pipe.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/fd.h"
#include "base/mapping.h"
#include "clan/detail/log.h"
#include "clan/detail/system_call.h"
#include "clan/detail/words.h"
#include "engine/pipe/application_buffers.h"
#include "engine/pipe/pipe_lock.h"
#include "engine/pipe/pipe_parts.h"

namespace clan {

using namespace pipes;

namespace {

constexpr std::uint64_t kFirstReceiveBuffer = 128 * 1024;  ///< of one that grows
constexpr std::uint64_t kMostLimit = std::uint64_t{1} << 32;

std::atomic<bool> memory_is_locked{false};

Mapping::Locking locking() {
  // relaxed: a flag by itself; of two threads one maps while the other locks
  return memory_is_locked.load(std::memory_order_relaxed) ? Mapping::Locking::kNever
                                                          : Mapping::Locking::kAsProcess;
}

std::size_t bytes_for(std::uint32_t ring_bytes) { return kPageSize + 2 * std::size_t{ring_bytes}; }

}  // namespace

// --- life ----------------------------------------------------------------------------------------

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
    takes_aside_ = other.takes_aside_;
    locks_ = other.locks_;
    // relaxed: nobody uses the pipe while it moves
    for (auto* lock : {&own_locks_.sending, &own_locks_.receiving})
      lock->store(0, std::memory_order_relaxed);
    broken_.store(other.broken_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    large_.store(other.large_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    last_line_.store(other.last_line_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  return *this;
}

void Pipe::guard_copies(CopyGuard guard) { copy_guard.store(guard, std::memory_order_relaxed); }

void Pipe::process_locks_memory(bool locks) {
  memory_is_locked.store(locks, std::memory_order_relaxed);  // relaxed: as locking()
}

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
  auto mapping =
      Mapping::map(fd->get(), bytes_for(ring_bytes), Mapping::Access::kReadWrite, locking());
  if (!mapping) return mapping.error();
  auto* page = reinterpret_cast<PipePage*>(mapping->release());
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  page->head.created_ns = static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
                          static_cast<std::uint64_t>(now.tv_nsec);
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
  auto mapping = Mapping::map(fd.get(), size, Mapping::Access::kReadWrite, locking());
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
  if (!broken_.exchange(true, std::memory_order_relaxed))
    CLAN_WARN("a connection's shared memory: %s", what);
}

// --- limits --------------------------------------------------------------------------------------

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

// --- memory --------------------------------------------------------------------------------------

// When its reader has read all there is, nobody reads any line but the one at the tail, which holds
// a zero, and under the lock nobody writes. A line without memory reads as zero.
bool Pipe::release() {
  auto& sender = page_->ends[end_].sender;
  auto relaxed = std::memory_order_relaxed;
  large_.store(false, relaxed);
  const std::uint64_t glance = sender.touched.load(relaxed);
  if (glance <= kSmallLines || sender.released_at.load(relaxed) == sender.tail.load(relaxed))
    return true;
  const Locked lock(*this, locks().sending);
  const std::uint64_t tail = sender.tail.load(relaxed);
  // PAIR pipe.front: if it has passed them all, it has read them all
  const std::uint64_t head = words::load_acquire(page_->ends[1 - end_].receiver.head);
  if (lock.err() != 0 || head != tail || broken()) {
    note_large();
    return false;
  }
  const std::size_t ring = lines_ * kCacheLine,
                    keeps = tail % lines_ * kCacheLine / kPageSize * kPageSize;
  const std::size_t touched = std::min(sender.touched.load(relaxed), lines_) * kCacheLine;
  const std::size_t behind = std::min(round_to_pages(touched), ring);
  sender.bound.store(0, relaxed);  // whatever it writes next it notes
  if (keeps > 0) ::madvise(out_, keeps, MADV_REMOVE);
  if (behind > keeps + kPageSize)
    ::madvise(out_ + keeps + kPageSize, behind - keeps - kPageSize, MADV_REMOVE);
  // Behind that: a process that is killed in between leaves it to the next release.
  sender.touched.store((keeps + kPageSize) / kCacheLine, relaxed);
  sender.released_at.store(tail, relaxed);
  return true;
}

// --- waiting -------------------------------------------------------------------------------------

bool Pipe::want_room(PipeRoom room) {
  const std::uint32_t mine = room == PipeRoom::kWhole ? kAnybody : kWindowWanted;
  announce<shm::AsymmetricFence>(page_->ends[end_].sender.waiting, mine);
  return !writable(room);
}

void Pipe::fetch_ahead() const {
  const shm::RecordRing ring{lines_};
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
  announce<shm::AsymmetricFence>(page_->ends[end_].receiver.waiting, thread_id());
  return front() == PipeFront::kNothing;
}

void Pipe::unwant_data() { withdraw_reader(page_->ends[end_].receiver.waiting, thread_id()); }

void Pipe::keep_wanted(bool room) {
  auto& end = page_->ends[end_];
  announce<shm::AsymmetricFence>(end.receiver.waiting, kAnybody);
  if (room) announce<shm::AsymmetricFence>(end.sender.waiting, kAnybody);
}

}  // namespace clan
