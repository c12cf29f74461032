// What all descriptors of an open file have in common, in all processes that have it.
#pragma once

#include <atomic>
#include <cstdint>

#include "clan/detail/dekker.h"
#include "clan/detail/system_call.h"
#include "clan/face/pipe_types.h"

namespace clan::preload {

struct Socket;

/// An open file: its locks, and counts of the calls that are under way in the kernel while the
/// connection is on TCP, so that no thread moves it under them. In a table that the processes of
/// the end share (table/slot_table.h) and the other end does not have.
struct alignas(256) OpenFileState {
  /// Calls (bits 0 to 29), whether it is closed, and by which thread (from kCloser on), so that
  /// others see when that has been killed. In `sends`, kSendsAgain says that this process sends
  /// again what the other end has not read (demote/resend.h).
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
  /// Closes a counter that is zero. A call that counts up meanwhile sees kClosed and steps back.
  static bool try_close(Counter& counter, std::int32_t closer) {
    std::uint64_t none = 0;
    // PAIR preload.gate: sees what calls under way have done
    return counter.compare_exchange_strong(none, closed_by(closer), std::memory_order_acq_rel);
  }
  /// Closes a counter whatever it counts: none of these calls is in the kernel.
  static bool try_close_over(Counter& counter, std::int32_t closer) {
    std::uint64_t now = counter.load(std::memory_order_relaxed);
    return (now & kClosed) == 0 &&
           // PAIR preload.gate: as try_close()
           counter.compare_exchange_strong(now, now | closed_by(closer), std::memory_order_acq_rel);
  }
  /// Opens a counter that `closer` has closed. Others may be stepping back meanwhile.
  static void open(Counter& counter, std::int32_t closer) {
    std::uint64_t now = counter.load(std::memory_order_relaxed);
    while (is_closed_by(now, closer) &&
           // PAIR preload.gate: publishes what was done behind it
           !counter.compare_exchange_weak(now, now & (kClosed - 1), std::memory_order_acq_rel)) {
    }
  }
  /// Hands a counter that `from` has closed on to `to`.
  static void hand_on(Counter& counter, std::int32_t from, std::int32_t to) {
    std::uint64_t now = counter.load(std::memory_order_relaxed);
    // Calls that find it closed and step back change the count in the same word.
    while (is_closed_by(now, from) &&
           // PAIR preload.gate: what `from` has done is done by `to`
           !counter.compare_exchange_weak(now, (now & (kClosed - 1)) | closed_by(to),
                                          std::memory_order_acq_rel)) {
    }
  }
  /// A call in the kernel, counted. False: somebody has closed the counter, and the call has to
  /// look again.
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
  /// No thread moves it any more; one that does just now has looked before.
  // PAIR preload.held: checked again when it counts
  void pin() { dekker::announce(pinned, 1); }

  Counter sends{0};
  Counter receives{0};
  PipeLocks locks;
  /// A thread that publishes something in the pipe, and reads there, has not rung yet. When its
  /// process has been killed, the next call of the end rings in its place. One word for each
  /// direction.
  std::atomic<std::uint32_t> owes_ring[2] = {};
  /// Bytes that calls of this library have sent and received while the connection was on TCP.
  std::atomic<std::uint64_t> sent{0}, received{0};
  /// a process has the open file that we cannot reach: never move it
  std::atomic<std::int32_t> pinned{0};
  /// What has the open file; a process that was killed counts as long as it is:
  ///
  ///   bits 0 to 20    processes that may have calls on it under way
  ///   bits 21 to 41   those of them that have not closed it
  ///   bits 42 to 51   descriptors that have been passed, and whose receivers have not said yet
  ///                   that they know of this
  ///   above           which life of the slot it is, see share/passing.cc
  std::atomic<std::uint64_t> held{0};
  static constexpr std::uint64_t kUser = 1, kHolder = 1u << 21, kProcess = kUser | kHolder;
  static constexpr std::uint64_t kOnItsWay = std::uint64_t{1} << 42;
  static constexpr unsigned kLife = 52;  ///< a shift
  static std::uint64_t users(std::uint64_t held) { return held & (kHolder - 1); }
  static std::uint64_t holders(std::uint64_t held) { return held / kHolder & (kHolder - 1); }
  static std::uint64_t on_its_way(std::uint64_t held) { return held / kOnItsWay & 0x3ff; }
  /// The calling process alone has it, and may move it.
  static bool is_alone(std::uint64_t held) { return users(held) == 1 && on_its_way(held) == 0; }
  /// The word for the next socket, of one process.
  static std::uint64_t renewed(std::uint64_t held) {
    return ((held >> kLife) + 1) << kLife | kProcess;
  }
  // By which others find the slot.
  std::atomic<std::uint64_t> cookie{0};  ///< SO_COOKIE; 0: not to be found by its socket
  std::atomic<std::uint64_t> inode{0};   ///< of the socket
  std::atomic<std::uint32_t> pids{0};    ///< sys::pid_namespace() of its processes
  std::atomic<std::uint32_t> client{0};
  std::atomic<std::uint32_t> moved{0};  ///< it is in a pipe

  /// For another open file, before any other process finds it. What threads left closed or locked
  /// stays so for as long as they live.
  void renew();
};
static_assert(sizeof(OpenFileState) == 256);

/// The calling thread as a closer: sys::name_of().
std::int32_t closer_id();
/// The thread that has closed a counter with this word has ended: sys::has_ended().
bool closer_has_died(std::uint64_t word);

/// This process has closed the socket. True: others have it open.
bool leave_slot(Socket& s);
/// It has no call on it under way either, or ends: it is none of the slot's users.
void use_slot_no_more(Socket& s);
/// It goes on after all.
void use_slot_again(Socket& s);

}  // namespace clan::preload
