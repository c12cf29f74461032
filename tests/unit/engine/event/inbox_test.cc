#include "engine/event/inbox.h"

#include <gtest/gtest.h>

#include <thread>

#include "support/streams.h"

namespace clan::engine {
namespace {

struct Numbers final : Inbox<int> {
  explicit Numbers(std::shared_ptr<ContextCore> context)
      : Inbox(std::move(context), EventKind::kOob, 2) {}
  using Inbox::deliver;
  using Inbox::is_full;
};

class InboxTest : public testing::Test {
 protected:
  void TearDown() override { context->shut_down(); }
  std::shared_ptr<ContextCore> context = *ContextCore::create({});
  Numbers numbers{context};
};

TEST_F(InboxTest, GivesWhatHasBeenDeliveredInThatOrder) {
  EXPECT_EQ(numbers.try_take().error().err, EAGAIN);
  numbers.deliver(1);
  EXPECT_FALSE(numbers.is_full());
  numbers.deliver(2);
  EXPECT_TRUE(numbers.is_full());
  EXPECT_EQ(*numbers.try_take(), 1);
  EXPECT_EQ(*numbers.take(kNoDeadline), 2);
  EXPECT_EQ(numbers.take(monotonic_ns()).error().err, ETIMEDOUT);
}

TEST_F(InboxTest, WakesAThreadThatWaits) {
  std::thread waits([&] { EXPECT_EQ(*numbers.take(kNoDeadline), 3); });
  numbers.deliver(3);
  waits.join();
}

TEST_F(InboxTest, PostsAnEventAsLongAsThereIsSomething) {
  auto queue = *EventQueueCore::create(context);
  numbers.deliver(1);
  ASSERT_TRUE(numbers.bind(queue, 7).ok());
  numbers.deliver(2);
  Event event;
  for (int n : {1, 2}) {
    ASSERT_EQ(queue->poll({&event, 1}), 1u);
    EXPECT_EQ(event.tag, 7u);
    EXPECT_EQ(*numbers.try_take(), n);
  }
  EXPECT_EQ(queue->poll({&event, 1}), 0u);
}

TEST_F(InboxTest, EndsWithTheContext) {
  context->shut_down();
  EXPECT_EQ(numbers.take(kNoDeadline).error().err, ESHUTDOWN);
}

}  // namespace
}  // namespace clan::engine
