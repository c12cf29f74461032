// Triggered operations: calls with FI_TRIGGER begin when a counter has come to its threshold, and
// not before.
#include <rdma/fi_trigger.h>

#include "libfabric/node.h"

namespace clan::test {
namespace {

fi_triggered_context2 when(fid_cntr* counter, std::size_t threshold) {
  fi_triggered_context2 context{};
  context.event_type = FI_TRIGGER_THRESHOLD;
  context.trigger.threshold.cntr = counter;
  context.trigger.threshold.threshold = threshold;
  return context;
}

TEST(FabricTriggers, SendAndWriteWhenTheirCounterSaysSo) {
  Two two;
  fi_cntr_attr attr{};
  fid_cntr* made;
  MUST(fi_cntr_open(two.a.domain.get(), &attr, &made, nullptr));
  const Object<fid_cntr> counter(made);
  int received = 0, memory = 0;
  fid_mr* region = nullptr;
  MUST(fi_mr_reg(two.b.domain.get(), &memory, sizeof memory, FI_REMOTE_WRITE, 0, 5, 0, &region,
                 nullptr));
  const Object<fid_mr> registered(region);
  ASSERT_EQ(fi_recv(two.b.ep.get(), &received, sizeof received, nullptr, FI_ADDR_UNSPEC, nullptr),
            0);

  int message = 11, value = 22;
  auto send_when = when(counter.get(), 2);
  auto write_when = when(counter.get(), 3);
  const iovec sent_from{&message, sizeof message}, written_from{&value, sizeof value};
  fi_msg msg{};
  msg.msg_iov = &sent_from;
  msg.iov_count = 1;
  msg.addr = two.to_b;
  msg.context = &send_when;
  const fi_rma_iov target{0, sizeof value, 5};
  fi_msg_rma rma{};
  rma.msg_iov = &written_from;
  rma.iov_count = 1;
  rma.addr = two.to_b;
  rma.rma_iov = &target;
  rma.rma_iov_count = 1;
  rma.context = &write_when;
  ASSERT_EQ(fi_writemsg(two.a.ep.get(), &rma, FI_TRIGGER), 0);
  ASSERT_EQ(fi_sendmsg(two.a.ep.get(), &msg, FI_TRIGGER), 0);

  fi_cq_tagged_entry entry;
  for (std::uint64_t count = 1; count <= 3; ++count) {
    ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
    if (count == 2) {
      ASSERT_TRUE(two.completes(two.b, &entry));
      ASSERT_TRUE(two.completes(two.a, &entry));
      EXPECT_EQ(entry.op_context, &send_when);
    }
    if (count == 3) {
      ASSERT_TRUE(two.completes(two.a, &entry));
      EXPECT_EQ(entry.op_context, &write_when);
    }
    two.idle();
    EXPECT_EQ(received, count >= 2 ? 11 : 0) << count;
    EXPECT_EQ(memory, count >= 3 ? 22 : 0) << count;
  }
}

// The bytes are the program's again when the call returns, long before the operation begins.
TEST(FabricTriggers, TakeTheBytesThatAreInjectedAtOnce) {
  Two two;
  fid_cntr* made;
  MUST(fi_cntr_open(two.a.domain.get(), nullptr, &made, nullptr));
  const Object<fid_cntr> counter(made);
  struct {
    std::uint32_t written[2] = {0, 0}, sum = 1000, swapped = 5;
  } memory;
  fid_mr* region = nullptr;
  MUST(fi_mr_reg(two.b.domain.get(), &memory, sizeof memory, FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 5,
                 0, &region, nullptr));
  const Object<fid_mr> registered(region);
  std::uint32_t received[2] = {0, 0};
  ASSERT_EQ(fi_recv(two.b.ep.get(), received, sizeof received, nullptr, FI_ADDR_UNSPEC, nullptr),
            0);

  std::uint32_t values[] = {11, 22}, compare = 5, found = 0;
  const iovec pieces[] = {{&values[0], 4}, {&values[1], 4}};
  auto trigger = when(counter.get(), 1);
  fi_msg msg{};
  msg.msg_iov = pieces;
  msg.iov_count = 2;
  msg.addr = two.to_b;
  msg.context = &trigger;
  ASSERT_EQ(fi_sendmsg(two.a.ep.get(), &msg, FI_TRIGGER | FI_INJECT), 0);
  const fi_rma_iov target{0, 8, 5};
  fi_msg_rma rma{pieces, nullptr, 2, two.to_b, &target, 1, &trigger, 0};
  ASSERT_EQ(fi_writemsg(two.a.ep.get(), &rma, FI_TRIGGER | FI_INJECT), 0);
  const fi_ioc operand{&values[0], 1}, comparand{&compare, 1};
  fi_ioc result{&found, 1};
  const fi_rma_ioc sum{8, 1, 5}, swapped{12, 1, 5};
  fi_msg_atomic atomic{&operand, nullptr, 1, two.to_b, &sum, 1, FI_UINT32, FI_SUM, &trigger, 0};
  ASSERT_EQ(fi_atomicmsg(two.a.ep.get(), &atomic, FI_TRIGGER | FI_INJECT), 0);
  atomic.rma_iov = &swapped;
  atomic.op = FI_CSWAP;
  ASSERT_EQ(fi_compare_atomicmsg(two.a.ep.get(), &atomic, &comparand, nullptr, 1, &result, nullptr,
                                 1, FI_TRIGGER | FI_INJECT),
            0);
  values[0] = values[1] = compare = 99;
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_TRUE(eventually([&] {
    fi_cq_tagged_entry entry;
    for (Node* node : {&two.a, &two.b}) (void)fi_cq_read(node->cq.get(), &entry, 1);
    return received[0] != 0 && memory.sum != 1000 && found != 0;
  }));
  EXPECT_EQ(received[0], 11u);
  EXPECT_EQ(received[1], 22u);
  EXPECT_EQ(memory.written[0], 11u);
  EXPECT_EQ(memory.written[1], 22u);
  EXPECT_EQ(memory.sum, 1011u);
  EXPECT_EQ(found, 5u);
  EXPECT_EQ(memory.swapped, 11u);

  // As much as an injected message has at most.
  const std::vector<char> longest(two.a.info->tx_attr->inject_size + 1);
  const iovec too_long{const_cast<char*>(longest.data()), longest.size()};
  msg.msg_iov = &too_long;
  msg.iov_count = 1;
  EXPECT_EQ(fi_sendmsg(two.a.ep.get(), &msg, FI_TRIGGER | FI_INJECT), -FI_EMSGSIZE);
}

TEST(FabricTriggers, WithoutACounterAreRefused) {
  Two two;
  int message = 1;
  const iovec iov{&message, sizeof message};
  auto never = when(nullptr, 1);
  fi_msg msg{};
  msg.msg_iov = &iov;
  msg.iov_count = 1;
  msg.addr = two.to_b;
  msg.context = &never;
  EXPECT_EQ(fi_sendmsg(two.a.ep.get(), &msg, FI_TRIGGER), -FI_EINVAL);
}

// Work that cannot be started is an error of its counter, and of its queue; a thread that waits for
// either goes on.
TEST(FabricDeferredWork, ThatFailsIsCountedAndWhatWaitsForThatIsStarted) {
  Two two;
  const auto open = [&] {
    fid_cntr* c = nullptr;
    MUST(fi_cntr_open(two.a.domain.get(), nullptr, &c, nullptr));
    return Object<fid_cntr>(c);
  };
  auto trigger = open(), done = open(), after = open(), never = open();
  sockaddr_in nobody{};
  nobody.sin_family = AF_INET;
  nobody.sin_port = htons(1);
  nobody.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto* raw = reinterpret_cast<const char*>(&nobody);
  int context = 0;
  char byte = 0;
  iovec iov{&byte, 1};
  fi_op_msg send{};
  send.ep = two.a.ep.get();
  send.msg.msg_iov = &iov;
  send.msg.iov_count = 1;
  send.msg.addr = two.a.insert({raw, raw + sizeof nobody});
  send.msg.context = &context;
  fi_deferred_work first{};
  first.threshold = 1;
  first.triggering_cntr = trigger.get();
  first.completion_cntr = done.get();
  first.op_type = FI_OP_SEND;
  first.op.msg = &send;
  fi_op_cntr add{after.get(), 5};
  fi_deferred_work second{};
  second.threshold = 1;
  second.triggering_cntr = done.get();
  second.op_type = FI_OP_CNTR_ADD;
  second.op.cntr = &add;
  fi_deferred_work third = second;  // it never comes to that
  third.triggering_cntr = never.get();
  for (fi_deferred_work* work : {&first, &second, &third})
    MUST(fi_control(&two.a.domain->fid, FI_QUEUE_WORK, work));
  for (auto* used : {&trigger, &done, &after, &never})
    EXPECT_EQ(fi_close(&(*used)->fid), -FI_EBUSY);
  ASSERT_EQ(fi_control(&two.a.domain->fid, FI_CANCEL_WORK, &third), 0);
  never.reset();
  ASSERT_EQ(fi_cntr_add(trigger.get(), 1), 0);
  EXPECT_TRUE(eventually([&] { return fi_cntr_readerr(done.get()) == 1; }));
  EXPECT_EQ(fi_cntr_read(done.get()), 0u);
  EXPECT_EQ(fi_cntr_read(after.get()), 5u);
  fi_cq_err_entry error{};
  ASSERT_EQ(fi_cq_readerr(two.a.cq.get(), &error, 0), 1);
  EXPECT_EQ(error.err, FI_ECONNREFUSED);
  EXPECT_EQ(error.op_context, &context);
}

// Started work keeps its counter, which is bound to nothing, until it is done.
TEST(FabricDeferredWork, ForAPeerWithoutRoomKeepsNothingElseWaiting) {
  Two two;
  Node third;
  third.enable();
  const fi_addr_t to_third = two.a.insert(third.name());
  fi_cq_tagged_entry entry;
  const auto exchange = [&](Node& with, fi_addr_t to) {
    ASSERT_EQ(sent([&] { return fi_tinject(two.a.ep.get(), "x", 1, to, 9); }, two.a), 0);
    char byte = 0;
    ASSERT_EQ(fi_trecv(with.ep.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, 9, 0, nullptr), 0);
    ASSERT_TRUE(eventually([&] { return fi_cq_read(with.cq.get(), &entry, 1) == 1; }));
  };
  exchange(two.b, two.to_b);
  exchange(third, to_third);
  // `b` does not read any more.
  const auto filler = pattern(4096, 1);
  for (const std::size_t n : {filler.size(), std::size_t{1}}) {
    ssize_t rc = 0;
    while (rc == 0) rc = fi_tinject(two.a.ep.get(), filler.data(), n, two.to_b, 7);
    ASSERT_EQ(rc, -FI_EAGAIN);
  }

  fid_cntr* made = nullptr;
  MUST(fi_cntr_open(two.a.domain.get(), nullptr, &made, nullptr));
  const Object<fid_cntr> counter(made);
  struct Message {
    int value;
    fi_triggered_context2 context;
    iovec iov;
  };
  Message messages[4] = {{1, {}, {}}, {2, {}, {}}, {3, {}, {}}, {4, {}, {}}};
  for (Message& m : messages) {
    m.context = when(counter.get(), 1);
    m.iov = {&m.value, sizeof m.value};
    fi_msg msg{};
    msg.msg_iov = &m.iov;
    msg.iov_count = 1;
    msg.addr = m.value <= 2 ? two.to_b : to_third;
    msg.context = &m.context;
    ASSERT_EQ(fi_sendmsg(two.a.ep.get(), &msg, FI_TRIGGER), 0);
  }
  const auto received = [&](Node& node) {
    int value = 0;
    EXPECT_EQ(fi_recv(node.ep.get(), &value, sizeof value, nullptr, FI_ADDR_UNSPEC, &value), 0);
    EXPECT_TRUE(eventually([&] {
      (void)fi_cq_read(two.a.cq.get(), &entry, 1);
      return fi_cq_read(node.cq.get(), &entry, 1) == 1 && entry.op_context == &value;
    }));
    return value;
  };
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_EQ(received(third), 3);
  EXPECT_EQ(received(third), 4);
  // What is for one peer keeps its order.
  EXPECT_EQ(received(two.b), 1);
  EXPECT_EQ(received(two.b), 2);
}

TEST(FabricDeferredWork, ThatIsUnderWayKeepsItsCounter) {
  Two two;
  fid_cntr* c = nullptr;
  MUST(fi_cntr_open(two.b.domain.get(), nullptr, &c, nullptr));
  Object<fid_cntr> received(c);
  MUST(fi_cntr_open(two.b.domain.get(), nullptr, &c, nullptr));
  Object<fid_cntr> sent_well(c);
  MUST(fi_cntr_open(two.b.domain.get(), nullptr, &c, nullptr));
  Object<fid_cntr> trigger(c);
  char in[8] = {};
  iovec iov{in, sizeof in};
  fi_op_msg operation{};
  operation.ep = two.b.ep.get();
  operation.msg.msg_iov = &iov;
  operation.msg.iov_count = 1;
  operation.msg.addr = FI_ADDR_UNSPEC;
  fi_deferred_work work{};
  work.triggering_cntr = trigger.get();
  work.completion_cntr = received.get();
  work.op_type = FI_OP_RECV;
  work.op.msg = &operation;
  fi_op_msg other = operation;
  other.msg.addr = two.to_a;
  other.flags = FI_DELIVERY_COMPLETE;
  fi_deferred_work answer = work;
  answer.completion_cntr = sent_well.get();
  answer.op_type = FI_OP_SEND;
  answer.op.msg = &other;
  MUST(fi_control(&two.b.domain->fid, FI_QUEUE_WORK, &work));
  MUST(fi_control(&two.b.domain->fid, FI_QUEUE_WORK, &answer));
  EXPECT_TRUE(eventually([&] {  // it has been sent: its trigger is free again
    two.idle(1);
    return fi_close(&trigger->fid) == 0;
  }));
  (void)trigger.release();
  EXPECT_EQ(fi_close(&received->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&sent_well->fid), -FI_EBUSY);
  char taken[8];
  ASSERT_EQ(fi_recv(two.a.ep.get(), taken, sizeof taken, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  ASSERT_EQ(sent([&] { return fi_inject(two.a.ep.get(), "x", 1, two.to_b); }, two.a), 0);
  EXPECT_TRUE(eventually([&] {
    two.idle(1);
    return fi_cntr_read(received.get()) == 1 && fi_cntr_read(sent_well.get()) == 1;
  }));
  received.reset();
  // Nor does a cancelled one, whose counter counts that.
  MUST(fi_cntr_open(two.b.domain.get(), nullptr, &c, nullptr));
  trigger.reset(c);
  work.triggering_cntr = trigger.get();
  work.completion_cntr = sent_well.get();
  operation.msg.context = &work;
  MUST(fi_control(&two.b.domain->fid, FI_QUEUE_WORK, &work));
  EXPECT_EQ(fi_close(&sent_well->fid), -FI_EBUSY);
  EXPECT_EQ(fi_cancel(&two.b.ep->fid, &work), 0);
  EXPECT_EQ(fi_cntr_readerr(sent_well.get()), 1u);
}

}  // namespace
}  // namespace clan::test
