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

}  // namespace
}  // namespace clan::test
