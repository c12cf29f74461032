// Runs the picture at the top of clan/detail/dekker.h in every interleaving of a machine with store
// buffers: a thread that is about to sleep, and one that has news for it. Broken versions show that
// the checker would notice.
#include <gtest/gtest.h>

#include "clan/detail/dekker.h"
#include "support/interleaving.h"
#include "support/model_checks.h"

namespace clan::dekker {
namespace {

using testing::expect_caught;
using testing::expect_safe;
using testing::Model;
using testing::model_futex_wait;
using testing::model_futex_wake;
using testing::ModelAtomic;
using testing::ModelFence;
using testing::Report;
using testing::Unfenced;

using Side = ModelAtomic<std::uint32_t>;
constexpr auto kRelaxed = std::memory_order_relaxed;

/// `says` and `tells` change the word of the sleeper and that of the other side.
template <typename Says, typename Tells>
Report run(Says&& says, Tells&& tells, bool looks_first = false) {
  Model m;
  const Side sleeping = m.word<std::uint32_t>("sleeping"), news = m.word<std::uint32_t>("news"),
             rung = m.word<std::uint32_t>("rung");
  m.thread("sleeper", [=](std::uint64_t) {
    if (looks_first && load(news) != 0) return;
    says(sleeping);
    if (looks_first || load(news) == 0) model_futex_wait<std::uint32_t>(rung, 0);
  });
  m.thread("other", [=](std::uint64_t) {
    tells(news);
    if (load(sleeping) == 0) return;
    announce(rung, 1);
    model_futex_wake(rung);
  });
  return m.run();
}

const auto kAnnounces = [](Side word) { announce(word, 1); };
const auto kSettles = [](Side word) {
  word.store(1, kRelaxed);
  settle<ModelFence>();
};

TEST(DekkerModel, NeitherMissesTheOther) { expect_safe(run(kAnnounces, kAnnounces)); }

TEST(DekkerModel, NeitherMissesTheOtherWhereOneCounts) {
  expect_safe(run(kAnnounces, [](Side word) { add(word, 1); }));
}

TEST(DekkerModel, NeitherMissesTheOtherWhereAWordIsChangedByOtherMeans) {
  expect_safe(run(kSettles, kAnnounces));
  expect_safe(run(kAnnounces, kSettles));
}

TEST(DekkerModel, CatchesAChangeThatIsLateBehindTheLook) {
  const auto plainly = [](Side word) { word.store(1, kRelaxed); };
  expect_caught(run(plainly, kAnnounces));
  expect_caught(run(kAnnounces, plainly));
}

TEST(DekkerModel, CatchesAFenceThatIsLeftOut) {
  const auto unfenced = [](Side word) {
    word.store(1, kRelaxed);
    settle<Unfenced>();
  };
  expect_caught(run(unfenced, kAnnounces));
}

TEST(DekkerModel, CatchesALookBeforeTheChange) { expect_caught(run(kAnnounces, kAnnounces, true)); }

}  // namespace
}  // namespace clan::dekker
