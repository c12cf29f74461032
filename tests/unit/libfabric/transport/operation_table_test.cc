#include "transport/operation_table.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <vector>

namespace clan::ofi {
namespace {

struct Ended {
  void* context;
  int err;
  bool operator==(const Ended&) const = default;
};
std::vector<Ended> g_ended;

struct OperationTableTest : testing::Test {
  OperationTable table{[](const Operation& operation, int err) {
    g_ended.push_back({operation.context, err});
  }};
  Peer peer, other;
  int contexts[3] = {};
  // Never read: only compared.
  alignas(64) std::byte owners[2][64] = {};
  Endpoint* const owner = reinterpret_cast<Endpoint*>(&owners[0]);
  Endpoint* const second_owner = reinterpret_cast<Endpoint*>(&owners[1]);

  OperationTableTest() {
    g_ended.clear();
    peer.send_by(1);
  }
  Operation& begin(Peer& to, int context, Op answer = Op::kAck) {
    SendRequest request;
    request.context = &contexts[context];
    Operation& operation = table.make(owner, to, request);
    operation.waits_for_answer = true;
    operation.answer = answer;
    return operation;
  }
};

TEST_F(OperationTableTest, EndsWhenTheLastThingItWaitsForHasCome) {
  Operation& operation = begin(peer, 1);
  operation.waits_for_copy = true;
  operation.waits_for_answer = false;
  table.settle(operation);
  EXPECT_TRUE(g_ended.empty());
  operation.waits_for_copy = false;
  table.settle(operation);
  EXPECT_EQ(g_ended, std::vector<Ended>({{&contexts[1], 0}}));
}

TEST_F(OperationTableTest, AnswersOnlyToThePeerAndTheKindOfAnswerThatItWaitsFor) {
  Operation& operation = begin(peer, 1, Op::kGetReply);
  EXPECT_EQ(table.answered(operation.id, peer, Op::kGetReply), &operation);
  EXPECT_EQ(table.answered(operation.id, other, Op::kGetReply), nullptr);
  EXPECT_EQ(table.answered(operation.id, peer, Op::kAck), nullptr);
  EXPECT_EQ(table.answered(operation.id + 1, peer, Op::kGetReply), nullptr);
  EXPECT_EQ(table.answered(0xffff'ffff, peer, Op::kGetReply), nullptr);
  table.finish(operation, 0);
  EXPECT_EQ(table.answered(operation.id, peer, Op::kGetReply), nullptr)
      << "an answer that comes twice";
}

TEST_F(OperationTableTest, UsesAPlaceAgainAsAnotherGeneration) {
  Operation& first = begin(peer, 1);
  const auto place = first.place;
  const auto generation = first.generation;
  table.finish(first, 0);
  Operation& second = begin(other, 2);
  EXPECT_EQ(second.place, place);
  EXPECT_NE(second.generation, generation);
  EXPECT_EQ(second.peer, &other);
}

TEST_F(OperationTableTest, TakesNoAnswerToAnOperationThatIsOverForOneToItsSuccessor) {
  Operation& first = begin(peer, 1);
  const auto id = first.id;
  table.finish(first, ECONNRESET);
  Operation& second = begin(peer, 2);
  ASSERT_EQ(second.place, first.place);
  EXPECT_EQ(table.answered(id, peer, Op::kAck), nullptr);
  EXPECT_EQ(table.answered(second.id, peer, Op::kAck), &second);
}

TEST_F(OperationTableTest, ClosesAPeerWhileABarrierIsUnderWay) {
  Operation& first = begin(peer, 1);
  Operation& second = begin(peer, 2);
  table.charge(first, 1, true);
  table.charge(second, 1, true);
  EXPECT_EQ(peer.open, kNoPeer);
  table.finish(first, 0);
  EXPECT_EQ(peer.open, kNoPeer);
  table.finish(second, 0);
  EXPECT_EQ(peer.open, peer.index);
}

TEST_F(OperationTableTest, GivesCreditBackWithTheAnswer) {
  Operation& operation = begin(peer, 1);
  EXPECT_TRUE(has_credit(peer, kMostOwed));
  table.charge(operation, kMostOwed, false);
  EXPECT_FALSE(has_credit(peer, 1));
  EXPECT_TRUE(has_credit(other, 1));
  table.finish(operation, 0);
  EXPECT_TRUE(has_credit(peer, kMostOwed));
}

TEST_F(OperationTableTest, FailsWhatWaitsForAPeerThatHasGone) {
  begin(peer, 0);
  begin(other, 1);
  begin(peer, 2);
  table.fail_all(peer, ECONNRESET);
  EXPECT_EQ(g_ended, std::vector<Ended>({{&contexts[0], ECONNRESET}, {&contexts[2], ECONNRESET}}));
  EXPECT_FALSE(table.any_with(peer));
  EXPECT_TRUE(table.any_with(other));
}

TEST_F(OperationTableTest, SaysNothingOfAnOwnerThatHasGone) {
  Operation& operation = begin(peer, 1);
  table.forget_owner(*second_owner);
  EXPECT_EQ(operation.owner, owner);
  table.forget_owner(*owner);
  table.finish(operation, 0);
  EXPECT_TRUE(g_ended.empty());
}

TEST_F(OperationTableTest, KeepsItsPeersFromBeingForgotten) {
  Operation& operation = begin(peer, 1);
  table.mark_referenced();
  EXPECT_TRUE(peer.referenced);
  EXPECT_FALSE(other.referenced);
  table.finish(operation, 0);
  peer.referenced = false;
  table.mark_referenced();
  EXPECT_FALSE(peer.referenced);
}

}  // namespace
}  // namespace clan::ofi
