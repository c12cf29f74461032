#include "engine/context/queue_table.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include "clan/context.h"
#include "engine/context/context_core.h"
#include "engine/event/event_queue_core.h"

namespace clan::engine {
namespace {

class QueueTableTest : public testing::Test {
 protected:
  void SetUp() override {
    auto core = ContextCore::create({});
    ASSERT_TRUE(core.ok());
    core_ = *core;
  }
  void TearDown() override { core_->shut_down(); }
  std::shared_ptr<EventQueueCore> queue() {
    auto made = EventQueueCore::create(core_);
    EXPECT_TRUE(made.ok());
    return *made;
  }
  QueueTable& table() { return core_->queues(); }

  std::shared_ptr<ContextCore> core_;
};

TEST_F(QueueTableTest, GivesTheLowestFreeNumber) {
  const auto first = queue();
  auto second = queue();
  const auto third = queue();
  EXPECT_EQ(first->index(), 0u);
  EXPECT_EQ(second->index(), 1u);
  EXPECT_EQ(third->index(), 2u);
  second.reset();
  EXPECT_EQ(queue()->index(), 1u);
}

TEST_F(QueueTableTest, KeepsTheDescriptorOfANumberWhenItsQueueGoes) {
  auto first = queue();
  const auto made = table().fd(first->index());
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(made->made);
  first.reset();
  const auto next = queue();
  const auto again = table().fd(next->index());
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->made);
  EXPECT_EQ(again->fd, made->fd);
}

TEST_F(QueueTableTest, ListsOnlyNumbersThatHaveADescriptor) {
  const auto first = queue(), second = queue();
  const auto made = table().fd(second->index());
  ASSERT_TRUE(made.ok());
  const auto all = table().fds();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0], std::pair(second->index(), made->fd));
}

TEST_F(QueueTableTest, RingsTheQueueOfThatNumberAndNoOther) {
  const auto first = queue(), second = queue();
  const int rung = *first->fd(), quiet = *second->fd();
  table().ring(first->index());
  eventfd_t value = 0;
  EXPECT_EQ(::eventfd_read(rung, &value), 0);
  EXPECT_NE(::eventfd_read(quiet, &value), 0);
}

TEST_F(QueueTableTest, IgnoresARingForANumberThatNoQueueHas) {
  table().ring(7);
  queue();
  table().ring(0);
}

}  // namespace
}  // namespace clan::engine
