// The memory an application and the NIC driver share for RDMA: a ring of requests one way, a ring
// of completions the other way. Lives on any 64-byte aligned span; holds offsets only, no pointers
// of its own (`local` in a request is the application's address, opaque here).
//
//   RdmaRingApp     the application's end. One thread posts; one thread (it may be another one)
//                   reaps. Posting and reaping are done at user level.
//   RdmaRingDriver  the driver's end, under the driver's lock (see rdma_scheduler.h).
//
//   offset 0    line 0  constant after create    magic, version, capacities
//          64   line 1  written by application   request_tail
//          128  line 2  written by driver        request_head
//          192  line 3  written by driver        completion_tail
//          256  line 4  written by application   completion_head
//          320  line 5  written by driver        idle_epoch, state (rarely written)
//          384  request slots     capacity x 64 bytes, written by application
//          ...  completion slots  completion_capacity x 32 bytes, written by driver
//
// head = consumer's index, tail = producer's. Indices are 64 bits wide, only grow, and are masked
// when used; a ring is empty when head == tail and may be filled to the last slot.
//
// Trust. The driver keeps indices and capacities in private memory and never reads a line it
// writes. What it reads (request_tail, completion_head, request slots) is input: loaded once,
// checked, then used from the private copy. An index that makes no sense means the application is
// broken: Take::kCorrupt, and nothing more is taken. Slot words are atomics read with relaxed
// loads, so that an application scribbling over a slot being read gets nonsense checked and
// refused, not a data race.
//
// Completions cannot overflow. Every accepted request is answered once, so the slots in use or
// promised are request_head - completion_head; the driver takes a request only while that is below
// completion_capacity. The application's end posts only while request_tail - completion_head is
// below it, so an application that uses this class never finds the driver waiting for it to reap.
//
// Doorbell. The driver publishes an odd idle_epoch when it has found the ring empty and an even one
// when it has taken the queue up again. post() says whether the driver must be told, which it must
// be once per idle period:
//
//   application                          driver
//   request_tail = t     (seq_cst)       idle_epoch = odd      (seq_cst)
//   e = idle_epoch       (seq_cst)       t = request_tail      (seq_cst)
//
// Of the two stores one is first, and the other side's load sees it: either the application sees
// the driver idle, or the driver sees the request. A request may also be served, and the driver be
// idle again, before its poster looks: that doorbell finds nothing. So answering a doorbell ends
// the idle period whatever it finds; otherwise the next request would not ring.
//
// A crash of the application before request_tail is stored leaves no trace; after it, the request
// is served if the driver is awake, else it stays until the queue is detached. A crash of the
// driver before completion_tail is stored loses that completion: the rings die with the driver.
#pragma once

#include <clan/rdma_request.h>
#include <clan/result.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <span>
#include <type_traits>

namespace clan::nic {

enum class RdmaRingState : std::uint32_t {
  kOpen = 0,
  kBroken = 1,  // the driver found an impossible index and takes nothing more
  kClosed = 2,  // detached
};

/// One request. word 0: op (bits 0-7), priority (8-15), more (16), zero (17-31), remote (32-63);
/// word 1: local; 2: remote_offset; 3: length; 4: cookie; 5-7 unused.
struct alignas(64) RdmaRequestSlot {
  std::atomic<std::uint64_t> word[8];
};

/// One completion. word 0: cookie; 1: bytes; 2: status; 3 unused.
struct alignas(32) RdmaCompletionSlot {
  std::atomic<std::uint64_t> word[4];
};

struct RdmaRingHeader {
  // line 0: constant after create
  alignas(64) std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t capacity;
  std::uint32_t completion_capacity;
  // line 1: written by the application
  alignas(64) std::atomic<std::uint64_t> request_tail;
  // line 2: written by the driver
  alignas(64) std::atomic<std::uint64_t> request_head;
  // line 3: written by the driver
  alignas(64) std::atomic<std::uint64_t> completion_tail;
  // line 4: written by the application
  alignas(64) std::atomic<std::uint64_t> completion_head;
  // line 5: written by the driver
  alignas(64) std::atomic<std::uint64_t> idle_epoch;
  std::atomic<std::uint32_t> state;
};

static_assert(sizeof(RdmaRequestSlot) == 64 && std::is_standard_layout_v<RdmaRequestSlot>);
static_assert(sizeof(RdmaCompletionSlot) == 32 && std::is_standard_layout_v<RdmaCompletionSlot>);
static_assert(std::is_standard_layout_v<RdmaRingHeader>);
static_assert(std::is_trivially_destructible_v<RdmaRingHeader>);
static_assert(offsetof(RdmaRingHeader, request_tail) == 64);
static_assert(offsetof(RdmaRingHeader, request_head) == 128);
static_assert(offsetof(RdmaRingHeader, completion_tail) == 192);
static_assert(offsetof(RdmaRingHeader, completion_head) == 256);
static_assert(offsetof(RdmaRingHeader, idle_epoch) == 320);
static_assert(sizeof(RdmaRingHeader) == 384);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// Sizes, and the checks that both ends share.
struct RdmaRing {
  static constexpr std::uint64_t kMagic = 0x434c414e52444d41;  // "CLANRDMA"
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::uint32_t kMaxCapacity = 1u << 16;
  static constexpr std::size_t kAlignment = 64;

