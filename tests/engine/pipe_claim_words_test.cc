// Threads that share a sending end hand plain data to each other by the words of their claims:
// ThreadSanitizer sees what the orders are for. Interleavings: pipe_claim_words_model_test.cc.
#include "engine/pipe_claim_words.h"

#include <gtest/gtest.h>

#include "support/hand_over.h"

namespace clan::pipes {
namespace {

using Word = std::atomic<std::uint64_t>;

struct Fence {
  static void even() { std::atomic_thread_fence(std::memory_order_seq_cst); }
};

TEST(PipeClaimOrder, OneThatReadsAMarkedClaimSeesWhatIsPlanned) {
  Word owner{7};
  std::uint64_t place = 0, seen = 0;
  test::hand_over([&] { place = 5, mark_claim<Fence>(owner, kPlanned | 7); },
                  [&] {
                    EXPECT_EQ(read_marked(owner, [&] { seen = place; }), kPlanned | 7);
                  });
  EXPECT_EQ(seen, 5u);
}

TEST(PipeClaimOrder, OneThatFindsAClaimFreeSeesWhatItsOwnerHasWritten) {
  Word owner{kPlanned | 7};
  std::uint64_t line = 0;
  test::hand_over([&] { line = 5, unmark_claim(owner, 0); },
                  [&] {
                    EXPECT_EQ(owner.load(std::memory_order_acquire), 0u);
                    EXPECT_EQ(line, 5u);
                  });
}

TEST(PipeClaimOrder, OneThatFindsARecordSeesItsPayload) {
  Word line{0};
  std::uint64_t payload = 0;
  test::hand_over([&] {
                    payload = 5;
                    EXPECT_TRUE(publish_first(line, 9));
                  },
                  [&] {
                    EXPECT_EQ(line.load(std::memory_order_acquire), 9u);
                    EXPECT_EQ(payload, 5u);
                  });
}

TEST(PipeClaimOrder, OneThatFindsTheTailRaisedSeesTheOtherCursors) {
  Word tail{1};
  std::uint64_t bound = 0;
  test::hand_over([&] { bound = 5, raise(tail, 9); },
                  [&] {
                    EXPECT_EQ(tail.load(std::memory_order_acquire), 9u);
                    EXPECT_EQ(bound, 5u);
                  });
}

}  // namespace
}  // namespace clan::pipes
