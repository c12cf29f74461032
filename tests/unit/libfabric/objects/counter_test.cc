// Counters.
#include "libfabric/node.h"

namespace clan::test {
namespace {

TEST(FabricCounters, CountBothSidesOfAMessage) {
  Node a, b;
  fi_cntr_attr attr{};
  fid_cntr *sent = nullptr, *received = nullptr;
  MUST(fi_cntr_open(a.domain.get(), &attr, &sent, nullptr));
  MUST(fi_cntr_open(b.domain.get(), &attr, &received, nullptr));
  Object<fid_cntr> held_sent(sent), held_received(received);
  MUST(fi_ep_bind(a.ep.get(), &sent->fid, FI_SEND));
  MUST(fi_ep_bind(b.ep.get(), &received->fid, FI_RECV));
  a.enable();
  b.enable();
  const fi_addr_t to_b = a.insert(b.name());
  char buffer[4];
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(fi_recv(b.ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    ASSERT_EQ(fi_inject(a.ep.get(), "abcdefgh", i == 0 ? 4 : 8, to_b), 0);
  }
  EXPECT_EQ(fi_cntr_read(sent), 2u);
  // The second is too long for its receive.
  EXPECT_EQ(fi_cntr_wait(received, 2, 10'000), -FI_EAVAIL);
  EXPECT_EQ(fi_cntr_read(received), 1u);
  EXPECT_EQ(fi_cntr_readerr(received), 1u);
  EXPECT_EQ(fi_cntr_set(received, 10), 0);
  EXPECT_EQ(fi_cntr_add(received, 5), 0);
  EXPECT_EQ(fi_cntr_read(received), 15u);
  a.ep.reset();
  b.ep.reset();
}

}  // namespace
}  // namespace clan::test