  static constexpr bool valid_capacities(std::uint64_t capacity, std::uint64_t completions) {
    return std::has_single_bit(capacity) && std::has_single_bit(completions) &&
           capacity <= completions && completions <= kMaxCapacity;
  }

  /// Bytes a ring of these (valid) capacities takes.
  static constexpr std::size_t bytes_needed(std::uint32_t capacity, std::uint32_t completions) {
    return sizeof(RdmaRingHeader) + std::size_t{capacity} * sizeof(RdmaRequestSlot) +
           std::size_t{completions} * sizeof(RdmaCompletionSlot);
  }
  static constexpr std::size_t bytes_needed(std::uint32_t capacity) {
    return bytes_needed(capacity, capacity);
  }
};

namespace detail {

/// Where everything is. Private to each end; filled from values that end trusts.
struct RdmaRingView {
  RdmaRingHeader* header = nullptr;
  RdmaRequestSlot* requests = nullptr;
  RdmaCompletionSlot* completions = nullptr;
  std::uint32_t capacity = 0;
  std::uint32_t completion_capacity = 0;

  static RdmaRingView at(std::byte* base, std::uint32_t capacity, std::uint32_t completions) {
    std::byte* slots = base + sizeof(RdmaRingHeader);
    return {reinterpret_cast<RdmaRingHeader*>(base), reinterpret_cast<RdmaRequestSlot*>(slots),
            reinterpret_cast<RdmaCompletionSlot*>(slots + capacity * sizeof(RdmaRequestSlot)),
            capacity, completions};
  }
  RdmaRequestSlot& request(std::uint64_t i) const { return requests[i & (capacity - 1)]; }
  RdmaCompletionSlot& completion(std::uint64_t i) const {
    return completions[i & (completion_capacity - 1)];
  }
};

inline bool aligned_for_rdma_ring(std::span<std::byte> memory) {
  return reinterpret_cast<std::uintptr_t>(memory.data()) % RdmaRing::kAlignment == 0;
}

}  // namespace detail

/// A request out of the ring. `error` is EINVAL if a field is out of range; then only the cookie,
/// `more` and a priority (0 when that was the bad field) mean anything.
struct RdmaTaken {
  RdmaRequest request;
  int error = 0;
};

/// The driver's end.
class RdmaRingDriver {
 public:
  enum class Take {
    kTaken,
    kEmpty,
    kNoCompletionSlot,  // the application must reap first
    kCorrupt,           // an index is impossible
  };

  /// Lays an empty ring out in `memory`. The memory must outlive both ends.
  static Result<RdmaRingDriver> create(std::span<std::byte> memory, std::uint32_t capacity,
                                       std::uint32_t completion_capacity) {
    if (!RdmaRing::valid_capacities(capacity, completion_capacity))
      return Error{EINVAL, "RDMA ring capacities"};
    if (memory.size() < RdmaRing::bytes_needed(capacity, completion_capacity) ||
        !detail::aligned_for_rdma_ring(memory))
      return Error{EINVAL, "RDMA ring memory"};
    auto view = detail::RdmaRingView::at(memory.data(), capacity, completion_capacity);
    new (view.header) RdmaRingHeader{};
    for (std::uint32_t i = 0; i < capacity; ++i) new (&view.requests[i]) RdmaRequestSlot{};
    for (std::uint32_t i = 0; i < completion_capacity; ++i)
      new (&view.completions[i]) RdmaCompletionSlot{};
    view.header->version = RdmaRing::kVersion;
    view.header->capacity = capacity;
    view.header->completion_capacity = completion_capacity;
    view.header->idle_epoch.store(1, std::memory_order_relaxed);  // no other end exists yet
    view.header->magic = RdmaRing::kMagic;
    return RdmaRingDriver(view);
  }
  static Result<RdmaRingDriver> create(std::span<std::byte> memory, std::uint32_t capacity) {
    return create(memory, capacity, capacity);
  }

