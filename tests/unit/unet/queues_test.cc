// The three queues of an endpoint: what a program puts there, and what it finds.
#include <gtest/gtest.h>

#include "ends.h"

namespace clan::unet::testing {
namespace {

TEST(UnetQueues, AShortMessageLiesInTheDescriptors) {
  Pair p;
  EXPECT_EQ(p.a.send(2, "forty bytes and eight fit in one descriptor, so"), 0);
  const unet_receive d = p.b.receive();
  EXPECT_EQ(d.tag, 1u);
  EXPECT_EQ(d.status, 0);
  EXPECT_EQ(d.buffers, 0);
  EXPECT_EQ(p.b.text_of(d), "forty bytes and eight fit in one descriptor, so");
  EXPECT_EQ(p.b.counters().received, 1u);
  EXPECT_EQ(p.a.counters().sent_bytes, 47u);
}

TEST(UnetQueues, BothEndsSendByTheSameChannel) {
  Pair p;
  EXPECT_EQ(p.a.send(2, "ping"), 0);
  EXPECT_EQ(p.b.text_of(p.b.receive()), "ping");
  EXPECT_EQ(p.b.send(1, "pong"), 0);
  const unet_receive d = p.a.receive();
  EXPECT_EQ(d.tag, 2u);
  EXPECT_EQ(p.a.text_of(d), "pong");
}

TEST(UnetQueues, AMessageIsGatheredFromPieces) {
  Pair p;
  std::memcpy(p.a.e->area + 100, "gathered ", 9);
  std::memcpy(p.a.e->area + 5000, "from two", 8);
  EXPECT_EQ(p.a.send_pieces(2, {{100, 9, 0}, {5000, 8, 0}}), 0);
  EXPECT_EQ(p.b.text_of(p.b.receive()), "gathered from two");
}

TEST(UnetQueues, ALongMessageFillsFreeBuffersInTheirOrder) {
  Pair p;
  for (const std::uint64_t at : {8192u, 0u, 16384u}) ASSERT_TRUE(unet_free_push(p.b.e, at));
  std::string text(10'000, 'x');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7);
  std::memcpy(p.a.e->area, text.data(), text.size());
  EXPECT_EQ(p.a.send_pieces(2, {{0, 4000, 0}, {4000, 6000, 0}}), 0);
  const unet_receive d = p.b.receive();
  ASSERT_EQ(d.buffers, 3);
  EXPECT_EQ(d.u.buffer[0], 8192u);
  EXPECT_EQ(d.u.buffer[1], 0u);
  EXPECT_EQ(d.u.buffer[2], 16384u);
  EXPECT_EQ(p.b.text_of(d), text);
}

TEST(UnetQueues, WithoutAFreeBufferAMessageIsDroppedAndCounted) {
  Pair p;
  EXPECT_EQ(p.a.send_pieces(2, {{0, 100, 0}}), 0);
  EXPECT_EQ(p.a.send(2, "short ones need none"), 0);
  EXPECT_EQ(p.b.text_of(p.b.receive()), "short ones need none");
  EXPECT_EQ(p.b.counters().dropped_buffer, 1u);
  EXPECT_EQ(p.b.counters().received, 1u);
}

TEST(UnetQueues, AFullReceiveQueueDropsTheNewest) {
  unet_endpoint_options small = in_area();
  small.receive_entries = 2;
  Pair p(in_area(), small);
  for (const char* text : {"one", "two", "three"}) EXPECT_EQ(p.a.send(2, text), 0);
  EXPECT_EQ(unet_wait(p.b.e, kSoon), 0);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(unet_poll(p.b.e), 0);
  EXPECT_EQ(p.b.text_of(p.b.receive()), "one");
  EXPECT_EQ(p.b.text_of(p.b.receive()), "two");
  EXPECT_TRUE(p.b.poll_is_empty());
  EXPECT_EQ(p.b.counters().dropped_queue, 1u);
}

// Each buffer may have to come back by itself.
TEST(UnetQueues, AMessageNeedsAPlaceForEachBufferThatItFills) {
  unet_endpoint_options small = in_area();
  small.receive_entries = 4;
  Pair p(in_area(), small);
  for (std::uint64_t i = 0; i < 9; ++i) ASSERT_TRUE(unet_free_push(p.b.e, i * 4096));
  EXPECT_EQ(p.a.send_pieces(2, {{0, 4 * 4096, 0}}), 0);
  EXPECT_EQ(p.b.receive().buffers, 4);
  EXPECT_EQ(p.a.send_pieces(2, {{0, 5 * 4096, 0}}), 0);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(p.b.receive().status, ENOBUFS);
  EXPECT_EQ(p.b.counters().dropped_queue, 1u);
  for (const char* text : {"one", "two", "three"}) EXPECT_EQ(p.a.send(2, text), 0);
  EXPECT_EQ(p.a.send_pieces(2, {{0, 100, 0}}), 0);
  EXPECT_EQ(unet_wait(p.b.e, kSoon), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(unet_poll(p.b.e), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(p.b.receive().buffers, 0);
  EXPECT_EQ(p.b.receive().bytes, 100u) << "it has the last place";
  EXPECT_EQ(p.b.counters().dropped_queue, 1u);
}

TEST(UnetQueues, AFullSendQueueTakesNoMore) {
  unet_endpoint_options small = in_area();
  small.send_entries = 4;
  Pair p(small);
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(p.a.push(2, "x", i));
  EXPECT_FALSE(p.a.push(2, "x"));
  EXPECT_EQ(unet_doorbell(p.a.e), 0);
  EXPECT_FALSE(p.a.push(2, "done, and not taken back"));
  for (std::uint64_t i = 0; i < 4; ++i) {
    std::uint64_t cookie = 99;
    EXPECT_EQ(p.a.taken_status(&cookie), 0);
    EXPECT_EQ(cookie, i);
  }
  EXPECT_EQ(p.a.taken_status(), UNET_PENDING);
  EXPECT_TRUE(p.a.push(2, "x"));
}

// Bytes that the peer's ring holds are no place of a queue: the sender keeps the rest, in order.
TEST(UnetQueues, SendsWaitWhileThePeerHasNoRoom) {
  unet_endpoint_options many = in_area();
  many.send_entries = 1024;
  many.receive_entries = many.free_entries = 64;
  Pair p(many, many);
  std::uint32_t pushed = 0;
  for (; pushed < 1024; ++pushed) {
    std::memcpy(p.a.e->area, &pushed, sizeof pushed);
    ASSERT_TRUE(p.a.push_pieces(2, {{0, 4096, 0}}, pushed));
    ASSERT_EQ(unet_doorbell(p.a.e), 0);
  }
  std::uint32_t done = 0;
  for (std::uint64_t cookie = 0; p.a.taken_status(&cookie) == 0; ++done) EXPECT_EQ(cookie, done);
  EXPECT_LT(done, pushed);
  EXPECT_GT(done, 0u);
  for (std::uint32_t taken = 0; taken < pushed; ++taken) {
    ASSERT_TRUE(unet_free_push(p.b.e, 0));
    ASSERT_EQ(p.b.receive().bytes, 4096u);
    ASSERT_EQ(unet_doorbell(p.a.e), 0);
    for (std::uint64_t cookie = 0; p.a.taken_status(&cookie) == 0; ++done) EXPECT_EQ(cookie, done);
  }
  EXPECT_EQ(done, pushed);
  EXPECT_EQ(p.b.counters().dropped_buffer + p.b.counters().dropped_queue, 0u);
}

TEST(UnetQueues, PiecesAndBuffersBeyondTheAreaAreFaults) {
  Pair p;
  const auto end = static_cast<std::uint32_t>(p.a.e->area_bytes);
  EXPECT_EQ(p.a.send_pieces(2, {{end - 8u, 9, 0}}), EFAULT);
  EXPECT_EQ(p.a.send_pieces(2, {{~0ull - 3, 9, 0}}), EFAULT);
  EXPECT_EQ(p.a.send_pieces(2, {{end - 8u, 8, 0}}), 0);
  EXPECT_EQ(p.b.receive().bytes, 8u);
  for (const std::uint64_t at : {std::uint64_t{end} - 4095, ~std::uint64_t{0}, std::uint64_t{0}})
    ASSERT_TRUE(unet_free_push(p.b.e, at));
  EXPECT_EQ(p.a.send_pieces(2, {{0, 100, 0}}), 0);
  for (int i = 0; i < 2; ++i) {
    const unet_receive bad = p.b.receive();
    EXPECT_EQ(bad.status, EFAULT);
    EXPECT_EQ(bad.buffers, 1);
  }
  EXPECT_EQ(p.b.receive().bytes, 100u);
  EXPECT_EQ(p.b.counters().returned, 2u);
}

TEST(UnetQueues, BuffersThatAreNotEnoughComeBack) {
  Pair p;
  for (const std::uint64_t at : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{4096}})
    ASSERT_TRUE(unet_free_push(p.b.e, at));
  EXPECT_EQ(p.a.send_pieces(2, {{0, 3 * 4096, 0}}), 0);
  EXPECT_EQ(p.a.send(2, "next"), 0);
  std::vector<int> statuses;
  for (int i = 0; i < 3; ++i) statuses.push_back(p.b.receive().status);
  EXPECT_EQ(statuses, (std::vector<int>{EFAULT, ENOBUFS, ENOBUFS}));
  EXPECT_EQ(p.b.text_of(p.b.receive()), "next");
  EXPECT_EQ(p.b.counters().dropped_buffer, 1u);
}

TEST(UnetQueues, DescriptorsThatMakeNoSenseAreRefused) {
  Pair p;
  EXPECT_EQ(p.a.send_pieces(2, std::vector<unet_piece>(7)), EINVAL);
  unet_send* d = unet_send_next(p.a.e);
  *d = {};
  d->tag = 2;
  d->bytes = UNET_INLINE + 1;
  unet_send_push(p.a.e);
  EXPECT_EQ(unet_doorbell(p.a.e), 0);
  EXPECT_EQ(p.a.taken_status(), EMSGSIZE);
  EXPECT_EQ(p.a.send_pieces(2, std::vector<unet_piece>(6, {0, 1 << 20, 0})), EMSGSIZE);
}

TEST(UnetQueues, AnIndexThatMakesNoSenseIsRefused) {
  Pair p;
  p.a.e->indices->send_added.at += 1000;
  EXPECT_EQ(unet_doorbell(p.a.e), EINVAL);
}

TEST(UnetQueues, OptionsThatMakeNoSenseAreRefused) {
  NodeEnd node;
  unet_endpoint* e = nullptr;
  unet_endpoint_options options{};
  options.send_entries = 3;
  EXPECT_EQ(unet_create(node.node, &options, &e), EINVAL);
  options = {};
  options.mode = 2;
  EXPECT_EQ(unet_create(node.node, &options, &e), EINVAL);
  options = {};
  options.flags = UNET_DIRECT_AREA;
  EXPECT_EQ(unet_create(node.node, &options, &e), EINVAL);
  options = {};
  options.flags = UNET_EMULATED;
  options.service = "name";
  EXPECT_EQ(unet_create(node.node, &options, &e), EINVAL);
}

}  // namespace
}  // namespace clan::unet::testing
