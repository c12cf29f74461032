#include "transport_list.h"

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

}  // namespace
}  // namespace clan::ofi
