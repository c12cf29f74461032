// Calls of programs: connecting, sending, waiting for what has been sent.
#include "transport/transport.h"

#include <gtest/gtest.h>

#include "libfabric/transport/two_endpoints.h"

namespace clan::ofi {
namespace {

using TransportTest = TwoEndpoints;

TEST_F(TransportTest, KnowsOnePeerByEachAddress) {
  ASSERT_NE(peer, nullptr);
  EXPECT_EQ(ours.transport().peer(0), peer);
  EXPECT_EQ(ours.transport().address_of(*peer), 0u);
  EXPECT_EQ(ours.transport().peer(1), nullptr) << "nobody has that one";
}

TEST_F(TransportTest, IsReadyForAPeerThatHasAccepted) {
  EXPECT_EQ(peer->index, kNoPeer);
  ASSERT_TRUE(connect());
  EXPECT_NE(peer->index, kNoPeer);
  EXPECT_EQ(ours.transport().ready(*peer), 0) << "from then on at once";
}

TEST_F(TransportTest, SaysWhyAPeerCannotBeReached) {
  const fi_addr_t nobody = [&] {
    End gone = open(*theirs_);
    return know(ours, gone);
  }();
  Peer* const other = ours.transport().peer(nobody);
  ASSERT_NE(other, nullptr);
  int rc = 0;
  EXPECT_TRUE(until([&] { return (rc = ours.transport().ready(*other)) != -FI_EAGAIN; }));
  EXPECT_EQ(rc, -FI_ECONNREFUSED);
}

TEST_F(TransportTest, SendsAShortMessageThatIsThenItsReceivers) {
  ASSERT_TRUE(connect());
  const Message message("a short one");
  ASSERT_EQ(send(message), 0);
  EXPECT_EQ(ours.completed(), std::vector<void*>{const_cast<Message*>(&message)});
  std::string into(message.text.size(), '\0');
  receive(into);
  EXPECT_TRUE(until([&] { return !theirs.completed().empty(); }));
  EXPECT_EQ(into, message.text);
}

TEST_F(TransportTest, SendsALongMessageThatCompletesWhenItHasBeenCopied) {
  ASSERT_TRUE(connect());
  const Message message(std::string(3'000'000, 'l') + "ast");
  ASSERT_EQ(send(message), 0);
  for (int i = 0; i < 100; ++i) ours.transport().progress();
  EXPECT_TRUE(ours.completed().empty()) << "nobody has taken it";
  std::string into(message.text.size(), '\0');
  receive(into);
  EXPECT_TRUE(until([&] { return !ours.completed().empty(); }));
  EXPECT_EQ(into, message.text);
}

TEST_F(TransportTest, AMessageOfWhichDeliveryIsWantedCompletesWhenItIsReceived) {
  ASSERT_TRUE(connect());
  Message message("delivered");
  message.request.delivery = true;
  ASSERT_EQ(send(message), 0);
  EXPECT_EQ(ours.transport().fence(*peer), -FI_EAGAIN);
  for (int i = 0; i < 100; ++i) ours.transport().progress(), theirs.transport().progress();
  EXPECT_TRUE(ours.completed().empty()) << "no receive has been posted";
  std::string into(message.text.size(), '\0');
  receive(into);
  EXPECT_TRUE(until([&] { return !ours.completed().empty(); }));
  EXPECT_EQ(ours.transport().fence(*peer), 0);
}

TEST_F(TransportTest, ForgetsWhatAnEndpointHasUnderWayThatNobodyAsksFor) {
  ASSERT_TRUE(connect());
  Message message("forgotten");
  message.request.delivery = true;
  ASSERT_EQ(send(message), 0);
  ours.transport().forget(ours.endpoint());
  std::string into(message.text.size(), '\0');
  receive(into);
  EXPECT_TRUE(until([&] { return !theirs.completed().empty(); }));
  EXPECT_TRUE(until([&] { return ours.transport().fence(*peer) == 0; }));
  EXPECT_TRUE(ours.completed().empty());
}

TEST_F(TransportTest, SendsAtOnceUntilThereIsNoRoom) {
  ASSERT_TRUE(connect());
  const WireHeader header{.op = Op::kTagged, .tag = 1};
  const std::string text(1'000, 't');
  ssize_t rc = 0;
  int sent = 0;
  while ((rc = ours.transport().send_at_once(*peer, header, text.data(), text.size())) == 0 &&
         sent < 1'000'000)
    ++sent;
  EXPECT_EQ(rc, -FI_EAGAIN);
  EXPECT_GT(sent, 10);
  int received = 0;
  std::string into(text.size(), '\0');
  while (received < sent) {
    receive(into);
    ASSERT_TRUE(until([&] { return !theirs.completed().empty(); })) << received;
    ++received;
  }
  EXPECT_EQ(ours.transport().send_at_once(*peer, header, text.data(), text.size()), 0);
}

TEST_F(TransportTest, HangsUpOnAPeerAndEndsWhatItHadToAnswer) {
  ASSERT_TRUE(connect());
  Message message("unanswered");
  message.request.delivery = true;
  ASSERT_EQ(send(message), 0);
  ours.transport().hang_up(*peer);
  EXPECT_EQ(peer->index, kNoPeer);
  EXPECT_EQ(ours.failed(), ECANCELED);
  EXPECT_EQ(ours.transport().fence(*peer), 0);
}

}  // namespace
}  // namespace clan::ofi
