// The control socket of the link: messages, descriptors and the end.
#include "link/shm_link.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "link/shm_pair.h"

namespace clan::link {
namespace {

using test::must;

struct Link : test::ShmPair {
  static OobMessage message(std::uint32_t type) {
    OobMessage m;
    m.to = 3;
    m.type = type;
    m.length = 2;
    m.payload[1] = std::byte{9};
    return m;
  }
};

TEST_F(Link, CarriesOutOfBandMessagesInOrder) {
  ASSERT_OK(a->send_oob(message(1)));
  ASSERT_OK(a->send_oob(message(2)));
  b->on_ready(EPOLLIN);
  ASSERT_EQ(b_notes.messages.size(), 2u);
  EXPECT_EQ(b_notes.messages[0].type, 1u);
  EXPECT_EQ(b_notes.messages[1].type, 2u);
  EXPECT_EQ(b_notes.messages[1].to, 3u);
  EXPECT_EQ(b_notes.messages[1].payload[1], std::byte{9});
  EXPECT_TRUE(a_notes.messages.empty());
}

TEST_F(Link, BoundsTheLengthThatAPeerSaysAMessageHas) {
  OobMessage m = message(1);
  m.length = 10'000;
  ASSERT_OK(a->send_oob(m));
  b->on_ready(EPOLLIN);
  ASSERT_EQ(b_notes.messages.size(), 1u);
  EXPECT_EQ(b_notes.messages[0].length, kOobPayload);
}

TEST_F(Link, OfAServerCountsOnceItsClientHasUsedIt) {
  EXPECT_TRUE(a->settled());
  EXPECT_FALSE(b->settled());
  a->confirm();
  b->on_ready(EPOLLIN);
  EXPECT_TRUE(b->settled());
}

TEST_F(Link, DiscardsMessagesOfProgramsThatNobodyReadsButNoneOfItsOwn) {
  int sent = 0;
  Status status;
  while (sent < 10'000 && (status = a->send_oob(message(1))).ok()) ++sent;
  EXPECT_ERR(status, ENOBUFS);
  ASSERT_OK(a->send_oob(message(kOobInternal | 5)));
  b->on_ready(EPOLLIN);                          // there is room again
  EXPECT_ERR(a->send_oob(message(1)), ENOBUFS);  // it would overtake that
  for (int k = 0; k < 1000 && static_cast<int>(b_notes.messages.size()) <= sent; ++k) {
    b->on_ready(EPOLLIN);
    a->on_ready(EPOLLOUT);
  }
  ASSERT_EQ(b_notes.messages.size(), static_cast<std::size_t>(sent) + 1);
  EXPECT_EQ(b_notes.messages.back().type, kOobInternal | 5);
  EXPECT_OK(a->send_oob(message(1)));
}

TEST_F(Link, RingsTheDoorbellUntilItHasTheQueuesOwnDescriptor) {
  const auto rung = [](const Fd& fd) {
    std::uint64_t count = 0;
    return ::read(fd.get(), &count, sizeof count) == 8;
  };
  const Fd queue = must(create_eventfd());
  b->ring(5);
  EXPECT_TRUE(rung(client.doorbell));
  a->announce_queue_fd(5, queue.get());
  b->on_ready(EPOLLIN);
  b->ring(5);
  EXPECT_TRUE(rung(queue));
  EXPECT_FALSE(rung(client.doorbell));
  b->ring(4);
  EXPECT_TRUE(rung(client.doorbell)) << "another queue";
  b->ring(shm::kMaxEventQueues);
  EXPECT_TRUE(rung(client.doorbell));
}

TEST_F(Link, TakesNothingButAnEventfdForAQueue) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  a->announce_queue_fd(5, pipe[1]);
  b->on_ready(EPOLLIN);
  b->ring(5);
  std::uint64_t count = 0;
  EXPECT_EQ(::read(client.doorbell.get(), &count, sizeof count), 8);
  for (const int fd : pipe) ::close(fd);
}

TEST_F(Link, KnowsTheSlotUnderWhichItsPeerCopies) {
  EXPECT_TRUE(b->holds_slot(*server.nic, 0));
  EXPECT_FALSE(b->holds_slot(*server.nic, 1));
  EXPECT_FALSE(b->holds_slot(*client.nic, 0));
}

TEST_F(Link, SaysOnceThatItIsDownAndGivesItsSlotBack) {
  b->shut_down();
  a->on_ready(EPOLLIN);
  a->on_ready(EPOLLIN);
  EXPECT_FALSE(a->alive());
  EXPECT_EQ(a_notes.downs, 1);
  EXPECT_EQ(a_notes.misbehaviours, 0);
  EXPECT_ERR(a->send_oob(message(1)), ECONNRESET);
  EXPECT_EQ(must(client.nic->add_peer_slot()), 0u);
}

TEST_F(Link, EndsWithAPeerThatBreaksTheRulesAndSaysSo) {
  // A hello once more: no message of a link.
  ShmPeer other = must(begin());
  const Fd raw = must(duplicate(other.socket.get()));
  ShmPeer of_server = must(answered());
  const auto link = std::make_shared<ShmLink>(std::move(of_server), *server.nic, b_notes, reactor,
                                              ShmLink::Options{true, true});
  ControlMessage hello;
  hello.type = ControlType::kHello;
  ASSERT_OK(send_datagram(raw.get(), std::as_bytes(std::span(&hello, 1)), {}));
  link->on_ready(EPOLLIN);
  EXPECT_FALSE(link->alive());
  EXPECT_EQ(b_notes.misbehaviours, 1);
  EXPECT_EQ(b_notes.downs, 1);
  EXPECT_TRUE(b->alive()) << "others have nothing to do with it";
}

TEST_F(Link, OfAForkedChildIsTheParents) {
  a->abandon_after_fork();
  EXPECT_FALSE(a->alive());
  EXPECT_EQ(a_notes.downs, 0);
  a.reset();
  EXPECT_EQ(must(client.nic->add_peer_slot()), 1u) << "the slot is the parent's, which has it";
}

}  // namespace
}  // namespace clan::link
