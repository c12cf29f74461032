#include "engine/pipe_claims.h"

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "base/process.h"
#include "clan/system_call.h"
#include "engine/pipe_shared.h"
#include "shm/asymmetric_fence.h"

namespace clan {
namespace pipes {

bool read_claim(const PipePage::Claim& claim, Planned* planned) {
  auto relaxed = std::memory_order_relaxed;  // between two looks at the owner
  const std::uint64_t owner = read_marked(claim.owner, [&] {
    planned->from = claim.from.load(relaxed);
    planned->position = claim.position.load(relaxed);
    planned->after = {};
    planned->after.tail = claim.tail.load(relaxed);
    planned->after.skip_at = claim.skip_at.load(relaxed);
    planned->after.jump_at = claim.jump_at.load(relaxed);
    planned->after.jump_gap = claim.jump_gap.load(relaxed);
    planned->bytes = claim.bytes.load(relaxed);
  });
  planned->ends = static_cast<std::uint32_t>(owner >> kEndsShift) & 3;
  return owner != 0;
}

bool owner_has_died(std::uint64_t owner) {
  if (owner == 0 || !sys::counts_here(owner)) return false;
  const int saved_errno = errno;
  const bool died = !sys::exists(static_cast<pid_t>(owner & kThread));
  errno = saved_errno;
  return died;
}

void raise_cursors(PipePage::Sender& sender, const Planned& planned) {
  std::uint32_t open = 0;
  // relaxed: a thread that plans behind that record sees its tail
  if (planned.ends != 0)
    sender.ended.compare_exchange_strong(open, planned.ends, std::memory_order_relaxed);
  raise(sender.jump_gap, gap_word(planned.after));
  raise(sender.jump_at, planned.after.jump_at);
  raise(sender.skip_at, planned.after.skip_at);
  raise(sender.bytes, planned.bytes);
  raise(sender.tail, planned.after.tail);
}

Claiming::Claiming(PipePage::End& end, For what) : free_word_(sys::thread_word(thread_id())) {
  end.sender.claimed.store(1, std::memory_order_relaxed);  // relaxed: under the lock, for good
  constexpr std::uint32_t kAll = PipePage::kClaims, kOfLast = kAll - 1;
  const std::uint32_t first = what == For::kLast ? kOfLast : thread_id() % kOfLast;
  const std::uint32_t many = what == For::kLast ? kAll : kOfLast;
  for (std::uint32_t i = 0; i < many && claim_ == nullptr; ++i) {
    std::uint64_t free = 0;
    const std::uint32_t number = (first + i) % many;
    // relaxed: nothing is in it yet
    if (end.claims[number].owner.compare_exchange_strong(free, free_word_,
                                                         std::memory_order_relaxed)) {
      claim_ = &end.claims[number];
      number_ = number;
    }
  }
}

Claiming::~Claiming() {
  if (claim_ != nullptr) unmark_claim(claim_->owner, 0);
}

void Claiming::plan(const Planned& planned) {
  auto relaxed = std::memory_order_relaxed;  // before the owner is marked
  claim_->from.store(planned.from, relaxed);
  claim_->position.store(planned.position, relaxed);
  claim_->tail.store(planned.after.tail, relaxed);
  claim_->skip_at.store(planned.after.skip_at, relaxed);
  claim_->jump_at.store(planned.after.jump_at, relaxed);
  claim_->jump_gap.store(planned.after.jump_gap, relaxed);
  claim_->bytes.store(planned.bytes, relaxed);
  turn_ ^= kTurn;
  mark_claim<shm::AsymmetricFence>(
      claim_->owner, free_word_ | kPlanned | turn_ | std::uint64_t{planned.ends} << kEndsShift);
}

void Claiming::unplan() { unmark_claim(claim_->owner, free_word_); }

}  // namespace pipes

using namespace pipes;

bool Pipe::Shared::claims_in_force(Pipe& pipe, const TakeableLock* lock) {
  auto& end = pipe.page_->ends[pipe.end_];
  if (end.sender.claimed.load(std::memory_order_relaxed) == 0) return false;  // relaxed: as above
  if (!finish_published(pipe, lock)) return true;
  bool any = false;
  for (auto& claim : end.claims) {
    // PAIR pipe.claim: sees that it writes there no more, if it is free
    std::uint64_t owner = claim.owner.load(std::memory_order_acquire);
    if (owner == 0) continue;
    // PAIR pipe.claim: likewise
    const bool freed = owner_has_died(owner) &&
                       claim.owner.compare_exchange_strong(owner, 0, std::memory_order_acq_rel);
    any |= !freed && (owner & kPlanned) != 0;
  }
  // relaxed: under the lock; the record in front may have been its last
  return any || end.sender.ended.load(std::memory_order_relaxed) != 0;
}

bool Pipe::Shared::claims_hold_up(const Pipe& pipe) {
  const auto& claims = pipe.page_->ends[pipe.end_].claims;
  return std::any_of(std::begin(claims), std::end(claims), [](const auto& claim) {
    // relaxed: a glance
    const std::uint64_t owner = claim.owner.load(std::memory_order_relaxed);
    return (owner & kPlanned) != 0 && !owner_has_died(owner);
  });
}

bool Pipe::Shared::finish_published(Pipe& pipe, const TakeableLock* lock) {
  const auto is_ours = [lock] { return lock == nullptr || lock->is_ours(); };
  auto& end = pipe.page_->ends[pipe.end_];
  const PipeRing ring{pipe.lines_};
  for (;;) {
    const std::uint64_t tail = end.sender.tail.load(std::memory_order_relaxed);
    // PAIR ring.head: sees what has been planned for the record that is there
    const shm::RingHead head{
        shm::head_at(pipe.out_, ring.index(tail)).load(std::memory_order_acquire)};
    if (head.word == 0) return true;
    const bool hops = head.type() == shm::kRingSkip || head.type() == kRingJump;
    const std::uint64_t to = head.type() == kRingJump ? head.length() : 0;
    for (const auto& claim : end.claims) {
      Planned planned;
      if (!read_claim(claim, &planned) || planned.from != tail) continue;
      const bool is_it = hops ? planned.position != tail && ring.index(planned.position) == to
                              : planned.position == tail;
      // What one has read that has lost the lock may be of several plans.
      if (is_it && is_ours()) raise_cursors(end.sender, planned);
    }
    if (!is_ours()) return true;  // another one does it
    // Its owner gives up the plan when it has moved them itself.
    if (end.sender.tail.load(std::memory_order_relaxed) == tail) {
      pipe.broke("a record that nobody has sent");
      return false;
    }
  }
}

}  // namespace clan
