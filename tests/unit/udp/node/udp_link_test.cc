// What the engine asks of a link of packets, and what it makes of what the peer sends.
#include "link/udp/node/udp_link.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/random.h"
#include "udp/node_pair.h"

namespace clan::udp {
namespace {

constexpr std::size_t kExported = 4 << 20;

// The server's memory, reached by the client.
struct LinkPair : NodePair {
  LinkPair() {
    link = dial();
    peer = server.made();
  }
  RdmaCookie exported(Rights rights = Rights::kReadWrite) {
    block = *nic::MemoryBlock::create(kExported);
    auto made = server.nic().export_aperture({block->data(), kExported, rights, block});
    EXPECT_TRUE(made.ok());
    return made.ok() ? *made : RdmaCookie{};
  }
  nic::RemoteHandle import(const RdmaCookie& cookie) {
    auto handle = link->import(cookie, true);
    EXPECT_TRUE(handle.ok()) << handle.error().message();
    return handle.ok() ? *handle : nic::RemoteHandle{};
  }
  static std::vector<std::byte> bytes(std::size_t count, unsigned seed) {
    std::vector<std::byte> made(count);
    for (std::size_t i = 0; i < count; ++i)
      made[i] = static_cast<std::byte>((i * 7 + i / 251 + seed) & 0xff);
    return made;
  }
  // What was sent before has been placed.
  void settle(const nic::RemoteHandle& handle) {
    std::byte last{};
    (void)link->get(handle, 0, {&last, 1});
  }
  int transferred(std::uint64_t token) {
    int err = -1;
    EXPECT_TRUE(client.is_told([&](const NodeHost::Told& told) {
      const auto it = told.transfers.find(token);
      if (it != told.transfers.end()) err = it->second;
      return it != told.transfers.end();
    }));
    return err;
  }

