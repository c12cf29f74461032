// How nodes find each other's services, and what they tell their owners of links.
#include "link/udp/node/udp_node.h"

#include <gtest/gtest.h>

#include <future>

#include "udp/node_pair.h"

namespace clan::udp {
namespace {

TEST_F(NodePair, ALinkHasTheEndpointOfTheServiceAndBothNodes) {
  auto found = client.node().dial(server.address(), "service", soon());
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_EQ(found->peer.endpoint, 42u);
  EXPECT_EQ(found->link->remote_node(), server.number());
  EXPECT_EQ(found->link->remote_pid(), ::getpid());
  EXPECT_TRUE(found->link->alive());
  const auto other = server.made();
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(other->remote_node(), client.number());
  EXPECT_STREQ(other->capabilities().name, "udp");
}

TEST_F(NodePair, AServiceThatNobodyOffersIsRefused) {
  auto found = client.node().dial(server.address(), "another", soon());
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().err, ECONNREFUSED);
  EXPECT_EQ(server.asked(), 1);
}

TEST_F(NodePair, ANodeIsReachedWithoutAService) {
  EXPECT_TRUE(client.node().dial(server.address(), "", soon()).ok());
  EXPECT_EQ(server.asked(), 0);
}

TEST_F(NodePair, ANameThatIsTooLongIsRefusedHere) {
  auto found = client.node().dial(server.address(), std::string(300, 'n'), soon());
  EXPECT_EQ(found.error().err, ENAMETOOLONG);
}

TEST_F(NodePair, OneThatDoesNotAnswerIsGivenUpAtTheDeadline) {
  const auto silent = std::move(*open_packets(*parse_address("127.0.0.1:0"), Packets::kSockets));
  auto found = client.node().dial(at_port(silent->local_address().port), "service",
                                  monotonic_ns() + 50'000'000);
  EXPECT_EQ(found.error().err, ETIMEDOUT);
}

// As a directory does.
TEST_F(NodePair, ADialIsSentOnToThePortThatHasTheService) {
  NodeHost directory{1003};
  directory.offer("service", {.port = server.port()});
  auto found = client.node().dial(directory.address(), "service", soon());
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_EQ(found->link->remote_node(), server.number());
  EXPECT_EQ(found->peer.endpoint, 42u);
}

// Left to itself, the kernel gives what leaves a socket that is bound to no address the one that
// its routes choose: here 127.0.0.1, whichever of 127.0.0.0/8 was asked.
TEST_F(NodePair, AHostAnswersFromTheOneOfItsAddressesThatWasAsked) {
  for (const char* local : {"0.0.0.0:0", "[::]:0"}) {
    NodeHost host{1004, local};
    host.offer("service", {.endpoint = 43});
    const auto asked = *parse_address(("127.0.0.2:" + std::to_string(host.port())).c_str());
    auto found = client.node().dial(asked, "service", soon());
    ASSERT_TRUE(found.ok()) << found.error().message();
    EXPECT_EQ(found->peer.endpoint, 43u);
    ASSERT_NE(host.made(), nullptr);
    EXPECT_EQ(found->link->remote_address(), to_string(asked));
    // So many that the host has its second socket for them.
    RdmaCookie nobodys;
    nobodys.node = found->link->remote_node();
    for (int i = 0; i < 300; ++i) EXPECT_EQ(found->link->import(nobodys, true).error().err, ESTALE);
    EXPECT_EQ(found->link->remote_address(), to_string(asked)) << "an address change";
    EXPECT_TRUE(found->link->alive());
  }
}

// A firewall lets the directory's port pass, and not the one of the process behind it.
TEST_F(NodePair, OneThatIsSentOnToAPortThatDoesNotAnswerSaysWhichPortItIs) {
  const auto silent = std::move(*open_packets(*parse_address("127.0.0.1:0"), Packets::kSockets));
  NodeHost directory{1003};
  directory.offer("service", {.port = silent->local_address().port});
  const auto ask = [&](const SocketAddress& to) {
    return client.node().dial(to, "service", monotonic_ns() + 500'000'000).error();
  };
  const Error behind = ask(directory.address()), alone = ask(at_port(silent->local_address().port));
  EXPECT_EQ(behind.err, ETIMEDOUT);
  EXPECT_NE(std::string(behind.what).find("the port of that process"), std::string::npos)
      << behind.what;
  EXPECT_EQ(std::string(alone.what).find("the port of that process"), std::string::npos)
      << alone.what;
}

TEST_F(NodePair, ADialThatIsSentInACircleEnds) {
  NodeHost directory{1003};
  directory.offer("service", {.port = directory.port()});
  EXPECT_EQ(client.node().dial(directory.address(), "service", soon()).error().err, ELOOP);
  std::promise<int> ended;
  auto dialling = client.node().begin_dial(
      directory.address(), "service",
      [&](const Result<Dialled>& found) { ended.set_value(found.ok() ? 0 : found.error().err); });
  ASSERT_TRUE(dialling.ok());
  EXPECT_EQ(ended.get_future().get(), ELOOP);
}

TEST_F(NodePair, ADialThatNobodyWaitsForEndsOnce) {
  NodeHost directory{1003};
  directory.offer("service", {.port = server.port()});
  std::promise<Result<Dialled>> ended;
  auto dialling =
      client.node().begin_dial(directory.address(), "service",
                               [&](Result<Dialled> found) { ended.set_value(std::move(found)); });
  ASSERT_TRUE(dialling.ok());
  auto found = ended.get_future().get();
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_EQ(found->link->remote_node(), server.number());
  client.node().give_up(**dialling);  // too late, and no matter
  EXPECT_TRUE(found->link->alive());
}

TEST_F(NodePair, ADialThatIsGivenUpIsNotHeardOfAgain) {
  const auto silent = std::move(*open_packets(*parse_address("127.0.0.1:0"), Packets::kSockets));
  auto alive = std::make_shared<int>(1);
  auto dialling = client.node().begin_dial(
      at_port(silent->local_address().port), "service",
      [alive](const Result<Dialled>&) { ADD_FAILURE() << "it was given up"; });
  ASSERT_TRUE(dialling.ok());
  EXPECT_EQ(alive.use_count(), 2);
  client.node().give_up(**dialling);
  EXPECT_EQ(alive.use_count(), 1) << "what it holds is let go of";
  client.node().give_up(**dialling);
}

TEST_F(NodePair, ALinkThatIsShutDownIsDownAtThePeerAndNotHere) {
  auto link = dial();
  ASSERT_NE(server.made(), nullptr);
  link->shut_down();
  EXPECT_FALSE(link->alive());
  EXPECT_TRUE(server.is_told([](const auto& told) { return told.down == 1; }));
  EXPECT_FALSE(server.made()->alive());
  EXPECT_EQ(link->send_oob({}).error().err, ECONNRESET);
  EXPECT_TRUE(client.is_told([](const auto& told) { return told.down == 0; }));
}

TEST_F(NodePair, LinksThatBreakAreToldOf) {
  auto link = dial();
  ASSERT_NE(server.made(), nullptr);
  client.node().break_links(ETIMEDOUT);
  EXPECT_TRUE(client.is_told([](const auto& told) { return told.down == 1; }));
  EXPECT_FALSE(link->alive());
}

TEST_F(NodePair, ANodeThatHasShutDownDialsAndAnswersNobody) {
  server.node().shut_down(0);
  EXPECT_EQ(server.node().dial(client.address(), "", soon()).error().err, ESHUTDOWN);
  EXPECT_NE(
      client.node().dial(server.address(), "service", monotonic_ns() + 50'000'000).error().err, 0);
}

TEST_F(NodePair, AnAnswerComesBehindAllThatWasSentBeforeTheQuestion) {
  auto link = dial();
  OobMessage message;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(link->send_oob(message).ok());
  EXPECT_TRUE(server.is_told([](const auto& told) { return told.messages.size() == 100; }));
  RdmaCookie nobodys;
  nobodys.node = link->remote_node();
  EXPECT_EQ(link->import(nobodys, true).error().err, ESTALE) << "answered behind all of them";
}

/// A thread of the client's that looks for packets all the time, so that the driver thread keeps
/// out.
struct NodeThatIsPolled : NodePair {
  static constexpr int kMessages = 10;
  /// How many packets those take.
  std::uint64_t packets_of_a_burst() {
    const std::uint64_t end = monotonic_ns() + 200'000;
    while (monotonic_ns() < end) client.node().progress();
    const std::uint64_t before = link->path().packets_sent;
    for (int i = 0; i < kMessages; ++i) EXPECT_TRUE(link->send_oob({}).ok());
    return link->path().packets_sent - before;
  }
  bool all_have_come(std::size_t messages) {
    return server.is_told([=](const auto& told) { return told.messages.size() == messages; });
  }
  const std::shared_ptr<UdpLink> link = dial();
};

TEST_F(NodeThatIsPolled, SendsWhatItIsToldBetweenTwoLooksTogether) {
  // One round is enough: in another the driver thread may watch yet, or this one be held up.
  std::uint64_t packets = kMessages;
  std::size_t sent = 0;
  for (const std::uint64_t end = soon(); packets > 1 && monotonic_ns() < end; sent += kMessages)
    packets = packets_of_a_burst();
  EXPECT_EQ(packets, 1u) << "the first message";
  client.node().progress();
  EXPECT_TRUE(all_have_come(sent));
}

TEST_F(NodeThatIsPolled, LeavesNothingBehindWhenTheThreadGoes) {
  std::size_t sent = 0;
  for (int i = 0; i < 20; ++i) {
    (void)packets_of_a_burst();
    EXPECT_TRUE(all_have_come(sent += kMessages)) << "in round " << i;
  }
}

}  // namespace
}  // namespace clan::udp
