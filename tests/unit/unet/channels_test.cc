// Tags: what is sent by them, and how they end.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "ends.h"

namespace clan::unet::testing {
namespace {

void expect_closed(const unet_receive& d, std::uint32_t tag, int status) {
  EXPECT_EQ(d.flags, UNET_CLOSED);
  EXPECT_EQ(d.tag, tag);
  EXPECT_EQ(d.status, status);
}

TEST(UnetTags, ASendByATagThatIsNotRegisteredIsRefused) {
  Pair p;
  EXPECT_EQ(p.a.send(3, "x"), EACCES);
  ASSERT_EQ(unet_accept(p.a.e, 3, kKey), 0);
  EXPECT_EQ(p.a.send(3, "nobody has connected to it"), EACCES);
}

TEST(UnetTags, ATagIsRegisteredOnce) {
  Pair p;
  const unet_address there = p.b.address();
  EXPECT_EQ(unet_accept(p.b.e, 1, kKey), EEXIST);
  EXPECT_EQ(unet_connect(p.a.e, 2, &there, 1, kKey, kSoon), EEXIST);
  EXPECT_EQ(unet_close_tag(p.a.e, 9), ENOENT);
}

TEST(UnetTags, AnotherKeyIsRefusedAndWhatItSendsIsDropped) {
  NodeEnd first, second;
  End a(first.node), b(second.node);
  ASSERT_EQ(unet_accept(b.e, 1, kKey), 0);
  const unet_address there = b.address();
  ASSERT_EQ(unet_connect(a.e, 2, &there, 1, kKey + 1, kSoon), 0);
  EXPECT_EQ(a.send(2, "sent before the answer"), 0);
  while (b.counters().dropped_tag == 0) EXPECT_TRUE(b.poll_is_empty());
  expect_closed(a.receive(), 2, EACCES);
  EXPECT_EQ(a.send(2, "x"), EACCES);
  ASSERT_EQ(unet_close_tag(a.e, 2), 0);
  ASSERT_EQ(unet_connect(a.e, 2, &there, 1, kKey, kSoon), 0);
  EXPECT_EQ(a.send(2, "right"), 0);
  EXPECT_EQ(b.text_of(b.receive()), "right");
}

TEST(UnetTags, ATagIsForOnePeer) {
  NodeEnd third;
  Pair p;
  End c(third.node);
  EXPECT_EQ(p.a.send(2, "first"), 0);
  EXPECT_EQ(p.b.text_of(p.b.receive()), "first");
  const unet_address there = p.b.address();
  ASSERT_EQ(unet_connect(c.e, 2, &there, 1, kKey, kSoon), 0);
  EXPECT_EQ(c.send(2, "second"), 0);
  while (p.b.counters().dropped_tag == 0) EXPECT_TRUE(p.b.poll_is_empty());
  expect_closed(c.receive(), 2, EACCES);
}

TEST(UnetTags, ChannelsOfOnePairOfEndpointsAreTheirOwn) {
  Pair p;
  const unet_address there = p.b.address();
  for (std::uint32_t tag = 10; tag < 60; ++tag) {
    ASSERT_EQ(unet_accept(p.b.e, tag, tag), 0);
    ASSERT_EQ(unet_connect(p.a.e, 1000 + tag, &there, tag, tag, kSoon), 0);
  }
  for (std::uint32_t tag = 59; tag >= 10; --tag)
    EXPECT_EQ(p.a.send(1000 + tag, std::to_string(tag)), 0);
  for (std::uint32_t tag = 59; tag >= 10; --tag) {
    const unet_receive d = p.b.receive();
    EXPECT_EQ(d.tag, tag);
    EXPECT_EQ(p.b.text_of(d), std::to_string(tag));
  }
}

TEST(UnetTags, ManyPeersSendToOneReceiveQueue) {
  constexpr std::uint32_t kPeers = 20;
  NodeEnd first;
  End b(first.node);
  std::vector<std::unique_ptr<NodeEnd>> nodes;
  std::vector<std::unique_ptr<End>> ends;
  const unet_address there = b.address();
  for (std::uint32_t i = 0; i < kPeers; ++i) {
    nodes.push_back(std::make_unique<NodeEnd>());
    ends.push_back(std::make_unique<End>(nodes.back()->node));
    ASSERT_EQ(unet_accept(b.e, i, kKey), 0);
    ASSERT_EQ(unet_connect(ends[i]->e, 7, &there, i, kKey, kSoon), 0);
    EXPECT_EQ(ends[i]->send(7, std::to_string(i)), 0);
  }
  std::vector<int> found(kPeers);
  for (std::uint32_t i = 0; i < kPeers; ++i) {
    const unet_receive d = b.receive();
    EXPECT_EQ(b.text_of(d), std::to_string(d.tag));
    ++found[d.tag];
  }
  EXPECT_EQ(found, std::vector<int>(kPeers, 1));
}

TEST(UnetTags, AClosedTagEndsTheChannelAtThePeerBehindItsMessages) {
  Pair p;
  EXPECT_EQ(p.a.send(2, "last"), 0);
  ASSERT_EQ(unet_close_tag(p.a.e, 2), 0);
  EXPECT_EQ(p.a.send(2, "x"), EACCES);
  EXPECT_EQ(p.b.text_of(p.b.receive()), "last");
  expect_closed(p.b.receive(), 1, 0);
  EXPECT_EQ(p.b.send(1, "x"), EPIPE);
  ASSERT_EQ(unet_close_tag(p.b.e, 1), 0);
  join(p.a, p.b);
  EXPECT_EQ(p.a.send(2, "again"), 0);
  EXPECT_EQ(p.b.text_of(p.b.receive()), "again");
}

TEST(UnetTags, ADestroyedEndpointClosesItsChannels) {
  Pair p;
  EXPECT_EQ(p.a.send(2, "last"), 0);
  p.a.destroy();
  EXPECT_EQ(p.b.text_of(p.b.receive()), "last");
  expect_closed(p.b.receive(), 1, 0);
}

TEST(UnetTags, AnAnswerToAnEarlierRequestChangesNothing) {
  NodeEnd first, second;
  End a(first.node), b(second.node);
  const unet_address there = b.address();
  ASSERT_EQ(unet_connect(a.e, 2, &there, 1, kKey, kSoon), 0);  // will be refused
  ASSERT_EQ(unet_close_tag(a.e, 2), 0);
  ASSERT_EQ(unet_connect(a.e, 2, &there, 3, kKey, kSoon), 0);
  ASSERT_EQ(unet_accept(b.e, 3, kKey), 0);
  EXPECT_EQ(a.send(2, "to 3"), 0);
  const unet_receive d = b.receive();
  EXPECT_EQ(d.tag, 3u);
  EXPECT_EQ(b.send(3, "back"), 0);
  EXPECT_EQ(a.text_of(a.receive()), "back");
}

TEST(UnetTags, AnEndpointIsFoundByItsName) {
  NodeEnd first, second;
  const std::string name = "unet-test-" + std::to_string(::getpid());
  unet_endpoint_options named = in_area();
  named.service = name.c_str();
  End a(first.node), b(second.node, named);
  unet_endpoint* e = nullptr;
  EXPECT_EQ(unet_create(second.node, &named, &e), EADDRINUSE);
  ASSERT_EQ(unet_accept(b.e, 1, kKey), 0);
  EXPECT_EQ(unet_connect_service(a.e, 2, "unet-test-none", 1, kKey, kSoon), ECONNREFUSED);
  ASSERT_EQ(unet_connect_service(a.e, 2, name.c_str(), 1, kKey, kSoon), 0);
  EXPECT_EQ(a.send(2, "by name"), 0);
  EXPECT_EQ(b.text_of(b.receive()), "by name");
}

TEST(UnetTags, EndsAreToldThoughTheReceiveQueueWasFull) {
  unet_endpoint_options small = in_area();
  small.receive_entries = 1;
  Pair p(in_area(), small);
  EXPECT_EQ(p.a.send(2, "fills it"), 0);
  EXPECT_EQ(unet_wait(p.b.e, kSoon), 0);
  p.a.destroy();
  EXPECT_EQ(unet_poll(p.b.e), 0);
  EXPECT_EQ(p.b.text_of(p.b.receive()), "fills it");
  expect_closed(p.b.receive(), 1, 0);
}

TEST(UnetTags, AKilledPeerIsTold) {
  NodeEnd node;
  End b(node.node);
  ASSERT_EQ(unet_accept(b.e, 1, kKey), 0);
  const unet_address there = b.address();
  const pid_t child = ::fork();
  if (child == 0) {
    unet_node* own = nullptr;
    unet_endpoint* e = nullptr;
    const unet_endpoint_options options = in_area();
    if (unet_open(nullptr, &own) != 0 || unet_create(own, &options, &e) != 0 ||
        unet_connect(e, 2, &there, 1, kKey, kSoon) != 0) {
      ::_exit(1);
    }
    unet_send* d = unet_send_next(e);
    *d = {};
    d->tag = 2;
    unet_send_push(e);
    (void)unet_doorbell(e);
    for (;;) ::pause();
  }
  EXPECT_EQ(b.receive().status, 0);
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  expect_closed(b.receive(), 1, ECONNRESET);
  EXPECT_EQ(b.send(1, "x"), ECONNRESET);
}

TEST(UnetTags, AForkedChildHasNoneOfItsParentsEndpoints) {
  Pair p;
  const pid_t child = ::fork();
  if (child == 0) {
    unet_counters counters;
    unet_count(p.a.e, &counters);
    const bool right = unet_doorbell(p.a.e) == ESHUTDOWN && unet_poll(p.a.e) == ESHUTDOWN &&
                       unet_wait(p.a.e, 0) == ESHUTDOWN && unet_close_tag(p.a.e, 2) == ESHUTDOWN;
    unet_destroy(p.a.e);
    unet_node* own = nullptr;
    ::_exit(right && unet_open(nullptr, &own) == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(p.a.send(2, "the parent goes on"), 0);
  EXPECT_EQ(p.b.text_of(p.b.receive()), "the parent goes on");
}

}  // namespace
}  // namespace clan::unet::testing
