// A peer that comes over the network and means no good: its fields are judged as those of a peer on
// this host, and it can neither pass for one nor reach memory as one does.
#include <random>
#include <vector>

#include "libfabric/far_peer.h"

namespace clan::test {
namespace {

using namespace clan::ofi;

constexpr std::uint64_t kKey = 42;

class FabricFarHostile : public testing::Test {
 protected:
  /// A peer that is known to the node, as 192.0.2.7:7000.
  static std::unique_ptr<FarPeer> known(Node& node) {
    auto peer = std::make_unique<FarPeer>();
    EXPECT_TRUE(peer->connect(port_of(node)) && peer->introduce("192.0.2.7", 7000));
    return peer;
  }
  static fi_addr_t address_of_known(Node& node) {
    fi_addr_t address = FI_ADDR_NOTAVAIL;
    EXPECT_EQ(fi_av_insertsvc(node.av.get(), "192.0.2.7", "7000", &address, 0, nullptr), 1);
    return address;
  }
  /// Until the peer has heard such a message; the node makes progress.
  static bool hears(FarPeer& peer, Node& node, Op op, WireHeader* header, Bytes* body) {
    return eventually([&] {
      (void)fi_cq_read(node.cq.get(), nullptr, 0);
      return peer.hear(op, header, body);
    });
  }
  /// What the next completion says: 0 or an error; -1: there is none.
  static int ending(Node& node, fi_cq_tagged_entry* entry, std::size_t* missing = nullptr) {
    int err = -1;
    (void)eventually([&] {
      const ssize_t n = fi_cq_read(node.cq.get(), entry, 1);
      if (n == 1) err = 0;
      if (n == -FI_EAVAIL) {
        fi_cq_err_entry error{};
        EXPECT_EQ(fi_cq_readerr(node.cq.get(), &error, 0), 1);
        err = error.err;
        entry->op_context = error.op_context;
        entry->flags = error.flags;
        if (missing != nullptr) *missing = error.olen;
      }
      return err >= 0;
    });
    return err;
  }
  struct Place {
    PlaceReply reply;
    std::vector<RdmaCookie> cookies;
  };
  static Place place_in(const Bytes& body) {
    Place place;
    EXPECT_GE(body.size(), sizeof place.reply);
    std::memcpy(&place.reply, body.data(), sizeof place.reply);
    place.cookies.resize((body.size() - sizeof place.reply) / sizeof(RdmaCookie));
    if (place.cookies.empty()) return place;
    std::memcpy(place.cookies.data(), body.data() + sizeof place.reply,
                place.cookies.size() * sizeof(RdmaCookie));
    return place;
  }
  static Bytes reply_of(std::uint64_t number, const std::vector<RdmaCookie>& cookies) {
    const PlaceReply reply{number, 9, static_cast<std::uint32_t>(cookies.size()), 0};
    const std::size_t more = cookies.size() * sizeof(RdmaCookie);
    Bytes body(sizeof reply + more);
    std::memcpy(body.data(), &reply, sizeof reply);
    if (more > 0) std::memcpy(body.data() + sizeof reply, cookies.data(), more);
    return body;
  }
};

TEST_F(FabricFarHostile, APeerThatClaimsAnAddressOfOursIsShutOut) {
  if (!in_a_network()) return;
  Node node;
  node.enable();
  for (const char* host : {"127.0.0.1", "0.0.0.0"}) {
    FarPeer peer;
    ASSERT_TRUE(peer.connect(port_of(node)));
    ASSERT_TRUE(peer.introduce(host, 7000));
    fi_cq_tagged_entry entry;
    EXPECT_TRUE(eventually([&] {
      (void)fi_cq_read(node.cq.get(), &entry, 1);
      return peer.is_shut_out();
    })) << host;
  }
}

TEST_F(FabricFarHostile, NonsenseOfEveryKindLeavesMemoryAndMessagesAlone) {
  if (!in_a_network()) return;
  Node node;
  std::vector<std::uint8_t> region(8192, 7), inbox(64);
  fid_mr* mr;
  MUST(fi_mr_reg(node.domain.get(), region.data(), region.size(), FI_REMOTE_READ | FI_REMOTE_WRITE,
                 0, kKey, 0, &mr, nullptr));
  const Object<fid_mr> owned(mr);
  node.enable();
  FarPeer peer;
  ASSERT_TRUE(peer.connect(port_of(node)));
  ASSERT_TRUE(peer.introduce("192.0.2.7", 7000));
  std::mt19937 random(4711);
  fi_cq_tagged_entry entry;
  for (int i = 0; i < 3000; ++i) {
    WireHeader header;
    header.op = static_cast<Op>(random() % 20);
    // Messages and atomic operations would be what they say.
    if (header.op == Op::kMessage || header.op == Op::kTagged || header.op == Op::kAtomic) continue;
    header.flags = static_cast<std::uint8_t>(random());
    header.context = static_cast<std::uint16_t>(random() % 3);
    header.id = static_cast<std::uint32_t>(random() % 4);
    header.tag = random() % 2 == 0 ? kKey : random();
    header.data = random() % 100;
    Bytes body(random() % 200);
    for (std::byte& byte : body) byte = static_cast<std::byte>(random() % 3);
    ASSERT_TRUE(peer.say(header, body));
    if (i % 16 == 0) (void)fi_cq_read(node.cq.get(), &entry, 1);
    ASSERT_FALSE(i % 64 == 0 && peer.is_shut_out());
  }
  int context = 0;
  MUST(fi_recv(node.ep.get(), inbox.data(), inbox.size(), nullptr, FI_ADDR_UNSPEC, &context));
  ASSERT_TRUE(peer.say({.op = Op::kMessage}, Bytes(5, std::byte{9})));
  EXPECT_TRUE(eventually(
      [&] { return fi_cq_read(node.cq.get(), &entry, 1) == 1 && entry.op_context == &context; }));
  EXPECT_EQ(entry.len, 5u);
  EXPECT_EQ(inbox[4], 9);
  EXPECT_EQ(std::count(region.begin(), region.end(), 7), 8192);
}

TEST_F(FabricFarHostile, AnOfferedMessageIsWrittenToItsReceiveAndNothingIsWrittenLater) {
  if (!in_a_network()) return;
  Node node;
  node.enable();
  auto peer = known(node);
  std::vector<std::uint8_t> inbox(100'000, 1);
  int context = 0;
  WireHeader header;
  Bytes body;
  // Before the receive is there, and longer than it: what does not fit is not asked for.
  ASSERT_TRUE(peer->offer(150'000, 3, kWantsAck));
  MUST(fi_recv(node.ep.get(), inbox.data(), inbox.size(), nullptr, FI_ADDR_UNSPEC, &context));
  ASSERT_TRUE(hears(*peer, node, Op::kPlace, &header, &body));
  EXPECT_EQ(header.id, 3u);
  const Place place = place_in(body);
  EXPECT_EQ(place.reply.number, 1003u);
  ASSERT_EQ(place.cookies.size(), 1u);
  EXPECT_EQ(place.cookies[0].length, inbox.size());
  EXPECT_EQ(peer->write(place.cookies[0], Bytes(inbox.size(), std::byte{2})), 0);
  // Words of others, and of nothing, end nothing.
  for (std::uint64_t number : {std::uint64_t{0}, place.reply.receive + 1, ~std::uint64_t{0}})
    ASSERT_TRUE(peer->say_placed(number));
  auto other = known(node);
  ASSERT_TRUE(other->say_placed(place.reply.receive));
  fi_cq_tagged_entry entry;
  for (int i = 0; i < 200; ++i) ASSERT_EQ(fi_cq_read(node.cq.get(), &entry, 1), -FI_EAGAIN);
  ASSERT_TRUE(peer->say_placed(place.reply.receive));
  std::size_t missing = 0;
  EXPECT_EQ(ending(node, &entry, &missing), FI_ETRUNC);
  EXPECT_EQ(entry.op_context, &context);
  EXPECT_EQ(missing, 50'000u);
  EXPECT_TRUE(hears(*peer, node, Op::kAck, &header, &body));
  EXPECT_EQ(std::count(inbox.begin(), inbox.end(), 2), 100'000);
  EXPECT_NE(peer->write(place.cookies[0], Bytes(10, std::byte{3})), 0);
  EXPECT_EQ(inbox[0], 2);
  ASSERT_TRUE(peer->say_placed(place.reply.receive)) << "a second time";
  for (int i = 0; i < 200; ++i) ASSERT_EQ(fi_cq_read(node.cq.get(), &entry, 1), -FI_EAGAIN);
}

TEST_F(FabricFarHostile, ASendThatWaitsForDeliveryEndsWhereItsReceiveCannotBeWritten) {
  if (!in_a_network()) return;
  Node node;
  node.enable();
  auto peer = known(node);
  int context = 0;
  MUST(fi_recv(node.ep.get(), nullptr, 100'000, nullptr, FI_ADDR_UNSPEC, &context));
  ASSERT_TRUE(peer->offer(100'000, 4, kWantsAck));
  WireHeader header;
  Bytes body;
  ASSERT_TRUE(hears(*peer, node, Op::kPlace, &header, &body));
  EXPECT_TRUE(place_in(body).cookies.empty());
  ASSERT_TRUE(hears(*peer, node, Op::kAck, &header, &body));
  EXPECT_EQ(header.id, 4u);
  fi_cq_tagged_entry entry;
  EXPECT_EQ(ending(node, &entry), EINVAL);
  EXPECT_EQ(entry.op_context, &context);
}

TEST_F(FabricFarHostile, ABufferForSeveralMessagesComesBackWhenTheLastWriterIsDone) {
  if (!in_a_network()) return;
  Node node;
  node.enable();
  auto peer = known(node);
  std::vector<std::uint8_t> inbox(200'000, 1);
  int context = 0;
  const iovec iov{inbox.data(), inbox.size()};
  fi_msg msg{};
  msg.msg_iov = &iov;
  msg.iov_count = 1;
  msg.addr = FI_ADDR_UNSPEC;
  msg.context = &context;
  MUST(fi_recvmsg(node.ep.get(), &msg, FI_MULTI_RECV));
  ASSERT_TRUE(peer->offer(100'000, 1));
  ASSERT_TRUE(peer->offer(99'990, 2));
  WireHeader header;
  Bytes body;
  ASSERT_TRUE(hears(*peer, node, Op::kPlace, &header, &body));
  const Place first = place_in(body);
  ASSERT_TRUE(hears(*peer, node, Op::kPlace, &header, &body));
  const Place second = place_in(body);
  ASSERT_EQ(second.cookies.size(), 1u);
  EXPECT_EQ(peer->write(second.cookies[0], Bytes(99'990, std::byte{2})), 0);
  ASSERT_TRUE(peer->say_placed(second.reply.receive));
  fi_cq_tagged_entry entry;
  EXPECT_EQ(ending(node, &entry), 0);
  EXPECT_EQ(entry.buf, inbox.data() + 100'000);
  EXPECT_EQ(entry.flags & FI_MULTI_RECV, 0u) << "the first message is still being written";
  ASSERT_TRUE(peer->say_placed(first.reply.receive, EIO));
  EXPECT_EQ(ending(node, &entry), EIO);
  EXPECT_EQ(entry.flags & FI_MULTI_RECV, FI_MULTI_RECV);
  EXPECT_EQ(std::count(inbox.begin(), inbox.end(), 2), 99'990);
}

TEST_F(FabricFarHostile, ASenderThatDiesInTheMiddleEndsTheReceive) {
  if (!in_a_network()) return;
  Node node;
  node.enable();
  std::vector<std::uint8_t> inbox(100'000, 1);
  int context = 0;
  fi_cq_tagged_entry entry;
  auto peer = known(node);
  ASSERT_TRUE(peer->offer(100'000, 1));
  ASSERT_TRUE(peer->offer(100'000, 2));  // never asked for
  MUST(fi_recv(node.ep.get(), inbox.data(), inbox.size(), nullptr, FI_ADDR_UNSPEC, &context));
  WireHeader header;
  Bytes body;
  ASSERT_TRUE(hears(*peer, node, Op::kPlace, &header, &body));
  const Place place = place_in(body);
  EXPECT_EQ(peer->write(place.cookies[0], Bytes(50'000, std::byte{2})), 0);
  peer.reset();
  EXPECT_EQ(ending(node, &entry), FI_ECONNRESET);
  EXPECT_EQ(entry.op_context, &context);
  // Its other offer has gone with it.
  MUST(fi_recv(node.ep.get(), inbox.data(), inbox.size(), nullptr, FI_ADDR_UNSPEC, &context));
  peer = known(node);
  ASSERT_TRUE(peer->say({.op = Op::kMessage}, Bytes(5, std::byte{9})));
  EXPECT_EQ(ending(node, &entry), 0);
  EXPECT_EQ(entry.len, 5u);
}

TEST_F(FabricFarHostile, PlacesThatMakeNoSenseEndTheSendAndWriteNothing) {
  if (!in_a_network()) return;
  Node node;
  node.enable();
  auto peer = known(node);
  fi_cq_tagged_entry entry;
  for (int i = 0; i < 1000; ++i) (void)fi_cq_read(node.cq.get(), &entry, 1);
  const fi_addr_t to = address_of_known(node);
  const Bytes out(100'000, std::byte{5});
  Bytes target(200'000, std::byte{1});
  auto good = peer->share(target, Rights::kReadWrite);
  ASSERT_TRUE(good.ok());
  RdmaCookie longer = good->cookie(), elsewhere = good->cookie(), unreal = good->cookie();
  elsewhere.node.value ^= 1;
  elsewhere.length = unreal.length = 10;
  const std::vector<std::vector<RdmaCookie>> wrong{
      {longer}, {elsewhere}, std::vector(5, unreal), {unreal, unreal, longer}};
  WireHeader header;
  Bytes body;
  int context = 0;
  for (const auto& cookies : wrong) {
    ASSERT_EQ(
        sent([&] { return fi_send(node.ep.get(), out.data(), out.size(), nullptr, to, &context); },
             node),
        0);
    ASSERT_TRUE(hears(*peer, node, Op::kMessage, &header, &body));
    ASSERT_EQ(header.flags & kOffered, kOffered);
    FarOffer offer;
    ASSERT_EQ(body.size(), sizeof offer);
    std::memcpy(&offer, body.data(), sizeof offer);
    EXPECT_EQ(offer.length, out.size());
    const std::uint32_t id = header.id;
    // With another number, or cut off: not an answer to this.
    ASSERT_TRUE(peer->say({.op = Op::kPlace, .id = id}, reply_of(offer.number + 1, {})));
    ASSERT_TRUE(peer->say({.op = Op::kPlace, .id = id}, Bytes(7)));
    ASSERT_TRUE(peer->say({.op = Op::kPlace, .id = id}, reply_of(offer.number, cookies)));
    EXPECT_EQ(ending(node, &entry), EPROTO);
    EXPECT_EQ(entry.op_context, &context);
    ASSERT_TRUE(hears(*peer, node, Op::kPlaced, &header, &body));
    EXPECT_EQ(header.tag, 9u);
    EXPECT_EQ(header.data, static_cast<std::uint64_t>(EPROTO));
  }
  // A cookie that its length betrays is refused by its owner, not by us.
  ASSERT_EQ(
      sent([&] { return fi_send(node.ep.get(), out.data(), out.size(), nullptr, to, &context); },
           node),
      0);
  ASSERT_TRUE(hears(*peer, node, Op::kMessage, &header, &body));
  FarOffer offer;
  std::memcpy(&offer, body.data(), sizeof offer);
  unreal.key ^= 1;
  ASSERT_TRUE(peer->say({.op = Op::kPlace, .id = header.id}, reply_of(offer.number, {unreal})));
  EXPECT_GT(ending(node, &entry), 0);
  EXPECT_EQ(std::count(target.begin(), target.end(), std::byte{1}), 200'000);
}

TEST_F(FabricFarHostile, AReceiverThatDiesBeforeItHasSaidWhereEndsTheSend) {
  if (!in_a_network()) return;
  Node node;
  node.enable();
  auto peer = known(node);
  fi_cq_tagged_entry entry;
  for (int i = 0; i < 1000; ++i) (void)fi_cq_read(node.cq.get(), &entry, 1);
  const fi_addr_t to = address_of_known(node);
  const Bytes out(100'000, std::byte{5});
  int context = 0;
  WireHeader header;
  Bytes body;
  ASSERT_EQ(
      sent([&] { return fi_send(node.ep.get(), out.data(), out.size(), nullptr, to, &context); },
           node),
      0);
  ASSERT_TRUE(hears(*peer, node, Op::kMessage, &header, &body));
  peer.reset();
  EXPECT_EQ(ending(node, &entry), FI_ECONNRESET);
  EXPECT_EQ(entry.op_context, &context);
}

}  // namespace
}  // namespace clan::test
