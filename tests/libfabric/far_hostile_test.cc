// A peer that comes over the network and means no good: its fields are judged as those of a peer on
// this host, and it can neither pass for one nor reach memory as one does. On loopback, in a
// process of its own, as the provider reads once whether there is a network.
#include <clan/context.h>
#include <clan/message.h>
#include <clan/rdma.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "libfabric-provider/transport/wire.h"
#include "libfabric/node.h"
#include "support/loopback.h"

namespace clan::test {
namespace {

using namespace clan::ofi;
using Bytes = std::vector<std::byte>;

constexpr char kDirectory[] = "FI_CLAN_DIRECTORY_PORT";
constexpr std::uint64_t kKey = 42;

/// A peer behind a UDP link, which says what it is told to.
class FarPeer {
 public:
  FarPeer()
      : context_(*Context::create(options())), messages_(*MessageEndpoint::create(context_)) {}

  bool connect(std::uint16_t port) {
    const std::string name =
        "udp:127.0.0.1:" + std::string(std::getenv(kDirectory)) + "/ofi." + std::to_string(port);
    auto to = messages_.connect(name, 10'000);
    if (to) to_ = *to;
    return to.ok();
  }
  bool say(const WireHeader& header, const Bytes& body = {}) {
    Bytes message(sizeof header + body.size());
    std::memcpy(message.data(), &header, sizeof header);
    std::copy(body.begin(), body.end(), message.begin() + sizeof header);
    return messages_.send(to_, message, 10'000).ok();
  }
  bool introduce(const char* host, std::uint16_t port) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    EXPECT_EQ(::inet_pton(AF_INET, host, &v4.sin_addr), 1);
    Hello hello;
    hello.length = sizeof v4;
    std::memcpy(&hello.address, &v4, sizeof v4);
    Bytes body(sizeof hello);
    std::memcpy(body.data(), &hello, sizeof hello);
    return say({.op = Op::kHello}, body);
  }
  /// The next message of that kind, if it has come; others are dropped.
  bool hear(Op op, WireHeader* header, Bytes* body) {
    while (auto message = messages_.peek()) {
      std::memcpy(header, message->bytes.data(), sizeof *header);
      body->assign(message->bytes.begin() + sizeof *header, message->bytes.end());
      messages_.drop();
      if (header->op == op) return true;
    }
    return false;
  }
  bool offer(std::uint64_t length, std::uint32_t id, std::uint8_t flags = 0) {
    const FarOffer offer{length, 1000 + id};
    Bytes body(sizeof offer);
    std::memcpy(body.data(), &offer, sizeof offer);
    return say({.op = Op::kMessage, .flags = static_cast<std::uint8_t>(kOffered | flags), .id = id},
               body);
  }
  bool say_placed(std::uint64_t receive, int err = 0) {
    return say({.op = Op::kPlaced, .tag = receive, .data = static_cast<std::uint64_t>(err)});
  }
  /// 0 or errno.
  int write(const RdmaCookie& cookie, const Bytes& bytes, std::uint64_t offset = 0) {
    auto place = RemoteAperture::import(context_, cookie, 0);
    if (!place) return place.error().err;
    auto queue = RdmaQueue::create(context_);
    RdmaCompletion done[1];
    if (!queue || !queue->write(*place, offset, bytes.data(), bytes.size())) return EIO;
    auto n = queue->wait(done, 10'000);
    return n ? done[0].status : n.error().err;
  }
  std::uint64_t node() const { return context_.node().value; }
  Result<Aperture> share(Bytes& memory, Rights rights) {
    return Aperture::export_region(context_, memory, rights);
  }
  /// What has come is dropped.
  bool is_shut_out() {
    PeerIndex gone;
    while (messages_.peek()) messages_.drop();
    return messages_.take_departed(&gone);
  }

 private:
  static ContextOptions options() {
    ContextOptions options;
    options.network.enabled = true;
    options.network.mode = NetworkOptions::Mode::kOff;
    options.network.directory_port = 0;
    return options;
  }
  Context context_;
  MessageEndpoint messages_;
  PeerIndex to_ = 0;
};

class FabricFarHostile : public testing::Test {
 protected:
  /// True in the process where there is a network. Elsewhere the test runs in such a one.
  static bool there() {
    if (std::getenv("CLAN_NETWORK_MODE") != nullptr) return true;
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    const std::string filter = "--gtest_filter=FabricFarHostile." + name;
    const std::string port = std::to_string(free_udp_port());
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("CLAN_NETWORK_MODE", "off", 1);
      ::setenv(kDirectory, port.c_str(), 1);
      ::execl("/proc/self/exe", "test_libfabric", filter.c_str(), nullptr);
      ::_exit(127);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    return false;
  }
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
  static std::uint16_t port_of(Node& node) {
    sockaddr_in address{};
    std::memcpy(&address, node.name().data(), sizeof address);
    return ntohs(address.sin_port);
  }
};

TEST_F(FabricFarHostile, APeerThatClaimsAnAddressOfOursIsShutOut) {
  if (!there()) return;
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
  if (!there()) return;
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
  if (!there()) return;
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

TEST_F(FabricFarHostile, ABufferForSeveralMessagesComesBackWhenTheLastWriterIsDone) {
  if (!there()) return;
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
  if (!there()) return;
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
  if (!there()) return;
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
    // Of another number, or cut off: not an answer to this.
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
  if (!there()) return;
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
