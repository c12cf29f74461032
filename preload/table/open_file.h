// What all descriptors of an open file share, in all processes that have it.
#pragma once

#include <atomic>
#include <cstdint>

#include "clan/detail/dekker.h"
#include "clan/detail/system_call.h"
#include "clan/face/pipe_types.h"

namespace clan::preload {

struct Socket;

/// An open file: its locks, and counts of calls in the kernel, so that no thread moves the
/// connection under them. It is in a table that the processes of the end share
/// (table/slot_table.h), but not the peer.
struct alignas(256) OpenFileState {
  /// The count of calls (bits 0 to 29), whether it is closed, and the closing thread (from kCloser
  /// on), so that others notice its death. In `sends`, kSendsAgain: this process sends again what
  /// the peer did not read (demote/resend.h).
  using Counter = std::atomic<std::uint64_t>;
  static constexpr std::uint64_t kClosed = 1u << 30;
  static constexpr unsigned kCloser = 32;                 ///< a shift
  static constexpr std::int32_t kSendsAgain = INT32_MIN;  ///< a bit of a closer
  static std::uint64_t closed_by(std::int32_t closer) {
    return static_cast<std::uint64_t>(closer) << kCloser | kClosed;
  }
  static bool is_closed_by(std::uint64_t word, std::int32_t closer) {
    return (word & kClosed) != 0 && word >> kCloser == static_cast<std::uint32_t>(closer);
  }
  static bool is_resend(std::uint64_t word) {
    return (word & kClosed) != 0 && (word >> kCloser & kSendsAgain) != 0;
  }
  /// Closes a counter that is 0. A call that counts meanwhile sees kClosed and steps back.
  static bool try_close(Counter& counter, std::int32_t closer) {
    std::uint64_t none = 0;
    // PAIR preload.gate: sees what calls under way have done
    return counter.compare_exchange_strong(none, closed_by(closer), std::memory_order_acq_rel);
  }
  /// Closes a counter at any count, when none of these calls is in the kernel.
  static bool try_close_over(Counter& counter, std::int32_t closer) {
    std::uint64_t now = counter.load(std::memory_order_relaxed);
    return (now & kClosed) == 0 &&
           // PAIR preload.gate: as try_close()
           counter.compare_exchange_strong(now, now | closed_by(closer), std::memory_order_acq_rel);
  }
  /// Opens a counter that `closer` closed. Calls may step back meanwhile.
  static void open(Counter& counter, std::int32_t closer) {
    std::uint64_t now = counter.load(std::memory_order_relaxed);
    while (is_closed_by(now, closer) &&
           // PAIR preload.gate: publishes what was done behind it
           !counter.compare_exchange_weak(now, now & (kClosed - 1), std::memory_order_acq_rel)) {
    }
  }
  /// Hands a counter that `from` closed to `to`.
  static void hand_on(Counter& counter, std::int32_t from, std::int32_t to) {
    std::uint64_t now = counter.load(std::memory_order_relaxed);
    // Calls that find it closed change the count as they step back.
    while (is_closed_by(now, from) &&
           // relaxed: it stays closed
           !counter.compare_exchange_weak(now, (now & (kClosed - 1)) | closed_by(to),
                                          std::memory_order_relaxed)) {
    }
  }
  /// Counts a call in the kernel. False: the counter is closed, and the call has to look again.
  class UnderWay {
   public:
    explicit UnderWay(Counter& counter) : counter_(counter) {
      // PAIR preload.gate: sees what was done behind it, if it is open
      allowed_ = (counter_.fetch_add(1, std::memory_order_acq_rel) & kClosed) == 0;
    }
    // PAIR preload.gate: publishes what the call has done
    ~UnderWay() { counter_.fetch_sub(1, std::memory_order_acq_rel); }  // also when cancelled
    UnderWay(const UnderWay&) = delete;
    UnderWay& operator=(const UnderWay&) = delete;
    explicit operator bool() const { return allowed_; }

   private:
    Counter& counter_;
    bool allowed_;
  };
  /// Keeps threads from moving it; one that does so now has checked before.
  // PAIR preload.held: checked again when it counts
  void pin() { dekker::announce(pinned, 1); }

  Counter sends{0};
  Counter receives{0};
  PipeLocks locks;
  /// One per direction: a thread has published something in the pipe, or read there, and not rung
  /// yet. If its process is killed, the next call of the end rings.
  std::atomic<std::uint32_t> owes_ring[2] = {};
  /// Bytes that calls of this library sent and received on TCP.
  std::atomic<std::uint64_t> sent{0}, received{0};
  /// a process out of our reach has the open file: never move it
  std::atomic<std::int32_t> pinned{0};
  /// What has the open file; includes killed processes while it lives:
  ///
  ///   bits 0 to 20    processes that may have calls under way on it
  ///   bits 21 to 41   those of them that have not closed it
  ///   bits 42 to 51   descriptors in transit, whose receivers do not know of this yet
  ///   above           the slot's life number, see share/passing.cc
  std::atomic<std::uint64_t> held{0};
  static constexpr std::uint64_t kUser = 1, kHolder = 1u << 21, kProcess = kUser | kHolder;
  static constexpr std::uint64_t kOnItsWay = std::uint64_t{1} << 42;
  static constexpr unsigned kLife = 52;  ///< a shift
  static std::uint64_t users(std::uint64_t held) { return held & (kHolder - 1); }
  static std::uint64_t holders(std::uint64_t held) { return held / kHolder & (kHolder - 1); }
  static std::uint64_t on_its_way(std::uint64_t held) { return held / kOnItsWay & 0x3ff; }
  /// Whether only the calling process has it, and may move it.
  static bool is_alone(std::uint64_t held) { return users(held) == 1 && on_its_way(held) == 0; }
  /// Returns the word for the next socket, held by one process.
  static std::uint64_t renewed(std::uint64_t held) {
    return ((held >> kLife) + 1) << kLife | kProcess;
  }
  // The slot's name.
  std::atomic<std::uint64_t> cookie{0};  ///< SO_COOKIE; 0: not to be found by its socket
  std::atomic<std::uint64_t> inode{0};   ///< of the socket
  std::atomic<std::uint32_t> pids{0};    ///< sys::pid_namespace() of its processes
  std::atomic<std::uint32_t> client{0};
  std::atomic<std::uint32_t> moved{0};  ///< it is in a pipe

  /// Prepares it for another open file, before any other process finds it. Locks and counters of
  /// threads that live stay as they are.
  void renew();
};
static_assert(sizeof(OpenFileState) == 256);

/// Returns the calling thread as a closer: sys::name_of().
std::int32_t closer_id();
/// Whether the thread that closed a counter with this word has ended: sys::has_ended().
bool closer_has_died(std::uint64_t word);

/// Notes that this process has closed the socket. True: others have it open.
bool leave_slot(Socket& s);
/// Stops counting this process as a user: no calls are under way, or it ends.
void use_slot_no_more(Socket& s);
/// Undoes both: the process goes on.
void use_slot_again(Socket& s);

}  // namespace clan::preload