  std::shared_ptr<nic::MemoryBlock> block;
  std::shared_ptr<UdpLink> link;
  std::shared_ptr<nic::Link> peer;
};

TEST_F(LinkPair, ImportsWhatTheOwnerGrants) {
  RdmaCookie cookie = exported();
  const auto handle = import(cookie);
  EXPECT_EQ(handle.mapped, nullptr);
  EXPECT_EQ(handle.length, kExported);
  ++cookie.key;
  EXPECT_EQ(link->import(cookie, true).error().err, EACCES);
  --cookie.key;
  ++cookie.generation;
  EXPECT_EQ(link->import(cookie, true).error().err, ESTALE);
  cookie.node = client.number();
  EXPECT_EQ(link->import(cookie, true).error().err, ESTALE);
}

TEST_F(LinkPair, PutsAndGetsMoreThanAPacketHolds) {
  const auto handle = import(exported());
  const auto sent = bytes(1'500'001, 1);
  ASSERT_TRUE(link->put(handle, 77, sent, nic::PutOrder::kAny).ok());
  std::vector<std::byte> back(sent.size());
  ASSERT_TRUE(link->get(handle, 77, back).ok());
  EXPECT_EQ(back, sent);
  EXPECT_EQ(std::memcmp(block->data() + 77, sent.data(), sent.size()), 0);
  EXPECT_EQ(block->data()[76], std::byte{0});
  EXPECT_EQ(block->data()[77 + sent.size()], std::byte{0});
}

TEST_F(LinkPair, ManyThreadsThatReadAtOnceAskForNoMoreThanThePeerServes) {
  const RdmaCookie cookie = exported();
  const auto handle = import(cookie);
  std::atomic<int> served{0};
  std::vector<std::thread> threads;
  constexpr int kThreads = 48;  // of a megabyte each: the peer serves 32
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      std::vector<std::byte> to(UdpLink::kMostRead);
      if (link->get(handle, 0, to).ok()) ++served;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(served.load(), kThreads);
  EXPECT_TRUE(link->alive());
}

TEST_F(LinkPair, PublishesAWordAndWhatFollowsItByOneMessageIfAPacketHoldsIt) {
  const auto handle = import(exported());
  const auto publishes = [&](std::size_t size, std::uint64_t messages) {
    const auto sent = bytes(size, static_cast<unsigned>(size));
    link->begin_batch();
    const std::uint64_t before = link->connection()->queued_bytes(kUrgent);
    EXPECT_TRUE(link->publish(handle, 64, sent).ok());
    const std::uint64_t queued = link->connection()->queued_bytes(kUrgent) - before;
    link->end_batch();
    settle(handle);
    EXPECT_EQ(queued, messages * kHeaderCharge + size) << size;
    EXPECT_EQ(std::memcmp(block->data() + 64, sent.data(), size), 0) << size;
    EXPECT_EQ(block->data()[63], std::byte{0});
    EXPECT_EQ(block->data()[64 + size], std::byte{0});
  };
  publishes(8, 1);
  publishes(9, 1);
  publishes(136, 1);
  publishes(1'100, 1);
  publishes(1'200, 2);
  EXPECT_EQ(link->publish(handle, kExported - 8, bytes(16, 0)).error().err, ERANGE);
}

TEST_F(LinkPair, APinnedPayloadIsReadUntilThePeerHasAcknowledgedItAndNotCopied) {
  const auto handle = import(exported());
  const auto first = bytes(50'000, 1), second = bytes(50'000, 2);
  auto kept = std::make_shared<nic::PinnedPayload>(first.size());
  std::copy(first.begin(), first.end(), kept->bytes.get());
  const std::span<const std::byte> sent(kept->bytes.get(), first.size());
  link->begin_batch();  // nothing leaves yet
  ASSERT_TRUE(link->publish(handle, 0, sent, kept).ok());
  EXPECT_FALSE(kept->is_free());
  std::copy(second.begin(), second.end(), kept->bytes.get());
  link->end_batch();
  settle(handle);
  EXPECT_EQ(std::memcmp(block->data() + 8, second.data() + 8, second.size() - 8), 0) << "a copy";
  for (const auto end = monotonic_ns() + 20 * kSecond; !kept->is_free() && monotonic_ns() < end;)
    client.node().progress();
  EXPECT_TRUE(kept->is_free());
  EXPECT_EQ(kept.use_count(), 1);
  ASSERT_TRUE(link->publish(handle, 0, sent.first(100), kept).ok());
  EXPECT_TRUE(kept->is_free()) << "a short one is copied";
}

TEST_F(LinkPair, APutThatDoesNotHurryIsSentInTheEnd) {
  const auto handle = import(exported());
  const auto sent = bytes(100, 2);
  ASSERT_TRUE(link->put(handle, 0, sent, nic::PutOrder::kNoHurry).ok());
  std::vector<std::byte> back(sent.size());
  ASSERT_TRUE(link->get(handle, 0, back).ok());
  EXPECT_EQ(back, sent);
}

TEST_F(LinkPair, RefusesHereWhatTheCookieDoesNotAllow) {
  const auto handle = import(exported(Rights::kRead));
  std::byte byte{};
  EXPECT_EQ(link->put(handle, 0, {&byte, 1}, nic::PutOrder::kAny).error().err, EACCES);
  EXPECT_EQ(link->get(handle, kExported, {&byte, 1}).error().err, ERANGE);
  EXPECT_EQ(link->get(handle, ~std::uint64_t{0}, {&byte, 1}).error().err, ERANGE);
  EXPECT_TRUE(link->get(handle, kExported - 1, {&byte, 1}).ok());
  const nic::Transfer transfer{
      .op = RdmaOp::kWrite, .remote = &handle, .local = &byte, .length = 1, .token = 1};
  EXPECT_EQ(link->transfer(transfer).err, EACCES);
}

// A peer that does not keep to its cookie: the owner checks each packet.
TEST_F(LinkPair, TheOwnerRefusesWhatAForgedHandleWouldAllow) {
  auto handle = import(exported(Rights::kRead));
  handle.rights = Rights::kReadWrite;
  const auto sent = bytes(100, 3);
  ASSERT_TRUE(link->put(handle, 0, sent, nic::PutOrder::kAny).ok()) << "it is told later";
  settle(handle);
  EXPECT_EQ(block->data()[1], std::byte{0});
  EXPECT_NE(link->check(handle).error().err, 0);
  auto other = import(exported());
  ++other.key_image;
  std::byte byte{};
  EXPECT_EQ(link->get(other, 0, {&byte, 1}).error().err, EACCES);
}

TEST_F(LinkPair, TellsOfARevokedApertureBehindWhatWasSentBefore) {
  const RdmaCookie cookie = exported();
  const auto handle = import(cookie);
  ASSERT_TRUE(link->check(handle).ok());
  ASSERT_TRUE(server.nic().revoke(cookie.aperture, [](std::uint32_t) { return true; }).ok());
  peer->announce_revoked(cookie.aperture, cookie.generation);
  OobMessage behind;
  ASSERT_TRUE(peer->send_oob(behind).ok());
  ASSERT_TRUE(client.is_told([](const auto& told) { return told.messages.size() == 1; }));
  EXPECT_EQ(link->check(handle).error().err, ESTALE);
  std::byte byte{};
  EXPECT_EQ(link->put(handle, 0, {&byte, 1}, nic::PutOrder::kAny).error().err, ESTALE);
  link->release(handle);
  EXPECT_TRUE(link->check(handle).ok()) << "nothing is kept of what is not imported";
}

TEST_F(LinkPair, TransfersBothWaysAndTellsWhenTheyHaveEnded) {
  const auto handle = import(exported());
  auto sent = bytes(1 << 20, 4);
  nic::Transfer transfer{.op = RdmaOp::kWrite,
                         .remote = &handle,
                         .remote_offset = 4096,
                         .local = sent.data(),
                         .length = sent.size(),
                         .token = 7};
  ASSERT_EQ(link->transfer(transfer).kind, nic::TransferResult::Kind::kPending);
  EXPECT_EQ(transferred(7), 0);
  EXPECT_EQ(std::memcmp(block->data() + 4096, sent.data(), sent.size()), 0);
  std::vector<std::byte> back(sent.size());
  transfer.op = RdmaOp::kRead;
  transfer.local = back.data();
  transfer.token = 8;
  ASSERT_EQ(link->transfer(transfer).kind, nic::TransferResult::Kind::kPending);
  EXPECT_EQ(transferred(8), 0);
  EXPECT_EQ(back, sent);
}

TEST_F(LinkPair, ATransferToARevokedApertureEndsWithAnError) {
  const RdmaCookie cookie = exported();
  const auto handle = import(cookie);
  ASSERT_TRUE(server.nic().revoke(cookie.aperture, [](std::uint32_t) { return true; }).ok());
  auto sent = bytes(100'000, 5);
  for (const RdmaOp op : {RdmaOp::kWrite, RdmaOp::kRead}) {
    const nic::Transfer transfer{.op = op,
                                 .remote = &handle,
                                 .local = sent.data(),
                                 .length = sent.size(),
                                 .token = op == RdmaOp::kWrite ? 1u : 2u};
    ASSERT_EQ(link->transfer(transfer).kind, nic::TransferResult::Kind::kPending);
    EXPECT_EQ(transferred(transfer.token), ESTALE);
  }
}

TEST_F(LinkPair, HasSoManyTransfersUnderWayAndNoMore) {
  const auto handle = import(exported());
  auto sent = bytes(64, 6);
  nic::Transfer transfer{
      .op = RdmaOp::kWrite, .remote = &handle, .local = sent.data(), .length = sent.size()};
  link->begin_batch();  // none of them ends
  for (std::size_t i = 0; i < UdpLink::kMostTransfers; ++i) {
    transfer.token = 100 + i;
    EXPECT_EQ(link->transfer(transfer).kind, nic::TransferResult::Kind::kPending);
  }
  transfer.token = 1;
  EXPECT_EQ(link->transfer(transfer).kind, nic::TransferResult::Kind::kBusy);
  link->cancel(100);
  EXPECT_EQ(link->transfer(transfer).kind, nic::TransferResult::Kind::kBusy);
  link->end_batch();
  EXPECT_EQ(transferred(100), ECANCELED);
  EXPECT_EQ(link->transfer(transfer).kind, nic::TransferResult::Kind::kPending);
  EXPECT_EQ(transferred(1), 0);
  for (std::size_t i = 1; i < UdpLink::kMostTransfers; ++i) EXPECT_EQ(transferred(100 + i), 0);
}

// The owner serves what it was asked for, and ends the link with a peer that asks for too much.
TEST_F(LinkPair, TransfersThatAreCancelledAreNoMoreThanThePeerServes) {
  const auto handle = import(exported());
  std::vector<std::byte> back(UdpLink::kMostRead), written(64);
  std::size_t pending = 0;
  link->begin_batch();  // the peer has all of them at once
  for (std::uint64_t token = 100; token < 100 + 20 * UdpLink::kMostTransfers; ++token) {
    const bool read = token % 4 != 0;
    const auto& local = read ? back : written;
    const auto result = link->transfer({.op = read ? RdmaOp::kRead : RdmaOp::kWrite,
                                        .remote = &handle,
                                        .local = const_cast<std::byte*>(local.data()),
                                        .length = local.size(),
                                        .token = token});
    pending += result.kind == nic::TransferResult::Kind::kPending;
    link->cancel(token);
  }
  link->end_batch();
  EXPECT_EQ(pending, UdpLink::kMostTransfers);
  EXPECT_TRUE(client.is_told([&](const auto& told) { return told.transfers.size() == pending; }));
  const auto sent = bytes(100'000, 8);
  ASSERT_TRUE(link->put(handle, 0, sent, nic::PutOrder::kAny).ok());
  std::vector<std::byte> seen(sent.size());
  ASSERT_TRUE(link->get(handle, 0, seen).ok());
  EXPECT_EQ(seen, sent);
  EXPECT_TRUE(link->alive());
  EXPECT_TRUE(std::all_of(back.begin(), back.end(), [](std::byte b) { return b == std::byte{}; }));
}

TEST_F(LinkPair, TransfersUnderWayEndWithTheLink) {
  const auto handle = import(exported());
  auto sent = bytes(64, 7);
  link->begin_batch();
  const nic::Transfer transfer{.op = RdmaOp::kWrite,
                               .remote = &handle,
                               .local = sent.data(),
                               .length = sent.size(),
                               .token = 1};
  ASSERT_EQ(link->transfer(transfer).kind, nic::TransferResult::Kind::kPending);
  nic::Transfer cancelled = transfer;
  cancelled.token = 2;
  ASSERT_EQ(link->transfer(cancelled).kind, nic::TransferResult::Kind::kPending);
  link->cancel(2);
  client.node().break_links(ETIMEDOUT);
  link->end_batch();
  EXPECT_EQ(transferred(1), ECONNRESET);
  // Others that have found the link busy may wait for its room.
  EXPECT_EQ(transferred(2), ECANCELED);
  std::byte byte{};
  EXPECT_EQ(link->get(handle, 0, {&byte, 1}).error().err, ECONNRESET);
  EXPECT_EQ(link->transfer(transfer).err, ECONNRESET);
}

TEST_F(LinkPair, CarriesMessagesBothWaysInTheirOrder) {
  for (std::uint32_t i = 0; i < 50; ++i) {
    OobMessage message;
    message.type = i;
    message.length = i;
    message.payload[0] = std::byte{static_cast<unsigned char>(i)};
    ASSERT_TRUE(link->send_oob(message).ok());
    ASSERT_TRUE(peer->send_oob(message).ok());
  }
  for (NodeHost* host : {&server, &client}) {
    EXPECT_TRUE(host->is_told([](const NodeHost::Told& told) {
      if (told.messages.size() < 50) return false;
      for (std::uint32_t i = 0; i < 50; ++i) {
        EXPECT_EQ(told.messages[i].type, i);
        EXPECT_EQ(told.messages[i].length, i);
        EXPECT_EQ(told.messages[i].payload[0], std::byte{static_cast<unsigned char>(i)});
      }
      return true;
    }));
  }
}

TEST_F(LinkPair, AMessageThatSaysItIsLongerIsCut) {
  OobMessage message;
  message.length = 100'000;
  ASSERT_TRUE(link->send_oob(message).ok());
  EXPECT_TRUE(server.is_told([](const NodeHost::Told& told) {
    return told.messages.size() == 1 && told.messages[0].length == kOobPayload;
  }));
}

// The mutex may be another thread's that the child has not, and the sockets are closed.
TEST_F(LinkPair, AForkedChildIsToldNothingOfThePath) {
  EXPECT_FALSE(link->remote_address().empty());
  std::atomic<bool> taken{false}, forked{false};
  std::thread holder([&] {
    link->begin_batch();
    taken = true;
    while (!forked) std::this_thread::yield();
    link->end_batch();
  });
  while (!taken) std::this_thread::yield();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);  // of one that waits for the mutex
    link->abandon_after_fork();
    const bool nothing =
        link->remote_address().empty() && link->path().port == 0 && link->packets() == 0;
    ::_exit(nothing ? 0 : 1);
  }
  forked = true;
  holder.join();
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(LinkPair, APutWakesWhatSleepsOnATripwireThere) {
  const RdmaCookie cookie = exported();
  const auto handle = import(cookie);
  auto tripwire =
      server.nic().add_tripwire({.aperture = cookie.aperture, .offset = 64, .length = 8});
  ASSERT_TRUE(tripwire.ok());
  server.nic().arm_for_packets(*tripwire);
  const auto& signal = server.nic().image().signals->tripwires[*tripwire];
  const auto sent = bytes(8, 8);
  ASSERT_TRUE(link->put(handle, 0, sent, nic::PutOrder::kAny).ok());
  settle(handle);
  EXPECT_EQ(signal.fired.news.load(), 0u);
  ASSERT_TRUE(link->put(handle, 64, sent, nic::PutOrder::kAny).ok());
  settle(handle);
  EXPECT_EQ(signal.fired.news.load(), 1u);
  EXPECT_EQ(link->after_access(handle, 0, 1, nic::AccessKind::kWrite).error().err, EOPNOTSUPP);
}

// A peer that speaks the link's messages itself, and gives no credit for any that come back.
struct Stranger final : EndpointSink, MessageSink {
  int on_request(const SocketAddress&, std::span<const std::byte>, std::span<std::byte>,
                 std::size_t*) override {
    return ECONNREFUSED;
  }
  void on_established(Connection& c, std::span<const std::byte>) override {
    connection = &c;
    c.user = this;
  }
  bool on_fragment(std::uint8_t, std::span<const std::byte>, std::uint32_t, std::uint32_t,
                   std::span<const std::byte>) override {
    return true;
  }
  void on_message(std::uint8_t, std::span<const std::byte>, std::uint32_t,
                  std::span<const std::byte>) override {}
  void on_sent(std::uint8_t, std::uint64_t) override {}
  void on_down(Connection&, int why) override {
    connection = nullptr;
    err = why;
  }
  static Options options() {
    Options o;
    o.credit[kUrgent] = 0;
    return o;
  }
  Connection* connection = nullptr;
  int err = -1;
};

TEST(HostileLink, ThatAsksOnAndTakesNoAnswersFillsNoMemory) {
  NodeHost server{1001};
  const auto io = std::move(*open_packets(*parse_address("127.0.0.1:0"), Packets::kSockets));
  Stranger stranger;
  Endpoint endpoint(
      Stranger::options(), stranger, [] { return random_u64(); }, nullptr);
  PacketPump pump(endpoint, *io);
  Greeting says;
  says.node = 7;
  std::array<std::byte, kMostGreeting> greeting;
  const std::size_t said = write_greeting(greeting, says);
  ASSERT_NE(endpoint.connect(server.address(), std::span(greeting).first(said), monotonic_ns()),
            nullptr);
  LinkHeader question;
  question.type = LinkMessageType::kImport;
  question.request = 1;
  std::array<std::byte, kMostHeader> header;
  const std::size_t n = write_link_header(header, question);
  const RdmaCookie nobodys{};
  const std::uint64_t end = monotonic_ns() + 20'000'000'000u;
  while (stranger.err < 0 && monotonic_ns() < end) {
    Connection* c = stranger.connection;
    while (c != nullptr && c->queued_bytes(kUrgent) < 64 * 1024) {
      ASSERT_EQ(endpoint.send(*c, kUrgent,
                              {std::span(header).first(n), std::as_bytes(std::span(&nobodys, 1))}),
                0);
    }
    (void)pump.run(monotonic_ns());
  }
  EXPECT_EQ(stranger.err, ECONNRESET);
  EXPECT_TRUE(server.is_told([](const NodeHost::Told& told) { return told.misbehaved == 1; }));
}

}  // namespace
}  // namespace clan::udp
