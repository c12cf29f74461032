// Poll sets.
#include "libfabric/node.h"

namespace clan::test {
namespace {

TEST(FabricPollSets, NameTheQueuesWithSomethingToRead) {
  Two two;
  fi_poll_attr attr{};
  fid_poll* set = nullptr;
  MUST(fi_poll_open(two.b.domain.get(), &attr, &set));
  Object<fid_poll> held(set);
  two.b.cq->fid.context = &two;
  ASSERT_EQ(fi_poll_add(set, &two.b.cq->fid, 0), 0);
  EXPECT_EQ(fi_close(&two.b.cq->fid), -FI_EBUSY);
  void* contexts[4] = {};
  EXPECT_EQ(fi_poll(set, contexts, 4), 0);
  char buffer[4];
  ASSERT_EQ(fi_recv(two.b.ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  ASSERT_EQ(fi_inject(two.a.ep.get(), "x", 1, two.to_b), 0);
  EXPECT_TRUE(eventually([&] { return fi_poll(set, contexts, 4) == 1; }));
  EXPECT_EQ(contexts[0], &two);
  ASSERT_EQ(fi_poll_del(set, &two.b.cq->fid, 0), 0);
}

}  // namespace
}  // namespace clan::test