  RdmaRingDriver(RdmaRingDriver&&) = default;
  RdmaRingDriver& operator=(RdmaRingDriver&&) = default;
  RdmaRingDriver(const RdmaRingDriver&) = delete;
  RdmaRingDriver& operator=(const RdmaRingDriver&) = delete;

  /// Takes the next request, reserving the slot for its completion.
  [[nodiscard]] Take take(RdmaTaken* out) {
    // PAIR rdma.req.tail: sees the request slots
    const Take ready = look(std::memory_order_acquire);
    if (ready != Take::kTaken) return ready;
    *out = decode(view_.request(head_));
    ++head_;
    // PAIR rdma.req.head: publishes that slots below head have been read, to RdmaRingApp::post
    view_.header->request_head.store(head_, std::memory_order_release);
    return Take::kTaken;
  }

  /// Answers the oldest unanswered request. The slot was reserved by take().
  void complete(const RdmaCompletion& c) {
    assert(completion_tail_ != head_);
    RdmaCompletionSlot& slot = view_.completion(completion_tail_);
    // relaxed: completion_tail below publishes these
    slot.word[0].store(c.cookie, std::memory_order_relaxed);
    slot.word[1].store(c.bytes, std::memory_order_relaxed);
    slot.word[2].store(static_cast<std::uint32_t>(c.status), std::memory_order_relaxed);
    ++completion_tail_;
    // PAIR rdma.comp.tail: publishes completion slots below tail to RdmaRingApp::reap
    view_.header->completion_tail.store(completion_tail_, std::memory_order_release);
  }

  /// Tells the application that it must ring for its next request. False (and not idle) if
  /// something to take, or a corrupt index, turned up meanwhile.
  [[nodiscard]] bool go_idle() {
    if (idle()) return true;
    ++idle_epoch_;
    // PAIR rdma.idle: publishes that we stop looking, to RdmaRingApp::post (seq_cst: see the top)
    view_.header->idle_epoch.store(idle_epoch_, std::memory_order_seq_cst);
    const Take ready = look(std::memory_order_seq_cst);
    if (ready == Take::kEmpty || ready == Take::kNoCompletionSlot) return true;
    leave_idle();
    return false;
  }

  /// A doorbell is being answered (whether or not anything is there), or go_idle found work.
  void leave_idle() {
    if (!idle()) return;
    ++idle_epoch_;
    // PAIR rdma.idle: publishes that we look again; late news costs a spare doorbell
    view_.header->idle_epoch.store(idle_epoch_, std::memory_order_release);
  }

  bool idle() const { return (idle_epoch_ & 1) != 0; }

  void publish_state(RdmaRingState s) {
    // PAIR rdma.state: publishes the end of service to RdmaRingApp::state
    view_.header->state.store(static_cast<std::uint32_t>(s), std::memory_order_release);
  }

  std::uint64_t taken() const { return head_; }
  std::uint64_t completed() const { return completion_tail_; }
  std::uint32_t capacity() const { return view_.capacity; }
  std::uint32_t completion_capacity() const { return view_.completion_capacity; }

 private:
  explicit RdmaRingDriver(const detail::RdmaRingView& view) : view_(view) {}

  /// What take() would say. Reads an index only when the private copy says there is nothing left;
  /// a private copy, once checked, stands, whatever happens to the shared word after.
  Take look(std::memory_order tail_order) {
    if (known_tail_ == head_) {
      // PAIR rdma.req.tail: sees the slots that post() published
      const std::uint64_t tail = view_.header->request_tail.load(tail_order);
      if (tail - head_ > view_.capacity) return Take::kCorrupt;
      known_tail_ = tail;
      if (tail == head_) return Take::kEmpty;
    }
    if (head_ - known_completion_head_ == view_.completion_capacity) {
      // PAIR rdma.comp.head: sees which completion slots reap() has finished with
      const std::uint64_t h = view_.header->completion_head.load(std::memory_order_acquire);
      if (h - known_completion_head_ > completion_tail_ - known_completion_head_)
        return Take::kCorrupt;
      if (h == known_completion_head_) return Take::kNoCompletionSlot;
      known_completion_head_ = h;
    }
    return Take::kTaken;
  }

