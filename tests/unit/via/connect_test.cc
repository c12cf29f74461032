#include <clan/stream.h>

#include "address.h"
#include "ends.h"
#include "provider.h"

namespace clan::via::testing {
namespace {

TEST(ViaConnect, ARequestThatNobodyWaitsForHasNoMatch) {
  Pair pair;
  Net local(pair.a.host.nic, "a"), remote(pair.a.host.nic, unique_name());
  EXPECT_EQ(VipConnectRequest(pair.a.vi, local, remote, kSoon, nullptr), VIP_NO_MATCH);
  EXPECT_EQ(pair.a.state(), VIP_STATE_IDLE);
  EXPECT_EQ(VipConnectRequest(pair.a.vi, local, remote, 0, nullptr), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipConnectRequest(pair.a.vi, local, nullptr, 1, nullptr), VIP_INVALID_PARAMETER);
}

TEST(ViaConnect, AWaitForNobodyTimesOut) {
  Pair pair;
  Net local(pair.a.host.nic, unique_name()), elsewhere = local;
  VIP_CONN_HANDLE connection = nullptr;
  EXPECT_EQ(VipConnectWait(pair.a.host.nic, local, 1, nullptr, nullptr, &connection), VIP_TIMEOUT);
  elsewhere.bytes[4 + 12] = 192;  // 192.0.2.1, which is nobody's
  elsewhere.bytes[4 + 13] = elsewhere.bytes[4 + 15] = 0;
  elsewhere.bytes[4 + 14] = 2;
  EXPECT_EQ(VipConnectWait(pair.a.host.nic, elsewhere, 1, nullptr, nullptr, &connection),
            VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipConnectRequest(pair.a.vi, local, elsewhere, 100, nullptr), VIP_NOT_REACHABLE);
  EXPECT_EQ(VipConnectPeerRequest(pair.a.vi, local, elsewhere, 100), VIP_NOT_REACHABLE);
}

struct Waiting {
  explicit Waiting(End& end, const std::string& name) : local(end.host.nic, name), remote(local) {
    thread = std::thread([this, &end] {
      VIP_RETURN rc = VIP_ERROR_RESOURCE;
      while (rc == VIP_ERROR_RESOURCE)
        rc = VipConnectWait(end.host.nic, local, kSoon, remote, &theirs, &connection);
      EXPECT_EQ(rc, VIP_SUCCESS);
      there = true;
    });
  }
  Net local, remote;
  VIP_VI_ATTRIBUTES theirs{};
  VIP_CONN_HANDLE connection = nullptr;
  std::atomic<bool> there{false};
  std::thread thread;
};

TEST(ViaConnect, TheServerSeesWhoAsksAndMayReject) {
  Pair pair;
  const std::string name = unique_name();
  Waiting waiting(pair.a, name);
  std::thread client([&] { EXPECT_EQ(request(pair.b.host.nic, pair.b.vi, name), VIP_REJECT); });
  waiting.thread.join();
  EXPECT_EQ(std::memcmp(waiting.remote.bytes, Net(pair.b.host.nic, name + "c").bytes, 64), 0);
  EXPECT_EQ(waiting.theirs.MaxTransferSize, 1u << 24);
  EXPECT_EQ(VipConnectReject(waiting.connection), VIP_SUCCESS);
  EXPECT_EQ(VipConnectReject(nullptr), VIP_INVALID_PARAMETER);
  client.join();
  EXPECT_EQ(pair.b.state(), VIP_STATE_IDLE);
}

// Their records are longer than the ring: those that have no room are reported later.
TEST(ViaConnect, MoreBuffersThanTheRingHoldsAreNoHindrance) {
  Pair pair;
  constexpr int kDescriptors = 1024, kPieces = 7;
  const auto descriptors = std::make_unique<unsigned char[]>(kDescriptors * kDescriptorBytes + 64);
  auto* const first = reinterpret_cast<unsigned char*>(
      (reinterpret_cast<std::uintptr_t>(descriptors.get()) + 63) / 64 * 64);
  VIP_MEM_ATTRIBUTES attributes{};
  VIP_MEM_HANDLE own = 0;
  std::vector<VIP_MEM_HANDLE> handles;
  Host& host = pair.a.host;
  ASSERT_EQ(VipRegisterMem(host.nic, first, kDescriptors * kDescriptorBytes, &attributes, &own),
            VIP_SUCCESS);
  for (int i = 0; i < kDescriptors; ++i) {
    auto* const d = reinterpret_cast<VIP_DESCRIPTOR*>(first + i * kDescriptorBytes);
    std::memset(static_cast<void*>(d), 0, kDescriptorBytes);
    for (int k = 0; k < 16; ++k) {
      host.add(d, static_cast<std::size_t>(i), 1);
      if (k >= kPieces) continue;
      ASSERT_EQ(VipRegisterMem(host.nic, host.data, 4096, &attributes, &handles.emplace_back()),
                VIP_SUCCESS);
      host.segment(d, k).Local.Handle = handles.back();
    }
    ASSERT_EQ(VipPostRecv(pair.a.vi, d, own), VIP_SUCCESS);
  }
  {
    Net local(host.nic, "c"), remote(host.nic, unique_name());
    NetAddress address;
    ASSERT_TRUE(read_address(remote, &address));
    const auto reads_nothing = Listener::create(provider()->context, service_of(address));
    EXPECT_EQ(VipConnectRequest(pair.a.vi, local, remote, 1, nullptr), VIP_TIMEOUT);
  }
  connect(pair.b, pair.a);
  for (int i = 0; i < kDescriptors; ++i) {
    ASSERT_EQ(pair.b.post_send(pair.b.host.make(0, 0, 16)), VIP_SUCCESS);
    ASSERT_EQ(pair.b.sent(), VIP_STATUS_DONE | VIP_STATUS_OP_SEND);
    ASSERT_EQ(pair.a.received(), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE) << i;
  }
  for (const VIP_MEM_HANDLE handle : handles)
    EXPECT_EQ(VipDeregisterMem(host.nic, host.data, handle), VIP_SUCCESS);
  EXPECT_EQ(VipDeregisterMem(host.nic, first, own), VIP_SUCCESS);
}

TEST(ViaConnect, OneThatIsNotAnsweredInTimeTimesOut) {
  Pair pair;
  const std::string name = unique_name();
  Waiting waiting(pair.a, name);
  Net local(pair.b.host.nic, "b"), remote(pair.b.host.nic, name);
  VIP_RETURN rc = VIP_NO_MATCH;
  while (rc == VIP_NO_MATCH) rc = VipConnectRequest(pair.b.vi, local, remote, 50, nullptr);
  EXPECT_EQ(rc, VIP_TIMEOUT);
  waiting.thread.join();
  EXPECT_EQ(VipConnectAccept(waiting.connection, pair.a.vi), VIP_TIMEOUT);
  EXPECT_EQ(pair.a.state(), VIP_STATE_IDLE);
}

TEST(ViaConnect, AMismatchIsTheServersToMend) {
  Pair pair;
  auto theirs = attributes_of(pair.b.host.tag, VIP_SERVICE_RELIABLE_DELIVERY);
  int quality = 0;
  theirs.QoS = &quality;
  ASSERT_EQ(VipSetViAttributes(pair.b.vi, &theirs), VIP_SUCCESS);
  const std::string name = unique_name();
  Waiting waiting(pair.a, name);
  std::thread client([&] { EXPECT_EQ(request(pair.b.host.nic, pair.b.vi, name), VIP_SUCCESS); });
  waiting.thread.join();
  auto ours = attributes_of(pair.a.host.tag, VIP_SERVICE_UNRELIABLE);
  ASSERT_EQ(VipSetViAttributes(pair.a.vi, &ours), VIP_SUCCESS);
  EXPECT_EQ(VipConnectAccept(waiting.connection, pair.a.vi), VIP_INVALID_RELIABILITY_LEVEL);
  ours = attributes_of(pair.a.host.tag, VIP_SERVICE_RELIABLE_DELIVERY);
  ours.MaxTransferSize = 99;
  ASSERT_EQ(VipSetViAttributes(pair.a.vi, &ours), VIP_SUCCESS);
  EXPECT_EQ(VipConnectAccept(waiting.connection, pair.a.vi), VIP_INVALID_MTU);
  ours.MaxTransferSize = theirs.MaxTransferSize;
  ASSERT_EQ(VipSetViAttributes(pair.a.vi, &ours), VIP_SUCCESS);
  EXPECT_EQ(VipConnectAccept(waiting.connection, pair.a.vi), VIP_INVALID_QOS);
  ours.QoS = &quality;
  ASSERT_EQ(VipSetViAttributes(pair.a.vi, &ours), VIP_SUCCESS);
  EXPECT_EQ(VipConnectAccept(waiting.connection, pair.a.vi), VIP_SUCCESS);
  client.join();
  EXPECT_EQ(pair.b.state(), VIP_STATE_CONNECTED);
}

TEST(ViaConnect, OnlyOneWaitsAtAnAddress) {
  Pair pair;
  const std::string name = unique_name();
  Waiting waiting(pair.a, name);
  Net local(pair.a.host.nic, name);
  VIP_CONN_HANDLE connection = nullptr;
  VIP_RETURN rc = VIP_TIMEOUT;
  while (rc == VIP_TIMEOUT && !waiting.there)
    rc = VipConnectWait(pair.a.host.nic, local, 1, nullptr, nullptr, &connection);
  EXPECT_EQ(rc, VIP_ERROR_RESOURCE);
  std::thread client([&] { (void)request(pair.b.host.nic, pair.b.vi, name); });
  waiting.thread.join();
  EXPECT_EQ(VipConnectAccept(waiting.connection, pair.a.vi), VIP_SUCCESS);
  client.join();
  EXPECT_EQ(VipConnectRequest(pair.b.vi, local, local, 1, nullptr), VIP_INVALID_STATE);
}

TEST(ViaConnect, AViMayBeConnectedAgain) {
  Pair pair;
  for (int round = 0; round < 3; ++round) {
    VIP_DESCRIPTOR* r = pair.a.host.make(0, 0, 8);
    ASSERT_EQ(pair.a.post_recv(r), VIP_SUCCESS);
    pair.connect();
    ASSERT_EQ(pair.b.post_send(pair.b.host.make(0, 0, 8)), VIP_SUCCESS);
    EXPECT_EQ(pair.b.sent(), VIP_STATUS_DONE);
    EXPECT_EQ(pair.a.received(r), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
    EXPECT_EQ(VipDisconnect(pair.b.vi), VIP_SUCCESS);
    while (pair.a.state() == VIP_STATE_CONNECTED) std::this_thread::yield();
    EXPECT_EQ(pair.a.state(), VIP_STATE_ERROR);
    EXPECT_TRUE(pair.a.errors.has(VIP_ERROR_CONN_LOST));
    EXPECT_EQ(VipDisconnect(pair.a.vi), VIP_SUCCESS);
  }
}

TEST(ViaPeers, MeetWhicheverAsksFirst) {
  for (const bool first : {true, false}) {
    Pair pair;
    const std::string name = unique_name();
    Net a(pair.a.host.nic, name + "a"), b(pair.b.host.nic, name + "b");
    ASSERT_EQ(pair.a.post_recv(pair.a.host.make(0, 0, 8)), VIP_SUCCESS);
    if (first) {
      ASSERT_EQ(VipConnectPeerRequest(pair.a.vi, a, b, VIP_INFINITE), VIP_SUCCESS);
      ASSERT_EQ(VipConnectPeerDone(pair.a.vi, nullptr), VIP_NOT_DONE);
      EXPECT_EQ(pair.a.state(), VIP_STATE_CONNECT_PENDING);
    }
    ASSERT_EQ(VipConnectPeerRequest(pair.b.vi, b, a, VIP_INFINITE), VIP_SUCCESS);
    VIP_VI_ATTRIBUTES theirs{};
    std::thread other([&] {
      const VIP_RETURN rc = VipConnectPeerRequest(pair.a.vi, a, b, kSoon);
      EXPECT_EQ(rc, first ? VIP_INVALID_STATE : VIP_SUCCESS);
      EXPECT_EQ(VipConnectPeerWait(pair.a.vi, &theirs), VIP_SUCCESS);
    });
    EXPECT_EQ(VipConnectPeerWait(pair.b.vi, nullptr), VIP_SUCCESS);
    other.join();
    EXPECT_EQ(theirs.MaxTransferSize, 1u << 24);
    ASSERT_EQ(pair.b.post_send(pair.b.host.make(0, 0, 8)), VIP_SUCCESS);
    EXPECT_EQ(pair.b.sent(), VIP_STATUS_DONE);
    EXPECT_EQ(pair.a.received(), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
  }
}

TEST(ViaPeers, OfTheSameAddressMeet) {
  Pair pair;
  Net same(pair.a.host.nic, unique_name());
  ASSERT_EQ(VipConnectPeerRequest(pair.a.vi, same, same, kSoon), VIP_SUCCESS);
  ASSERT_EQ(VipConnectPeerRequest(pair.b.vi, same, same, kSoon), VIP_SUCCESS);
  std::thread other([&] { EXPECT_EQ(VipConnectPeerWait(pair.a.vi, nullptr), VIP_SUCCESS); });
  EXPECT_EQ(VipConnectPeerWait(pair.b.vi, nullptr), VIP_SUCCESS);
  other.join();
}

TEST(ViaPeers, AreToldOfAMismatchAndOfTime) {
  Pair pair;
  auto other = attributes_of(pair.b.host.tag, VIP_SERVICE_RELIABLE_RECEPTION);
  ASSERT_EQ(VipSetViAttributes(pair.b.vi, &other), VIP_SUCCESS);
  const std::string name = unique_name();
  Net a(pair.a.host.nic, name + "a"), b(pair.b.host.nic, name + "b");
  EXPECT_EQ(VipConnectPeerDone(pair.a.vi, nullptr), VIP_INVALID_STATE);
  EXPECT_EQ(VipConnectPeerRequest(pair.a.vi, a, b, 0), VIP_INVALID_PARAMETER);
  ASSERT_EQ(VipConnectPeerRequest(pair.a.vi, a, b, 1), VIP_SUCCESS);
  EXPECT_EQ(VipConnectPeerWait(pair.a.vi, nullptr), VIP_TIMEOUT);
  ASSERT_EQ(VipConnectPeerRequest(pair.a.vi, a, b, kSoon), VIP_SUCCESS);
  ASSERT_EQ(VipConnectPeerRequest(pair.b.vi, b, a, kSoon), VIP_SUCCESS);
  std::thread thread(
      [&] { EXPECT_EQ(VipConnectPeerWait(pair.a.vi, nullptr), VIP_INVALID_RELIABILITY_LEVEL); });
  EXPECT_EQ(VipConnectPeerWait(pair.b.vi, nullptr), VIP_INVALID_RELIABILITY_LEVEL);
  thread.join();
  ASSERT_EQ(VipConnectPeerRequest(pair.a.vi, a, b, kSoon), VIP_SUCCESS);
  EXPECT_EQ(VipDisconnect(pair.a.vi), VIP_SUCCESS) << "it asks no more";
}

}  // namespace
}  // namespace clan::via::testing
