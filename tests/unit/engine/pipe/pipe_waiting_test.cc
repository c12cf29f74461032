// The flags of threads that sleep at a pipe, one call at a time; what comes with a flag, for
// ThreadSanitizer. That no wake-up is lost is in pipe_waiting_model_test.cc.
#include "engine/pipe/pipe_waiting.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

namespace clan::pipes {
namespace {

struct NoFence {
  static void even() {}
};
using Word = std::atomic<std::uint32_t>;
constexpr auto kRelaxed = std::memory_order_relaxed;

TEST(PipeWaiting, IsAThreadsOwnUntilAnotherOneWaitsToo) {
  Word waiting{0};
  announce<NoFence>(waiting, 7);
  announce<NoFence>(waiting, 7);
  EXPECT_EQ(waiting.load(kRelaxed), 7u);
  withdraw_reader(waiting, 8);
  EXPECT_EQ(waiting.load(kRelaxed), 7u) << "another's";
  withdraw_reader(waiting, 7);
  EXPECT_EQ(waiting.load(kRelaxed), 0u);
  for (const std::uint32_t me : {7u, 8u}) announce<NoFence>(waiting, me);
  EXPECT_EQ(waiting.load(kRelaxed), kAnybody);
  withdraw_reader(waiting, 7);
  EXPECT_EQ(waiting.load(kRelaxed), kAnybody) << "the other one still waits";
}

TEST(PipeWaiting, OfAWriterIsForAllRoomWhereTwoWantDifferentRooms) {
  Word waiting{0};
  announce<NoFence>(waiting, kWindowWanted);
  EXPECT_EQ(waiting.load(kRelaxed), kWindowWanted);
  announce<NoFence>(waiting, kAnybody);
  EXPECT_EQ(waiting.load(kRelaxed), kAnybody);
  announce<NoFence>(waiting, kWindowWanted);
  EXPECT_EQ(waiting.load(kRelaxed), kAnybody);
}

TEST(PipeWaiting, IsTakenOncePerSleepAndNotWhileThereIsTooLittleRoom) {
  Word reader{0}, writer{0};
  EXPECT_FALSE(take_waiting<NoFence>(reader));
  for (Word* word : {&reader, &writer}) announce<NoFence>(*word, kAnybody);
  EXPECT_TRUE(take_waiting<NoFence>(reader));
  EXPECT_FALSE(take_waiting<NoFence>(reader));
  std::uint32_t asked = 0;
  const auto answers = [&](bool enough) {
    return [&asked, enough](std::uint32_t flag) { return asked = flag, enough; };
  };
  EXPECT_FALSE(take_waiting_for_room<NoFence>(writer, answers(false)));
  EXPECT_EQ(asked, kAnybody);
  EXPECT_TRUE(take_waiting_for_room<NoFence>(writer, answers(true)));
  EXPECT_FALSE(take_waiting_for_room<NoFence>(writer, answers(true)));
}

// A reader that gives lines back looks how much room the writer that waits has. Its cursors are
// plain here.
template <typename Announce>
void race_cursors(const Announce& announce) {
  constexpr std::uint64_t kRounds = 200;
  Word waiting{0};
  std::array<std::uint64_t, kRounds + 1> cursors{};
  std::thread reader([&] {
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      const auto enough = [&](std::uint32_t) { return cursors[round] == round; };
      while (!take_waiting_for_room<NoFence>(waiting, enough)) std::this_thread::yield();
    }
  });
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    cursors[round] = round;
    announce(waiting);
    while (waiting.load(kRelaxed) != 0) std::this_thread::yield();
  }
  reader.join();
}

TEST(PipeWaiting, TheCursorsOfAWriterComeWithItsFlag) {
  race_cursors([](Word& waiting) { announce<NoFence>(waiting, kWindowWanted); });
}
TEST(PipeWaiting, TheCursorsOfAWriterInASetComeWithItsFlag) {
  Word reader{0};
  race_cursors([&](Word& waiting) {
    announce<NoFence>(reader, kAnybody);
    announce<NoFence>(waiting, kAnybody);
  });
}

}  // namespace
}  // namespace clan::pipes
