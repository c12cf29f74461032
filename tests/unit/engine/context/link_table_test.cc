#include "engine/context/link_table.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "nic/nic.h"

namespace clan::engine {
namespace {

constexpr NodeId kOwnNode{50};
constexpr uid_t kSomeUser = 1000;
constexpr char kAddress[] = "10.0.0.2:4000", kOtherAddress[] = "10.0.0.3:4000";

// What the table asks of a link, and what it tells it. With an address it is one of packets.
class FakeLink final : public nic::Link {
 public:
  FakeLink(NodeId node, const std::string& address) : node_(node), address_(address) {}

  nic::LinkCapabilities capabilities() const override { return {.mapped = address_.empty()}; }
  NodeId remote_node() const override { return node_; }
  uid_t remote_uid() const override { return user; }
  pid_t remote_pid() const override { return 1; }
  std::string remote_address() const override { return address_; }
  bool alive() const override { return is_alive; }
  bool settled() const override { return is_settled; }
  bool wants_help() override { return help_wanted; }
  bool help() override { return ++helped > 0; }
  bool holds_slot(const nic::Nic&, std::uint32_t slot) const override { return slot == held; }
  void announce_revoked(std::uint32_t aperture, std::uint32_t generation) override {
    revoked.emplace_back(aperture, generation);
  }
  void abandon_after_fork() override { abandoned = true; }

  Result<nic::RemoteHandle> import(const RdmaCookie&, bool) override { return refused(); }
  void release(const nic::RemoteHandle&) override {}
  Status grant(const RdmaCookie&) override { return refused(); }
  Status put(const nic::RemoteHandle&, std::uint64_t, std::span<const std::byte>,
             nic::PutOrder) override {
    return refused();
  }
  Status get(const nic::RemoteHandle&, std::uint64_t, std::span<std::byte>) override {
    return refused();
  }
  Status after_access(const nic::RemoteHandle&, std::uint64_t, std::uint64_t,
                      nic::AccessKind) override {
    return refused();
  }
  nic::TransferResult transfer(const nic::Transfer&) override { return {}; }
  void cancel(std::uint64_t) override {}
  Status send_oob(const OobMessage&) override { return refused(); }
  void shut_down() override {}

  uid_t user = kSomeUser;
  bool is_alive = true, is_settled = true, help_wanted = false, abandoned = false;
  int helped = 0;
  std::uint32_t held = ~0u;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> revoked;

 private:
  static Error refused() { return {ENOTSUP, "a link that carries nothing"}; }
  const NodeId node_;
  const std::string address_;
};

class LinkTableTest : public testing::Test {
 protected:
  std::shared_ptr<FakeLink> mapped(NodeId node) {
    auto link = std::make_shared<FakeLink>(node, "");
    table.add(link);
    return link;
  }
  std::shared_ptr<FakeLink> far(NodeId node, const char* address = kAddress) {
    auto link = std::make_shared<FakeLink>(node, address);
    (void)table.believe(*link, node, address, false);
    table.add(link);
    return link;
  }

