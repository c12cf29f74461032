// EventCount: threads of a process wait for news from other threads, of this process or of another.
//
//   waits                                    has news
//     seen = prepare_wait()                    changes what is waited for
//     what it waits for there? go on           notify()
//     commit_wait(sleep while still `seen`)
//
// A thread that need not sleep after all takes nothing back. Sleepers are counted: a notify()
// without any costs no system call. A template: tests/model/base/event_count_model_test.cc runs
// these lines in every interleaving of a machine with store buffers.
//
// It may lie in shared memory, as a tripwire's `fired` does. Do not use it for what changes with
// every message, which would pay for the count: there the message itself is the news, and the flags
// of those that sleep are in nic/wakeup.h and engine/pipe/pipe_waiting.h. Nothing may reset
// `sleepers`: a thread that has just woken still subtracts itself.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/futex.h"
#include "clan/detail/dekker.h"

namespace clan {

template <typename Word>
struct BasicEventCount {
  Word news{};      ///< futex word: counts them
  Word sleepers{};  ///< on it

  std::uint32_t prepare_wait() const {
    // PAIR event_count.news: before the look at what is waited for
    return dekker::load(news);
  }
  /// A glance at whether there have been news since prepare_wait() answered `seen`.
  bool has_changed(std::uint32_t seen) const {
    return news.load(std::memory_order_relaxed) != seen;  // relaxed: a hint
  }
  /// `sleep(news)` sleeps while that word is what prepare_wait() answered. Returns what it returns.
  template <typename Sleep>
  int commit_wait(Sleep&& sleep) {
    // PAIR event_count.sleepers: before the sleep compares `news`
    dekker::add(sleepers, 1);
    // order: one total order with notify(): a hostile process may have made the count 0
    if (dekker::load(sleepers) == 0) dekker::add(sleepers, 1);
    const int rc = sleep(news);
    dekker::subtract(sleepers, 1);
    return rc;
  }
  template <typename Wake>
  void notify(Wake&& wake) {
    // PAIR event_count.news: behind what is waited for
    dekker::add(news, 1);
    // PAIR event_count.sleepers: behind the change that a sleep compares with
    if (dekker::load(sleepers) != 0) wake(news);
  }
  void notify() {
    notify([](auto& word) { futex_wake(word); });
  }
  /// As notify(), whatever a hostile process has made of `sleepers`.
  void notify_all_the_same() {
    // PAIR event_count.news: behind what is waited for
    dekker::add(news, 1);
    futex_wake(news);
  }
};

using EventCount = BasicEventCount<std::atomic<std::uint32_t>>;

}  // namespace clan
