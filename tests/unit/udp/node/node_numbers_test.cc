// Peers that say to be a node that they are not. A node of the test's own is the hostile one: it
// greets with the number that the test gives it, from an address of loopback that counts as another
// host's.
#include <clan/context.h>
#include <clan/endpoint.h>
#include <clan/stream.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "clan/detail/clock.h"
#include "engine/context/context_core.h"
#include "link/udp/io/datagram_socket.h"
#include "link/udp/io/socket_io.h"
#include "link/udp/node/udp_link.h"
#include "link/udp/node/udp_node.h"
#include "support/pattern.h"
#include "support/streams.h"

namespace clan::test {
namespace {

constexpr std::uint32_t kServiceEndpoint = 77;

ContextOptions with_network() {
  ContextOptions options;
  options.network.enabled = true;
  options.network.mode = NetworkOptions::Mode::kOff;
  options.network.directory_port = 0;
  return options;
}

/// A process of another host: a context without a network, and a node at `address` that says to be
/// `number`. It has a service of any name.
class FarPeer {
 public:
  FarPeer(const std::string& address, NodeId number) : context_(must(Context::create())) {
    auto socket = must(udp::SocketIo::open(must(udp::parse_address((address + ":0").c_str())), {}));
    udp::Options options;
    options.packet_window = socket->packets_of_room();
    options.credit[0] = 4 << 20;
    engine::ContextCore& core = *context_.core();
    udp::NodeOwner owner;
    owner.node = number;
    owner.uid = core.owner(-1);
    owner.nic = &core.own_lane();
    owner.sink = &core;
    owner.reactor = &core.reactor();
    owner.find_service = [](const std::string&, udp::Greeting* answer) {
      answer->endpoint = kServiceEndpoint;
      return 0;
    };
    owner.on_link = [&core](std::shared_ptr<nic::Link> link) { core.add_link(std::move(link)); };
    node_ = must(udp::UdpNode::create(std::move(owner), std::move(socket), nullptr, options));
    address_ = address + ":" + std::to_string(node_->local_address().port);
  }
  ~FarPeer() { node_->shut_down(2 * udp::kSecond); }
  FarPeer(const FarPeer&) = delete;
  FarPeer& operator=(const FarPeer&) = delete;

  /// Links with the context, and is known there when this returns.
  void link_with(Context& victim) {
    const auto before = victim.counters().links;
    const std::string to = "127.0.0.1:" + std::to_string(victim.network_port());
    auto found =
        must(node_->dial(must(udp::parse_address(to.c_str())), "", deadline_after_ms(10'000)));
    context_.core()->add_link(found.link);
    while (victim.counters().links == before) std::this_thread::yield();
  }
  const std::string& address() const { return address_; }
  Context& context() { return context_; }

 private:
  Context context_;
  std::shared_ptr<udp::UdpNode> node_;
  std::string address_;
};

/// Where a message to that node goes: the address of a link, "" by shared memory.
std::string way_to(Context& from, NodeId node) {
  auto link = from.core()->link_to_node(node, ::geteuid(), deadline_after_ms(1'000));
  if (!link) return link.error().err == ECONNREFUSED ? "nowhere" : link.error().message();
  return (*link)->capabilities().mapped ? "" : (*link)->remote_address();
}

void wait_for_links(Context& context, std::uint64_t links) {
  for (int i = 0; i < 10'000 && context.counters().links != links; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(context.counters().links, links);
}

TEST(NodeNumbers, AFarPeerDoesNotGetTheMessagesOfAProcessOfThisHost) {
  for (const bool networked : {true, false}) {
    auto context = must(Context::create(with_network()));
    auto neighbour = must(Context::create(networked ? with_network() : ContextOptions{}));
    auto receiver = must(OobEndpoint::create(neighbour));
    FarPeer hostile("127.0.0.2", neighbour.node());
    auto listens_too = must(OobEndpoint::create(hostile.context()));
    ASSERT_EQ(listens_too.address().endpoint, receiver.address().endpoint);
    hostile.link_with(context);
    auto sender = must(OobEndpoint::create(context));
    EXPECT_OK(sender.send(receiver.address(), 1, pattern(8, 1), 10'000));
    EXPECT_TRUE(receiver.recv(10'000).ok());
    EXPECT_EQ(listens_too.try_recv().error().err, EAGAIN);
  }
}

TEST(NodeNumbers, NorWhenThatProcessHasEnded) {
  auto context = must(Context::create(with_network()));
  std::optional<Context> neighbour(must(Context::create(with_network())));
  const NodeId number = neighbour->node();
  auto listener = must(Listener::create(*neighbour, ""));
  auto stream = must(Stream::connect(context, listener.address(), 10'000));
  FarPeer hostile("127.0.0.2", number);
  neighbour.reset();
  wait_for_links(context, 0);
  hostile.link_with(context);
  EXPECT_EQ(way_to(context, number), "nowhere");
}

TEST(NodeNumbers, AFarPeerDoesNotTakeTheNumberOfAnother) {
  auto context = must(Context::create(with_network()));
  std::optional<FarPeer> honest(std::in_place, "127.0.0.3", NodeId{4242});
  FarPeer hostile("127.0.0.2", NodeId{4242});
  honest->link_with(context);
  hostile.link_with(context);
  EXPECT_EQ(way_to(context, NodeId{4242}), honest->address());
  honest.reset();
  wait_for_links(context, 1);
  EXPECT_EQ(way_to(context, NodeId{4242}), "nowhere");
}

TEST(NodeNumbers, APeerThatComesBackToItsAddressIsBelieved) {
  auto context = must(Context::create(with_network()));
  FarPeer peer("127.0.0.3", NodeId{4242});
  peer.link_with(context);
  peer.link_with(context);
  EXPECT_EQ(way_to(context, NodeId{4242}), peer.address());
}

TEST(NodeNumbers, AHostThatIsDialledIsNotReplacedByOneThatSaysToBeIt) {
  auto context = must(Context::create(with_network()));
  // Whichever of two numbers is less: the rule for two that dial at once depends on that.
  for (const NodeId number : {NodeId{1}, NodeId{~0ull}}) {
    FarPeer honest("127.0.0.3", number), hostile("127.0.0.2", number);
    const auto dial = [&](const FarPeer& peer, const char* service) {
      std::uint32_t endpoint = 0;
      auto link =
          context.core()->link_to_service("udp:" + peer.address() + "/" + service, ::geteuid(),
                                          deadline_after_ms(10'000), &endpoint);
      return link ? (*link)->remote_address() : link.error().message();
    };
    hostile.link_with(context);
    EXPECT_EQ(dial(hostile, "any"), hostile.address());
    EXPECT_EQ(dial(honest, "first"), honest.address());
    EXPECT_EQ(dial(honest, "second"), honest.address());
  }
}

}  // namespace
}  // namespace clan::test
