// Runs libfabric-provider/wait/wait_words.h under every interleaving of an x86 machine, and broken
// versions of it to show that the checker would notice. What is waited for is a counter, which is
// set and read without a lock (Counter::set_value(), Counter::news()); the descriptors are
// eventfds, which stay readable until they are emptied.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/interleaving.h"
#include "support/model_checks.h"
#include "wait/wait_words.h"

namespace clan::ofi {
namespace {

using testing::Model;
using testing::model_await;
using testing::model_futex_wait;
using testing::model_futex_wake;
using testing::model_restart;
using testing::ModelAtomic;
using testing::Report;

constexpr auto kSeqCst = std::memory_order_seq_cst;

struct Words {
  ModelAtomic<bool> armed;
  ModelAtomic<int> sleepers;
  ModelAtomic<bool> full, shown;
};

struct Options {
  std::vector<std::uint32_t> thresholds = {1};  ///< what calls that sleep wait for, each
  std::uint32_t changes = 1;                    ///< of the counter, one by one, by one thread
  bool program = false;         ///< sleeps by itself on a descriptor that it has been shown
  bool looks_before = false;    ///< not after it has joined
  bool always_empties = false;  ///< the descriptor, though others sleep on it
};

struct WaitModel {
  Model m;
  Options options;
  Words words{m.word<bool>("armed"), m.word<int>("sleepers"), m.word<bool>("full"),
              m.word<bool>("shown")};
  ModelAtomic<std::uint32_t> value = m.word<std::uint32_t>("counter");
  ModelAtomic<std::uint32_t> event = m.word<std::uint32_t>("eventfd");
  ModelAtomic<std::uint32_t> shown_event = m.word<std::uint32_t>("eventfd of the program");
  ModelAtomic<std::uint32_t> unlocked = m.word<std::uint32_t>("mutex", 1);

  static void fill(const ModelAtomic<std::uint32_t>& fd) {
    fd.store(1, kSeqCst);
    model_futex_wake(fd);
  }
  static void empty(const ModelAtomic<std::uint32_t>& fd) { fd.store(0, kSeqCst); }

  void lock(std::uint64_t again) const {
    model_await(unlocked);
    std::uint32_t is = 1;
    if (!unlocked.compare_exchange_strong(is, 0, kSeqCst)) model_restart(again);
  }
  void unlock() const { unlocked.store(1, std::memory_order_release); }

  void change(std::uint64_t done) const {
    if (done == options.changes) return;
    value.store(static_cast<std::uint32_t>(done + 1), kSeqCst);
    if (may_sleep(words)) {
      wake_sleepers(
          words, [this] { fill(event); }, [this] { fill(shown_event); });
    }
    model_restart(done + 1);
  }

  enum Step : std::uint64_t { kLook, kJoin, kAsleep, kUp, kLeave };

  // WaitObject::sleep_unless(), again and again.
  void wait(std::uint32_t threshold, std::uint64_t step) const {
    const auto ready = [&] { return value.load(kSeqCst) >= threshold; };
    switch (step) {
      case kLook:
        if (ready()) return;
        model_restart(kJoin);
      case kJoin: {
        lock(kJoin);
        if (options.always_empties) empty(event);
        const bool joined = join_sleepers(words, [this] { empty(event); });
        unlock();
        if (!joined) model_restart(kLook);
        model_restart(!options.looks_before && ready() ? kLeave : kAsleep);
      }
      case kAsleep: model_futex_wait<std::uint32_t>(event, 0); model_restart(kUp);
      case kUp: leave_sleepers(words, true); model_restart(kLook);
      default: leave_sleepers(words, false); model_restart(kLook);
    }
  }

  // fi_trywait(), and poll() of what it has been shown.
  void sleep_alone(std::uint64_t step) const {
    if (step == kLook) {
      if (value.load(kSeqCst) == options.changes) return;
      lock(kLook);
      arm_shown(words, [this] { empty(shown_event); });
      const bool pending = value.load(kSeqCst) == options.changes;
      if (pending) fill(shown_event);  // for others that sleep on it
      unlock();
      model_restart(pending ? kLook : kAsleep);
    }
    model_futex_wait<std::uint32_t>(shown_event, 0);
    model_restart(kLook);
  }

  Report run(Options o) {
    options = std::move(o);
    for (std::size_t i = 0; i < options.thresholds.size(); ++i) {
      m.thread("call" + std::to_string(i),
               [this, i](auto step) { wait(options.thresholds[i], step); });
    }
    if (options.program) {
      words.shown = m.word<bool>("is shown", true);
      m.thread("program", [this](auto step) { sleep_alone(step); });
    }
    m.thread("other", [this](auto done) { change(done); });
    const std::size_t threads = options.thresholds.size() + (options.program ? 1 : 0);
    m.at_end([threads](const Model::End& end) {
      for (std::size_t i = 0; i < threads; ++i) {
        if (!end.done(i)) return std::string("one waits for ever");
      }
      return std::string();
    });
    return m.run();
  }
};

Report waits(Options options) { return WaitModel{}.run(std::move(options)); }

TEST(WaitWords, LoseNoWakeUpOfOneCall) { expect_safe(waits({})); }
TEST(WaitWords, LoseNoWakeUpOfOneCallThatSleepsTwice) {
  expect_safe(waits({.thresholds = {2}, .changes = 2}));
}
TEST(WaitWords, LoseNoWakeUpOfTwoCallsThatWaitForDifferentThings) {
  expect_safe(waits({.thresholds = {1, 2}, .changes = 2}));
}
TEST(WaitWords, LoseNoWakeUpOfAProgramThatSleepsByItself) {
  expect_safe(waits({.thresholds = {}, .changes = 2, .program = true}));
}
TEST(WaitWords, LoseNoWakeUpOfAProgramBesideACall) {
  expect_safe(waits({.thresholds = {2}, .changes = 2, .program = true}));
}

TEST(WaitWordsBroken, WouldLoseOneIfACallLookedBeforeItJoined) {
  expect_caught(waits({.looks_before = true}));
}
TEST(WaitWordsBroken, WouldLoseOneIfACallEmptiedWhatOthersSleepOn) {
  expect_caught(waits({.thresholds = {1, 1}, .changes = 1, .always_empties = true}));
}

}  // namespace
}  // namespace clan::ofi
