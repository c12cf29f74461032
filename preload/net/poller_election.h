// PollerElection: which thread of this process fetches packets while threads of the program sleep.
//
//   nobody sleeps, or many do        the carrier's thread, and it rings for those whose bytes come
//   one sleeps, and does so often    that one: it has the sockets in what it sleeps on, so that a
//                                    packet wakes one thread; the carrier's thread keeps out
//   it is awake for a moment         nobody: it is back within 2 ms, or the carrier's thread takes
//                                    over
//   none sleeps, one sends           that one, now and then, as it does so; the carrier's thread
//                                    takes over when it has not for 0.1 ms
//
// A thread may leave its sleep without a word: a signal handler that jumps away, a thread that is
// cancelled. So a duty that is not renewed lasts for 2 ms, however long the sleep. A thread that
// sleeps longer has the sockets in its set all the same, and wakes together with the carrier's.
//
// Under the node's lock. Times are those of monotonic_ns().
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <unordered_set>
#include <utility>

namespace clan::preload {

class PollerElection {
 public:
  /// How far apart two sleeps are of a thread that does so often, and how long a duty lasts.
  static constexpr std::uint64_t kLastsNs = 2'000'000;
  static constexpr std::uint64_t kWorksNs = 100'000;  ///< between fetches of one that sends

  /// A thread goes to sleep. True: it fetches packets.
  bool begin(pid_t thread, bool may_fetch, std::uint64_t now) {
    // What it has left without a word is over.
    sleepers_.erase(thread);
    if (fetcher_ == thread) fetcher_ = 0;
    const bool alone = fetcher_ == 0 && sleepers_.empty();
    const bool often = begun_ns_ != 0 && now - begun_ns_ < kLastsNs;
    // Others do not renew the duty of one that may be gone.
    if (fetcher_ == 0) begun_ns_ = may_fetch && alone ? now : 0;
    if (may_fetch && alone && often) {
      fetcher_ = thread;
      return true;
    }
    sleepers_.insert(thread);
    return false;
  }
  /// It has slept. True: it had the duty.
  bool end(pid_t thread) {
    sleepers_.erase(thread);
    if (fetcher_ != thread) return false;
    fetcher_ = 0;
    return true;
  }
  /// The carrier's thread need not fetch any. A thread has sent or received, and fetched some, at
  /// `worked_ns`; 0: none has since one fell asleep.
  bool is_seen_to(std::uint64_t now, std::uint64_t worked_ns) const {
    if (is_wanted()) return false;
    const bool works = worked_ns != 0 && now - worked_ns < kWorksNs;
    return works || (begun_ns_ != 0 && now - begun_ns_ < kLastsNs);
  }
  /// Threads sleep, and none of them fetches.
  bool is_wanted() const { return fetcher_ == 0 && !sleepers_.empty(); }
  /// The carrier's thread fetches them from now on.
  void take() {
    if (fetcher_ != 0) sleepers_.insert(std::exchange(fetcher_, 0));
  }

 private:
  pid_t fetcher_ = 0;
  std::uint64_t begun_ns_ = 0;          ///< when a thread fell asleep that had the duty, or might
  std::unordered_set<pid_t> sleepers_;  ///< the others
};

}  // namespace clan::preload
