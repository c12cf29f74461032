// Claims: where threads write that send in an end which several processes share, so that others
// know it when one of them is stopped there (engine/pipe_send_shared.cc says how).
//
// A claim belongs to one call, which takes it under the lock of the side and keeps it until it is
// done, or finds that the lock has been taken. Its words are:
//
//   owner     0: free | thread | kPlanned: the others hold | what its record ends << kEndsShift |
//             kTurn | pid namespace << 32
//   from      the tail at which its record is to be published
//   position  where its record goes, up to `tail`, whose line gets the terminator
//   ...       the cursors when the record has been published
//
// Others believe them as long as kPlanned is set. The owner sets it when all else is written, and
// clears it when it writes to those lines no more.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/pipe_claim_words.h"
#include "engine/pipe_lock.h"
#include "engine/pipe_parts.h"

namespace clan::pipes {

constexpr unsigned kEndsShift = 25;  ///< two bits, as PipePage::Sender::ended
/// of `jump_gap`: a ring has at most 2^20 lines
constexpr unsigned kGapBits = 21;

inline PipeProducer load(const PipePage::Sender& s) {
  auto relaxed = std::memory_order_relaxed;  // under the lock
  return {s.tail.load(relaxed),
          s.bound.load(relaxed),
          s.consumed.load(relaxed),
          s.look_at.load(relaxed),
          s.skip_at.load(relaxed),
          s.jump_at.load(relaxed),
          s.jump_gap.load(relaxed) & ((1u << kGapBits) - 1)};
}

inline std::uint64_t gap_word(const PipeProducer& p) {
  return p.jump_at << kGapBits | (p.jump_gap & ((1u << kGapBits) - 1));
}

inline void store(PipePage::Sender& s, const PipeProducer& p) {
  auto relaxed = std::memory_order_relaxed;  // under the lock
  s.tail.store(p.tail, relaxed);
  s.bound.store(p.bound, relaxed);
  s.consumed.store(p.consumed, relaxed);
  s.look_at.store(p.look_at, relaxed);
  s.skip_at.store(p.skip_at, relaxed);
  s.jump_at.store(p.jump_at, relaxed);
  s.jump_gap.store(gap_word(p), relaxed);
}

/// takes one line
constexpr std::uint64_t kLeastPiece = kCacheLine - shm::kRingHeadBytes - kStampBytes;

/// What is written in a claim, as one moment shows it.
struct Planned {
  std::uint64_t from = 0, position = 0;
  PipeProducer after;
  std::uint64_t bytes = 0;
  std::uint32_t ends = 0;  ///< as PipePage::Sender::ended; 0: another record may follow
};

/// False: nothing that is to be believed.
bool read_claim(const PipePage::Claim& claim, Planned* planned);
/// The thread has ended, for certain: it writes nothing any more.
bool owner_has_died(std::uint64_t owner);
/// The cursors are as after the record of a claim, and before them `ended`. They only rise, so each
/// of several threads may do it, also late.
void raise_cursors(PipePage::Sender& sender, const Planned& planned);

/// The claim of a call.
class Claiming {
 public:
  /// One of all is for last records alone, so that stopped sends leave one for them.
  enum class For { kBytes, kLast };
  explicit Claiming(PipePage::End& end, For what = For::kBytes);
  ~Claiming();
  Claiming(const Claiming&) = delete;
  Claiming& operator=(const Claiming&) = delete;
  /// False: all are taken, by threads that are stopped.
  explicit operator bool() const { return claim_ != nullptr; }
  std::uint32_t number() const { return number_; }
  bool is(const PipePage::Claim& claim) const { return &claim == claim_; }
  void plan(const Planned& planned);
  void unplan();

 private:
  std::uint64_t free_word_;
  std::uint64_t turn_ = 0;
  PipePage::Claim* claim_ = nullptr;
  std::uint32_t number_ = 0;
};

}  // namespace clan::pipes
