// Emulated endpoints: many that share what one real endpoint has.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <thread>

#include "ends.h"

namespace clan::unet::testing {
namespace {

TEST(UnetEmulated, EndpointsOfOneNodeGetWhatIsTheirs) {
  NodeEnd first, second;
  End a(first.node), b(second.node, in_area(UNET_EMULATED)), c(second.node, in_area(UNET_EMULATED));
  EXPECT_EQ(b.address().endpoint, c.address().endpoint);
  EXPECT_NE(b.address().number, c.address().number);
  ASSERT_EQ(unet_accept(b.e, 1, kKey), 0);
  ASSERT_EQ(unet_accept(c.e, 1, kKey), 0);
  const unet_address to_b = b.address(), to_c = c.address();
  ASSERT_EQ(unet_connect(a.e, 10, &to_b, 1, kKey, kSoon), 0);
  ASSERT_EQ(unet_connect(a.e, 11, &to_c, 1, kKey, kSoon), 0);
  EXPECT_EQ(a.send(11, "to c"), 0);
  EXPECT_EQ(a.send(10, "to b"), 0);
  EXPECT_EQ(b.text_of(b.receive()), "to b");  // takes that for c, too
  EXPECT_EQ(c.text_of(c.receive()), "to c");
  EXPECT_EQ(c.send(1, "from c"), 0);
  const unet_receive d = a.receive();
  EXPECT_EQ(d.tag, 11u);
  EXPECT_EQ(a.text_of(d), "from c");
}

TEST(UnetEmulated, EndpointsOfOneNodeTalkToEachOther) {
  NodeEnd node;
  End a(node.node, in_area(UNET_EMULATED)), b(node.node, in_area(UNET_EMULATED));
  join(a, b);
  EXPECT_EQ(a.send(2, "within"), 0);
  EXPECT_EQ(b.text_of(b.receive()), "within");
  EXPECT_EQ(b.send(1, "and back"), 0);
  EXPECT_EQ(a.text_of(a.receive()), "and back");
}

TEST(UnetEmulated, EachWaitsForItsOwn) {
  constexpr int kRounds = 300;
  NodeEnd first, second;
  End a1(first.node), a2(first.node);
  End b(second.node, in_area(UNET_EMULATED)), c(second.node, in_area(UNET_EMULATED));
  join(a1, b);
  join(a2, c);
  const auto echo = [](End& end) {
    for (int i = 0; i < kRounds; ++i) {
      EXPECT_EQ(end.text_of(end.receive()), std::to_string(i));
      EXPECT_EQ(end.send(1, "ok"), 0);
    }
  };
  std::thread at_b(echo, std::ref(b)), at_c(echo, std::ref(c));
  const auto ask = [](End& end) {
    for (int i = 0; i < kRounds; ++i) {
      EXPECT_EQ(end.send(2, std::to_string(i)), 0);
      EXPECT_EQ(end.text_of(end.receive()), "ok");
    }
  };
  std::thread at_a1(ask, std::ref(a1));
  ask(a2);
  for (std::thread* each : {&at_b, &at_c, &at_a1}) each->join();
}

// The thread of one endpoint polls the peer's ring while that of another one sleeps.
TEST(UnetEmulated, ADescriptorStaysArmedWhileAnotherEndpointReceives) {
  NodeEnd first, second;
  End a(first.node), b(second.node, in_area(UNET_EMULATED)), c(second.node, in_area(UNET_EMULATED));
  ASSERT_EQ(unet_accept(b.e, 1, kKey), 0);
  ASSERT_EQ(unet_accept(c.e, 1, kKey), 0);
  const unet_address to_b = b.address(), to_c = c.address();
  ASSERT_EQ(unet_connect(a.e, 10, &to_b, 1, kKey, kSoon), 0);
  ASSERT_EQ(unet_connect(a.e, 11, &to_c, 1, kKey, kSoon), 0);
  pollfd one{unet_fd(b.e), POLLIN, 0};
  for (int i = 0; i < 10; ++i) {
    while (unet_arm(b.e) == EAGAIN) EXPECT_TRUE(b.poll_is_empty());
    EXPECT_EQ(a.send(11, "to c"), 0);
    ASSERT_EQ(::poll(&one, 1, static_cast<int>(kSoon)), 1);
    // c's thread is about to sleep, too, and finds that it need not.
    EXPECT_EQ(unet_arm(c.e), EAGAIN);
    while (unet_poll(c.e) == EAGAIN) {
    }
    EXPECT_EQ(c.text_of(c.receive()), "to c");
    EXPECT_EQ(a.send(10, "to b"), 0);
    ASSERT_EQ(::poll(&one, 1, static_cast<int>(kSoon)), 1);
    EXPECT_EQ(b.text_of(b.receive()), "to b");
  }
}

TEST(UnetEmulated, AThousandShareOneRing) {
  NodeEnd first, second;
  End a(first.node);
  std::vector<std::unique_ptr<End>> ends;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    unet_endpoint_options options{};
    options.flags = UNET_EMULATED;
    ends.push_back(std::make_unique<End>(second.node, options));
    ASSERT_EQ(unet_accept(ends[i]->e, 1, kKey), 0);
    const unet_address there = ends[i]->address();
    ASSERT_EQ(unet_connect(a.e, i, &there, 1, kKey, kSoon), 0);
    ASSERT_EQ(a.send(i, std::to_string(i)), 0);
    (void)unet_poll(ends[0]->e);
  }
  for (std::uint32_t i = 0; i < 1000; ++i)
    EXPECT_EQ(ends[i]->text_of(ends[i]->receive()), std::to_string(i));
}

}  // namespace
}  // namespace clan::unet::testing