  static RdmaTaken decode(const RdmaRequestSlot& slot) {
    // relaxed: request_tail has published them; and one load each, since it may change under us
    const std::uint64_t head = slot.word[0].load(std::memory_order_relaxed);
    const std::uint64_t local = slot.word[1].load(std::memory_order_relaxed);
    const std::uint64_t offset = slot.word[2].load(std::memory_order_relaxed);
    const std::uint64_t length = slot.word[3].load(std::memory_order_relaxed);
    const auto op = static_cast<std::uint8_t>(head);
    const auto priority = static_cast<std::uint8_t>(head >> 8);

    RdmaTaken t;
    t.request.op = static_cast<RdmaOp>(op);
    t.request.priority = priority < kRdmaPriorities ? priority : 0;
    t.request.more = (head & kMoreBit) != 0;
    t.request.remote = static_cast<std::uint32_t>(head >> 32);
    t.request.local = reinterpret_cast<void*>(static_cast<std::uintptr_t>(local));
    t.request.remote_offset = offset;
    t.request.length = length;
    t.request.cookie = slot.word[4].load(std::memory_order_relaxed);
    if (op > static_cast<std::uint8_t>(RdmaOp::kRead) || priority >= kRdmaPriorities ||
        (head & kZeroBits) != 0 || length > std::numeric_limits<std::uint64_t>::max() - offset ||
        local > std::numeric_limits<std::uintptr_t>::max() ||
        length > std::numeric_limits<std::uintptr_t>::max() - local)
      t.error = EINVAL;
    return t;
  }

  static constexpr std::uint64_t kMoreBit = 1ull << 16;
  static constexpr std::uint64_t kZeroBits = 0xfffeull << 16;

  detail::RdmaRingView view_;
  std::uint64_t head_ = 0;                   // requests taken
  std::uint64_t known_tail_ = 0;             // request_tail as last read and checked
  std::uint64_t completion_tail_ = 0;        // completions published
  std::uint64_t known_completion_head_ = 0;  // completion_head as last read and checked
  std::uint64_t idle_epoch_ = 1;
};

/// The application's end. post() and post_group() belong to one thread, reap() to one thread.
class RdmaRingApp {
 public:
  /// Opens a ring that the driver has created in `memory`. Opening again after the previous end
  /// has gone continues where that one stopped.
  static Result<RdmaRingApp> open(std::span<std::byte> memory) {
    if (memory.size() < sizeof(RdmaRingHeader) || !detail::aligned_for_rdma_ring(memory))
      return Error{EINVAL, "RDMA ring memory"};
    auto* h = reinterpret_cast<RdmaRingHeader*>(memory.data());
    if (h->magic != RdmaRing::kMagic || h->version != RdmaRing::kVersion)
      return Error{EPROTO, "RDMA ring header"};
    const std::uint32_t capacity = h->capacity;
    const std::uint32_t completions = h->completion_capacity;
    if (!RdmaRing::valid_capacities(capacity, completions) ||
        memory.size() < RdmaRing::bytes_needed(capacity, completions))
      return Error{EPROTO, "RDMA ring capacities"};
    return RdmaRingApp(detail::RdmaRingView::at(memory.data(), capacity, completions));
  }

  RdmaRingApp(RdmaRingApp&&) = default;
  RdmaRingApp& operator=(RdmaRingApp&&) = default;
  RdmaRingApp(const RdmaRingApp&) = delete;
  RdmaRingApp& operator=(const RdmaRingApp&) = delete;

  /// Posts one request. True: the driver sleeps and must be told (RdmaScheduler::activate).
  /// EAGAIN: full, reap completions or wait. EPROTO: the driver gave this queue up. EPIPE:
  /// detached. What is wrong inside a request is for the driver to find: it comes as a completion.
  Result<bool> post(const RdmaRequest& r) { return post(std::span(&r, 1)); }

  /// Posts all of them, with their own `more`, or none. EMSGSIZE: more than the ring can ever hold.
  Result<bool> post(std::span<const RdmaRequest> requests) {
    if (Status s = room_for(requests.size()); !s.ok()) return s.error();
    for (std::size_t i = 0; i < requests.size(); ++i)
      encode(requests[i], requests[i].more, view_.request(tail_ + i));
    return publish(requests.size());
  }

  /// The same, as one logical message: `more` is set on all but the last.
  Result<bool> post_group(std::span<const RdmaRequest> requests) {
    if (Status s = room_for(requests.size()); !s.ok()) return s.error();
    for (std::size_t i = 0; i < requests.size(); ++i)
      encode(requests[i], i + 1 < requests.size(), view_.request(tail_ + i));
    return publish(requests.size());
  }

