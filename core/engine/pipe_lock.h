// The locks of a pipe, and what its threads know of themselves.
#pragma once

#include <sys/syscall.h>

#include <atomic>
#include <cstdint>

#include "clan/pipe.h"
#include "clan/system_call.h"
#include "clan/wait_budget.h"

namespace clan::pipes {

/// The word of a lock: the thread's id, and what it is at.
constexpr std::uint32_t kThread = (1u << 23) - 1;
constexpr std::uint32_t kClaimShift = 24, kClaims = 15u << kClaimShift;  ///< see pipe_claims.h
/// It may be taken from a thread that is stopped or dead: see Pipe::TakeableLock.
constexpr std::uint32_t kTakeable = 1u << 29;
/// It releases memory, perhaps of the other end's ring.
constexpr std::uint32_t kReleases = 1u << 31;

/// Of the calling thread. Signal handlers read it too: initial-exec needs no call.
struct Thread {
  std::uint32_t id = 0;
  std::atomic<std::uint32_t> locks{0};  ///< that it has, or waits for
  std::uint64_t past_pipes = 0;         ///< order_stamp() of when it last wrote by another way
};
extern constinit thread_local Thread t_thread __attribute__((tls_model("initial-exec")));
/// How long the locks of all pipes together may keep the calling thread waiting.
extern constinit thread_local WaitBudget t_call_waits __attribute__((tls_model("initial-exec")));

inline std::uint32_t thread_id() {
  if (t_thread.id == 0) t_thread.id = static_cast<std::uint32_t>(sys::call(SYS_gettid));
  return t_thread.id;
}

/// Counts a lock from before its word is taken until after it is not: a handler has to find both.
class LockCount {
 public:
  LockCount() : outer_(t_thread.locks.load(std::memory_order_relaxed)) {  // relaxed: of this thread
    t_thread.locks.store(outer_ + 1, std::memory_order_relaxed);          // relaxed: as above
    // order: the count, then the word, for handlers
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  ~LockCount() {
    // order: the word, then the count, for handlers
    std::atomic_signal_fence(std::memory_order_seq_cst);
    t_thread.locks.store(outer_, std::memory_order_relaxed);  // relaxed: as above
  }
  LockCount(const LockCount&) = delete;
  LockCount& operator=(const LockCount&) = delete;
  /// This thread was in a call already, which a handler has interrupted.
  bool nested() const { return outer_ > 0; }

 private:
  std::uint32_t outer_;
};

/// A lock with this word may be taken: its owner is stopped, or dead. Asks /proc.
bool may_take(std::uint32_t owner);

}  // namespace clan::pipes

namespace clan {

/// The lock of one side of one end. Processes that share the end take it, and the other end when it
/// does our part in going back; that one can also write whatever it likes there. See clan/pipe.h
/// for how long it is waited for: nobody keeps a lock for longer than a copy takes.
class Pipe::Locked {
 public:
  Locked(const Pipe& pipe, OwnerWait& wait, std::atomic<std::uint32_t>& word) : word_(word) {
    const std::uint32_t me = pipes::thread_id();
    std::uint32_t owner = 0;
    // PAIR pipe.lock: sees the cursors the last owner left
    if (!word_.compare_exchange_strong(owner, me, std::memory_order_acquire,
                                       std::memory_order_relaxed)) [[unlikely]] {
      err_ = pipe.wait_for_lock(wait, word_, me, count_.nested());
    } else if (wait.gave_up()) [[unlikely]] {
      wait.over(pipe.owner_waits_);
    }
  }
  ~Locked() {
    // PAIR pipe.lock: publishes the cursors
    if (err_ == 0) word_.store(0, std::memory_order_release);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  /// 0: the lock is ours. EDEADLK, EPROTO (the pipe is broken), EBUSY.
  int err() const { return err_; }

 private:
  pipes::LockCount count_;
  std::atomic<std::uint32_t>& word_;
  int err_ = 0;
};

/// Likewise, of an end that several processes share. Another thread takes it over when /proc shows
/// the owner as stopped, or when it has died; the owner may come back at any instruction. So
/// nothing that is done under it may be a store that others rely on: each is a compare-and-swap
/// that fails once somebody has taken the lock, or goes where nobody else writes.
class Pipe::TakeableLock {
 public:
  TakeableLock(const Pipe& pipe, OwnerWait& wait, std::atomic<std::uint32_t>& word)
      : word_(word), mine_(pipes::thread_id() | pipes::kTakeable) {
    std::uint32_t owner = 0;
    // PAIR pipe.lock: sees the cursors the last owner left
    if (!word_.compare_exchange_strong(owner, mine_, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
      err_ = pipe.wait_for_lock(wait, word_, mine_, count_.nested());
    } else if (wait.gave_up()) {
      wait.over(pipe.owner_waits_);
    }
  }
  ~TakeableLock() {
    std::uint32_t mine = mine_;
    // PAIR pipe.lock: publishes the cursors
    if (err_ == 0)
      word_.compare_exchange_strong(mine, 0, std::memory_order_release, std::memory_order_relaxed);
  }
  TakeableLock(const TakeableLock&) = delete;
  TakeableLock& operator=(const TakeableLock&) = delete;
  int err() const { return err_; }
  /// Nobody has taken it: what was read before this call was read under it.
  bool is_ours() const {
    // order: what was read, then the word, as with a sequence count
    std::atomic_thread_fence(std::memory_order_acquire);
    return word_.load(std::memory_order_relaxed) == mine_;
  }
  std::uint32_t word() const { return mine_; }
  /// The word names the owner's claim, so that no other one is ever the same: in another pid
  /// namespace a thread may have this one's id. False: it has been taken.
  bool names(std::uint32_t claim) {
    std::uint32_t before = mine_;
    mine_ |= (claim + 1) << pipes::kClaimShift;
    // PAIR pipe.lock: as above
    return word_.compare_exchange_strong(before, mine_, std::memory_order_acq_rel,
                                         std::memory_order_relaxed);
  }

 private:
  pipes::LockCount count_;
  std::atomic<std::uint32_t>& word_;
  std::uint32_t mine_;
  int err_ = 0;
};

}  // namespace clan
