// Datagram endpoints.
#include <algorithm>

#include "libfabric/node.h"

namespace clan::test {
namespace {

constexpr NodeOptions kDatagrams{.type = FI_EP_DGRAM};

TEST(FabricDatagrams, ArriveWholeUpToTheSizeThatIsOffered) {
  Two two(kDatagrams, kDatagrams);
  const std::size_t most = two.a.info->ep_attr->max_msg_size;
  EXPECT_GE(most, 4096u);
  for (const std::size_t n :
       {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{4097}, most}) {
    const auto sent = pattern(n, 3);
    std::vector<char> got(n + 1);
    ASSERT_EQ(fi_recv(two.b.ep.get(), got.data(), n, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    ASSERT_EQ(fi_send(two.a.ep.get(), sent.data(), n, nullptr, two.to_b, nullptr), 0);
    fi_cq_tagged_entry entry;
    fi_addr_t source = FI_ADDR_NOTAVAIL;
    ASSERT_TRUE(two.completes(two.b, &entry, &source));
    EXPECT_EQ(entry.len, n);
    EXPECT_EQ(source, two.to_a);
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), got.begin()));
    ASSERT_TRUE(two.completes(two.a, &entry));
  }
  std::vector<char> longer(most + 1);
  EXPECT_EQ(fi_send(two.a.ep.get(), longer.data(), longer.size(), nullptr, two.to_b, nullptr),
            -FI_EMSGSIZE);
}

TEST(FabricDatagrams, ToNobodyAreSentAndLost) {
  Node node(kDatagrams);
  node.enable();
  auto other = std::make_unique<Node>(kDatagrams);
  other->enable();
  const fi_addr_t to = node.insert(other->name());
  const auto send = [&] {
    ASSERT_EQ(fi_send(node.ep.get(), "x", 1, nullptr, to, &node), 0);
    fi_cq_tagged_entry entry;
    ssize_t n = 0;
    ASSERT_TRUE(
        eventually([&] { return (n = fi_cq_read(node.cq.get(), &entry, 1)) != -FI_EAGAIN; }));
    ASSERT_EQ(n, 1);
    EXPECT_EQ(entry.op_context, &node);
  };
  send();
  other.reset();
  for (int i = 0; i < 20; ++i) {
    send();
    EXPECT_EQ(fi_inject(node.ep.get(), "x", 1, to), 0);
  }
}

TEST(FabricDatagrams, ThatNobodyAsksForAreDroppedAfterAWhileButTheFirstAreKept) {
  Two two(kDatagrams, kDatagrams);
  constexpr std::uint32_t kSent = 20'000;
  for (std::uint32_t i = 0; i < kSent; ++i) {
    ASSERT_TRUE(eventually([&] {
      const ssize_t rc = fi_inject(two.a.ep.get(), &i, sizeof i, two.to_b);
      if (rc == -FI_EAGAIN) two.idle(1);
      return rc == 0;
    }));
  }
  two.idle(2000);
  std::uint32_t got = 0, received = 0;
  for (; received < kSent; ++received) {
    ASSERT_EQ(fi_recv(two.b.ep.get(), &got, sizeof got, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    two.idle(3);
    fi_cq_tagged_entry entry;
    if (fi_cq_read(two.b.cq.get(), &entry, 1) != 1) break;
    ASSERT_EQ(got, received);
  }
  EXPECT_GE(received, 64u);
  EXPECT_LT(received, kSent);
  // The receive that is left gets the next.
  const std::uint32_t last = 77'777;
  ASSERT_EQ(fi_inject(two.a.ep.get(), &last, sizeof last, two.to_b), 0);
  fi_cq_tagged_entry entry;
  ASSERT_TRUE(two.completes(two.b, &entry));
  EXPECT_EQ(got, last);
}

TEST(FabricDatagrams, AreRefusedWhileTheRingIsFull) {
  Two two(kDatagrams, kDatagrams);
  const auto data = pattern(4096, 1);
  int sent = 0;
  ssize_t rc = 0;
  while (rc == 0 && sent < 100'000) {
    rc = fi_inject(two.a.ep.get(), data.data(), data.size(), two.to_b);
    if (rc == 0) ++sent;
  }
  EXPECT_EQ(rc, -FI_EAGAIN);
  EXPECT_TRUE(eventually([&] {
    two.idle(1);
    return fi_inject(two.a.ep.get(), data.data(), data.size(), two.to_b) == 0;
  }));
}

}  // namespace
}  // namespace clan::test