  PacketWait packets;
  LinkTable table{kOwnNode, packets};
};

TEST_F(LinkTableTest, FindsTheLinkOfANodeAndAUser) {
  const auto link = mapped(NodeId{7});
  (void)mapped(NodeId{8});
  EXPECT_EQ(table.find(NodeId{7}, kSomeUser), link);
  EXPECT_EQ(table.find(NodeId{7}, kSomeUser + 1), nullptr) << "the kernel says whose it is";
  EXPECT_EQ(table.find(NodeId{9}, kSomeUser), nullptr);
}

TEST_F(LinkTableTest, FindsNoLinkThatIsDeadOrThatThePeerMayStillDrop) {
  const auto link = mapped(NodeId{7});
  link->is_alive = false;
  EXPECT_EQ(table.find(NodeId{7}, kSomeUser), nullptr);
  link->is_alive = true;
  link->is_settled = false;
  EXPECT_EQ(table.find(NodeId{7}, kSomeUser), nullptr);
  EXPECT_EQ(table.settled(), 0u);
  link->is_settled = true;
  EXPECT_EQ(table.find(NodeId{7}, kSomeUser), link);
  EXPECT_EQ(table.settled(), 1u);
}

TEST_F(LinkTableTest, FindsALinkOfThisHostBeforeOneOfPackets) {
  const auto packets_first = far(NodeId{7});
  EXPECT_EQ(table.find(NodeId{7}, kSomeUser + 1), packets_first) << "its user is not asked";
  const auto link = mapped(NodeId{7});
  EXPECT_EQ(table.find(NodeId{7}, kSomeUser), link);
}

TEST_F(LinkTableTest, FindsNoFarLinkThatSaysToBeThisNodeOrOneKnownElsewhere) {
  (void)far(kOwnNode);
  EXPECT_EQ(table.find(kOwnNode, kSomeUser), nullptr);
  const auto honest = far(NodeId{7}, kAddress);
  table.remove(honest);
  (void)far(NodeId{7}, kOtherAddress);
  EXPECT_EQ(table.find(NodeId{7}, kSomeUser), nullptr);
  const auto here = std::make_shared<FakeLink>(NodeId{8}, kAddress);
  EXPECT_FALSE(table.believe(*here, NodeId{8}, kAddress, true));
  (void)mapped(NodeId{9});
  EXPECT_FALSE(table.believe(*here, NodeId{9}, kAddress, false)) << "a process of this host has it";
}

TEST_F(LinkTableTest, TellsOneCallerThatALinkWasRemoved) {
  const auto link = mapped(NodeId{7});
  EXPECT_EQ(table.all().size(), 1u);
  EXPECT_TRUE(table.remove(link));
  EXPECT_FALSE(table.remove(link));
  EXPECT_TRUE(table.all().empty());
  EXPECT_EQ(table.find(NodeId{7}, kSomeUser), nullptr);
}

TEST_F(LinkTableTest, RemembersAServiceWhileItsLinkLives) {
  auto link = mapped(NodeId{7});
  std::uint32_t endpoint = 0;
  EXPECT_EQ(table.known("echo", &endpoint), nullptr);
  table.remember("echo", link, 3);
  EXPECT_EQ(table.known("echo", &endpoint), link);
  EXPECT_EQ(endpoint, 3u);
  link->is_alive = false;
  EXPECT_EQ(table.known("echo", &endpoint), nullptr);
  link->is_alive = true;
  table.remove(link);
  const std::weak_ptr<FakeLink> gone = link;
  link.reset();
  EXPECT_TRUE(gone.expired()) << "a name alone keeps no link";
  EXPECT_EQ(table.known("echo", &endpoint), nullptr);
}

TEST_F(LinkTableTest, ForgetsTheServicesOfALinkThatIsRemoved) {
  const auto link = mapped(NodeId{7}), other = mapped(NodeId{8});
  table.remember("a", link, 3);
  table.remember("b", other, 4);
  table.remove(link);
  std::uint32_t endpoint = 0;
  EXPECT_EQ(table.known("a", &endpoint), nullptr) << "the link is alive, but out of the table";
  EXPECT_EQ(table.known("b", &endpoint), other);
}

TEST_F(LinkTableTest, ForgetsTheServicesOfOneEndpointOnly) {
  const auto link = mapped(NodeId{7}), other = mapped(NodeId{8});
  table.remember("a", link, 3);
  table.remember("b", link, 4);
  table.remember("c", other, 3);
  table.forget(*link, 3);
  std::uint32_t endpoint = 0;
  EXPECT_EQ(table.known("a", &endpoint), nullptr);
  EXPECT_EQ(table.known("b", &endpoint), link);
  EXPECT_EQ(table.known("c", &endpoint), other);
}

TEST_F(LinkTableTest, ChoosesTheLinkByWhichAServiceOfThatProcessIsKnown) {
  const NodeId greater{kOwnNode.value + 1};
  const auto link = far(greater);
  const FakeLink made(greater, kAddress), of_another(greater, kOtherAddress);
  EXPECT_EQ(table.chosen(made), nullptr) << "the lesser node keeps the one it has made";
  table.remember("echo", link, 3);
  EXPECT_EQ(table.chosen(made), link);
  EXPECT_EQ(table.chosen(of_another), nullptr);
  link->is_alive = false;
  EXPECT_EQ(table.chosen(made), nullptr);
}

TEST_F(LinkTableTest, ChoosesThePeersLinkWhereThePeersNodeIsLess) {
  const NodeId less{kOwnNode.value - 1};
  const auto link = far(less);
  EXPECT_EQ(table.chosen(FakeLink(less, kAddress)), link);
  EXPECT_EQ(table.chosen(FakeLink(less, kOtherAddress)), nullptr);
  link->is_settled = false;
  EXPECT_EQ(table.chosen(FakeLink(less, kAddress)), nullptr) << "its peer may drop it";
}

TEST_F(LinkTableTest, KeepsAnArenaForALinkUntilItIsRemoved) {
  const auto link = mapped(NodeId{7}), other = mapped(NodeId{8});
  const auto arena = table.arena(link.get());
  EXPECT_EQ(table.arena(link.get()), arena);
  EXPECT_NE(table.arena(other.get()), arena);
  table.remove(link);
  const auto late = table.arena(link.get());
  EXPECT_NE(late, arena);
  EXPECT_NE(table.arena(link.get()), late) << "it would be there for ever";
}

TEST_F(LinkTableTest, TellsWhetherThePeerBehindASlotIsThere) {
  auto made = nic::Nic::create(kOwnNode, ::geteuid());
  ASSERT_TRUE(made.ok());
  const auto link = mapped(NodeId{7});
  link->held = 5;
  EXPECT_TRUE(table.peer_alive(**made, 5));
  EXPECT_FALSE(table.peer_alive(**made, 6));
  link->is_alive = false;
  EXPECT_FALSE(table.peer_alive(**made, 5));
}

TEST_F(LinkTableTest, AnnouncesARevokedApertureToPeersOfItsUserOnceThereArePackets) {
  auto made = nic::Nic::create(kOwnNode, ::geteuid());
  ASSERT_TRUE(made.ok());
  std::vector<std::byte> memory(4096);
  const auto aperture = [&] {
    auto cookie =
        (*made)->export_aperture({memory.data(), memory.size(), Rights::kReadWrite, nullptr});
    EXPECT_TRUE(cookie.ok());
    return cookie->aperture;
  };
  const auto near = mapped(NodeId{7});
  near->user = ::geteuid();
  table.retire(**made, aperture());
  EXPECT_TRUE(near->revoked.empty()) << "peers that map the tables see it";
  const auto link = far(NodeId{8}), of_another = far(NodeId{9}, kOtherAddress);
  link->user = ::geteuid();
  of_another->user = ::geteuid() + 1;
  const auto retired = aperture();
  table.retire(**made, retired);
  ASSERT_EQ(link->revoked.size(), 1u);
  EXPECT_EQ(link->revoked[0].first, retired);
  ASSERT_TRUE(table.revoke(**made, aperture()));
  EXPECT_EQ(link->revoked.size(), 2u);
  EXPECT_TRUE(of_another->revoked.empty());
}

TEST_F(LinkTableTest, SaysThatPacketsHaveComeWithTheFirstLinkOfThem) {
  (void)mapped(NodeId{7});
  EXPECT_FALSE(packets.linked());
  const auto link = far(NodeId{8});
  EXPECT_TRUE(packets.linked());
  table.remove(link);
  EXPECT_TRUE(packets.linked()) << "what it has sent may still have to be fetched";
}

TEST_F(LinkTableTest, HelpsOneLinkAndAsksForMoreHelpIfAnotherWantsIt) {
  const auto first = mapped(NodeId{7}), second = mapped(NodeId{8});
  std::atomic<std::uint64_t> wanted{4};
  EXPECT_FALSE(table.help_one(wanted));
  EXPECT_EQ(wanted.load(std::memory_order_relaxed), 0u);
  first->help_wanted = second->help_wanted = true;
  EXPECT_TRUE(table.help_one(wanted));
  EXPECT_EQ(first->helped + second->helped, 1);
  EXPECT_EQ(wanted.load(std::memory_order_relaxed), 1u);
  first->help_wanted = false;
  EXPECT_TRUE(table.help_one(wanted));
  EXPECT_EQ(second->helped, 1);
  EXPECT_EQ(wanted.load(std::memory_order_relaxed), 0u);
}

TEST_F(LinkTableTest, IsWholeAndFreeInTheChildOfAFork) {
  const auto link = mapped(NodeId{7});
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop.load(std::memory_order_relaxed)) table.remember("echo", link, 3);
  });
  table.lock_for_fork();
  const pid_t child = ::fork();
  table.unlock_after_fork();
  if (child == 0) {
    table.abandon_after_fork();
    ::_exit(link->abandoned && table.all().size() == 1 ? 0 : 1);
  }
  stop.store(true, std::memory_order_relaxed);
  busy.join();
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(link->abandoned);
}

}  // namespace
}  // namespace clan::engine