  /// Takes completions, oldest first, and says how many. EPROTO: the index is impossible.
  Result<std::size_t> reap(std::span<RdmaCompletion> out) {
    // PAIR rdma.comp.tail: sees the completion slots that complete() published
    const std::uint64_t tail = view_.header->completion_tail.load(std::memory_order_acquire);
    const std::uint64_t ready = tail - completion_head_;
    if (ready > view_.completion_capacity) return Error{EPROTO, "RDMA completion index"};
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(ready, out.size()));
    for (std::size_t i = 0; i < n; ++i) {
      const RdmaCompletionSlot& slot = view_.completion(completion_head_ + i);
      // relaxed: completion_tail has published them
      out[i].cookie = slot.word[0].load(std::memory_order_relaxed);
      out[i].bytes = slot.word[1].load(std::memory_order_relaxed);
      out[i].status = static_cast<std::int32_t>(slot.word[2].load(std::memory_order_relaxed));
    }
    if (n != 0) {
      completion_head_ += n;
      // PAIR rdma.comp.head: publishes slots we have read, to RdmaRingDriver::look and to post
      view_.header->completion_head.store(completion_head_, std::memory_order_release);
    }
    return n;
  }

  RdmaRingState state() const {
    // PAIR rdma.state: sees the end of service
    return static_cast<RdmaRingState>(view_.header->state.load(std::memory_order_acquire));
  }

  std::uint32_t capacity() const { return view_.capacity; }
  std::uint32_t completion_capacity() const { return view_.completion_capacity; }

 private:
  explicit RdmaRingApp(const detail::RdmaRingView& view)
      // relaxed: both are ours; whoever handed the ring over has synchronised
      : view_(view),
        tail_(view.header->request_tail.load(std::memory_order_relaxed)),
        completion_head_(view.header->completion_head.load(std::memory_order_relaxed)) {}

  Status room_for(std::uint64_t n) {
    if (n == 0) return Error{EINVAL, "post no RDMA request"};
    if (n > view_.capacity) return Error{EMSGSIZE, "RDMA group larger than its ring"};
    if (const RdmaRingState s = state(); s != RdmaRingState::kOpen)
      return Error{s == RdmaRingState::kClosed ? EPIPE : EPROTO, "RDMA queue"};
    // PAIR rdma.comp.head: sees what reap(), perhaps in another thread, has made room for
    const std::uint64_t reaped = view_.header->completion_head.load(std::memory_order_acquire);
    if (tail_ - reaped + n > view_.completion_capacity)
      return Error{EAGAIN, "RDMA completions to be reaped"};
    if (tail_ - known_head_ + n > view_.capacity) {
      // PAIR rdma.req.head: sees which slots take() has finished with
      known_head_ = view_.header->request_head.load(std::memory_order_acquire);
      if (tail_ - known_head_ > view_.capacity) return Error{EPROTO, "RDMA request index"};
      if (tail_ - known_head_ + n > view_.capacity) return Error{EAGAIN, "RDMA ring full"};
    }
    return {};
  }

  static void encode(const RdmaRequest& r, bool more, RdmaRequestSlot& slot) {
    // relaxed: request_tail publishes these
    slot.word[0].store(static_cast<std::uint64_t>(r.op) | std::uint64_t{r.priority} << 8 |
                           std::uint64_t{more} << 16 | std::uint64_t{r.remote} << 32,
                       std::memory_order_relaxed);
    slot.word[1].store(reinterpret_cast<std::uintptr_t>(r.local), std::memory_order_relaxed);
    slot.word[2].store(r.remote_offset, std::memory_order_relaxed);
    slot.word[3].store(r.length, std::memory_order_relaxed);
    slot.word[4].store(r.cookie, std::memory_order_relaxed);
  }

  bool publish(std::uint64_t n) {
    tail_ += n;
    // PAIR rdma.req.tail: publishes slots below tail to RdmaRingDriver::look (seq_cst: see the top)
    view_.header->request_tail.store(tail_, std::memory_order_seq_cst);
    // PAIR rdma.idle: sees that the driver has stopped looking (seq_cst: see the top)
    const std::uint64_t epoch = view_.header->idle_epoch.load(std::memory_order_seq_cst);
    if ((epoch & 1) == 0 || epoch == rung_epoch_) return false;
    rung_epoch_ = epoch;
    return true;
  }

  detail::RdmaRingView view_;
  // the posting thread's
  std::uint64_t tail_ = 0;
  std::uint64_t known_head_ = 0;
  std::uint64_t rung_epoch_ = 0;
  // the reaping thread's
  std::uint64_t completion_head_ = 0;
};

}  // namespace clan::nic
