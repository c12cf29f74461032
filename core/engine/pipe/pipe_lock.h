// The locks of a pipe, and what its threads know of themselves.
#pragma once

#include <sys/syscall.h>

#include <atomic>
#include <cstdint>

#include "clan/detail/system_call.h"
#include "clan/detail/words.h"
#include "clan/face/pipe.h"

namespace clan::pipes {

/// What the calling thread knows of itself. Signal handlers read it too: initial-exec needs no
/// call.
struct Thread {
  std::uint32_t id = 0;
  std::uint32_t word = 0;               ///< of its locks: sys::name_of()
  std::atomic<std::uint32_t> locks{0};  ///< that it has, or waits for
  std::uint64_t last_kernel_write = 0;  ///< order_stamp() of when it last wrote by another way
};
extern constinit thread_local Thread t_thread __attribute__((tls_model("initial-exec")));

inline std::uint32_t thread_id() {
  if (t_thread.id == 0) t_thread.id = static_cast<std::uint32_t>(sys::call(SYS_gettid));
  return t_thread.id;
}

/// The word of a lock that the calling thread has.
inline std::uint32_t lock_word() {
  if (t_thread.word == 0) t_thread.word = sys::name_of(thread_id());
  return t_thread.word;
}

/// Counts a lock from before its word is taken until after it is not: a handler has to find both.
class LockCount {
 public:
  LockCount() : outer_(t_thread.locks.load(std::memory_order_relaxed)) {  // relaxed: of this thread
    t_thread.locks.store(outer_ + 1, std::memory_order_relaxed);          // relaxed: of this thread
    // order: the count, then the word, for handlers
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  ~LockCount() {
    // order: the word, then the count, for handlers
    std::atomic_signal_fence(std::memory_order_seq_cst);
    t_thread.locks.store(outer_, std::memory_order_relaxed);  // relaxed: of this thread
  }
  LockCount(const LockCount&) = delete;
  LockCount& operator=(const LockCount&) = delete;
  /// This thread was in a call already, which a handler has interrupted.
  bool nested() const { return outer_ > 0; }

 private:
  std::uint32_t outer_;
};

}  // namespace clan::pipes

namespace clan {

/// Holds the lock of one direction of an end: of the threads of all processes that have the end.
///
/// A process may be killed under it, at any instruction. The next one that wants the lock finds the
/// owner dead, takes it, and finds the direction as it was before the last record, or behind it
/// (Pipe::finish_record(), pipes::offset_word()).
class Pipe::Locked {
 public:
  Locked(const Pipe& pipe, std::atomic<std::uint32_t>& word) : word_(word) {
    std::uint32_t owner = 0;
    // PAIR pipe.lock: sees the cursors the last owner left
    if (!words::cas(word_, owner, pipes::lock_word())) [[unlikely]]
      err_ = pipe.wait_for_lock(word_, count_.nested());
  }
  ~Locked() {
    // PAIR pipe.lock: publishes the cursors
    if (err_ == 0) words::store_release(word_, 0);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  /// 0: the calling thread has the lock. EDEADLK, EPROTO (the pipe is broken).
  int err() const { return err_; }

 private:
  pipes::LockCount count_;
  std::atomic<std::uint32_t>& word_;
  int err_ = 0;
};

}  // namespace clan
