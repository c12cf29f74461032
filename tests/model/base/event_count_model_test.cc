// Runs base/event_count.h in every interleaving of a machine with store buffers. Broken versions
// show that the checker would notice.
#include <gtest/gtest.h>

#include "base/event_count.h"
#include "support/interleaving.h"
#include "support/model_checks.h"

namespace clan {
namespace {

using testing::expect_caught;
using testing::expect_safe;
using testing::Model;
using testing::model_futex_wait;
using testing::model_futex_wake;
using testing::ModelAtomic;
using testing::Report;

using Word = ModelAtomic<std::uint32_t>;
constexpr auto kRelaxed = std::memory_order_relaxed;

struct How {
  bool looks_before_preparing = false;
  bool notifies_before_it_is_there = false;
  bool uncounted = false;
};

// Threads that each wait for `there`, and one that has it.
Report run(int sleepers, How how = {}) {
  Model m;
  const Word there = m.word<std::uint32_t>("there");
  const BasicEventCount<Word> words{m.word<std::uint32_t>("news"),
                                    m.word<std::uint32_t>("sleepers")};
  for (int i = 0; i < sleepers; ++i) {
    m.thread("sleeper", [=](std::uint64_t) {
      auto count = words;
      for (;;) {
        const bool early = how.looks_before_preparing && there.load(kRelaxed) != 0;
        const std::uint32_t seen = count.prepare_wait();
        if (early || (!how.looks_before_preparing && there.load(kRelaxed) != 0)) return;
        const auto sleep = [&](Word& news) {
          model_futex_wait<std::uint32_t>(news, seen);
          return 0;
        };
        if (how.uncounted) {
          sleep(count.news);
        } else {
          count.commit_wait(sleep);
        }
      }
    });
  }
  m.thread("other", [=](std::uint64_t) {
    auto count = words;
    const auto notify = [&] { count.notify([](Word& news) { model_futex_wake(news); }); };
    if (how.notifies_before_it_is_there) notify();
    there.store(1, kRelaxed);
    if (!how.notifies_before_it_is_there) notify();
  });
  return m.run();
}

TEST(EventCountModel, LosesNoNews) {
  expect_safe(run(1));
  expect_safe(run(2));
}

TEST(EventCountModel, CatchesALookBeforeTheWaitIsPrepared) {
  expect_caught(run(1, {.looks_before_preparing = true}));
}

TEST(EventCountModel, CatchesNewsThatAreThereAfterTheNotification) {
  expect_caught(run(1, {.notifies_before_it_is_there = true}));
}

TEST(EventCountModel, CatchesASleeperThatIsNotCounted) {
  expect_caught(run(1, {.uncounted = true}));
}

}  // namespace
}  // namespace clan
