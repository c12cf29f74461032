#include "system/transport_list.h"

#include <gtest/gtest.h>

#include "libfabric/transport/two_endpoints.h"

namespace clan::ofi {
namespace {

using TransportListTest = TwoEndpoints;

TEST_F(TransportListTest, ForgetsOneWhenItHasBeenRemovedAsOftenAsAdded) {
  TransportList list;
  EXPECT_TRUE(list.empty());
  list.add(ours.transport());
  list.add(ours.transport());
  list.add(theirs.transport());
  list.remove(ours.transport());
  list.remove(theirs.transport());
  EXPECT_FALSE(list.empty());
  list.remove(theirs.transport());
  EXPECT_FALSE(list.empty()) << "it was not there any more";
  list.remove(ours.transport());
  EXPECT_TRUE(list.empty());
}

TEST_F(TransportListTest, MakesProgressOfAllUntilThereIsSomething) {
  ASSERT_TRUE(connect());
  TransportList list;
  list.add(ours.transport());
  list.add(theirs.transport());
  std::string into(5, '\0');
  receive(into);
  const Message message("there");
  ASSERT_EQ(send(message), 0);
  list.progress(&ours.queue());
  EXPECT_EQ(into, std::string(5, '\0')) << "the first has a completion already";
  list.progress();
  EXPECT_EQ(into, "there");
}

TEST_F(TransportListTest, GoesRoundSoThatABusyOneDoesNotKeepTheOthersWaiting) {
  End second = open(*theirs_, theirs.cq.get());
  Peer* const to_second = ours.transport().peer(know(ours, second));
  ASSERT_NE(to_second, nullptr);
  ASSERT_TRUE(connect());
  ASSERT_TRUE(connect(*to_second, second, know(second, ours)));
  TransportList list;
  list.add(theirs.transport());
  list.add(second.transport());
  constexpr int kEach = 3;
  const Message message("x");
  char into[2];
  for (int i = 0; i < kEach; ++i) {
    int which = 0;
    for (fid_ep* ep : {theirs.ep.get(), second.ep.get()}) {
      char* const place = &into[which++];
      ASSERT_EQ(fi_trecv(ep, place, 1, nullptr, FI_ADDR_UNSPEC, 1, 0, place), 0);
    }
    for (Peer* to : {peer, to_second})
      ASSERT_EQ(ours.transport().send(ours.endpoint(), *to, message.request), 0);
  }
  std::vector<void*> order;
  while (order.size() < 2 * kEach) {
    for (int i = 0; i < 1'000'000 && theirs.queue().empty(); ++i) list.progress(&theirs.queue());
    fi_cq_tagged_entry entry;
    ASSERT_EQ(fi_cq_read(theirs.cq.get(), &entry, 1), 1);
    order.push_back(entry.op_context);
  }
  for (std::size_t i = 0; i < order.size(); i += 2)
    EXPECT_NE(order[i], order[i + 1]) << "one has brought two in a row, of turn " << i / 2;
}

}  // namespace
}  // namespace clan::ofi
