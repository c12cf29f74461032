#include "ends.h"

namespace clan::via::testing {
namespace {

constexpr std::uint32_t kRdmaWrite = VIP_STATUS_DONE | VIP_STATUS_OP_RDMA_WRITE;
constexpr std::uint32_t kRdmaRead = VIP_STATUS_DONE | VIP_STATUS_OP_RDMA_READ;

TEST(ViaRdma, AWriteAndAReadMoveBytesWithoutTheOtherEnd) {
  Pair pair;
  pair.connect();
  for (const std::uint32_t bytes : {0u, 1u, 100u, 65'536u, 500'000u}) {
    std::memset(pair.b.host.data, static_cast<int>(bytes % 251) + 1, bytes);
    VIP_DESCRIPTOR* w =
        pair.b.host.make_rdma(0, 0, bytes, VIP_CONTROL_OP_RDMAWRITE, pair.a.host, 8);
    ASSERT_EQ(pair.b.post_send(w), VIP_SUCCESS);
    ASSERT_EQ(pair.b.sent(w), kRdmaWrite);
    EXPECT_EQ(w->CS.Length, bytes);
    EXPECT_EQ(std::memcmp(pair.a.host.data + 8, pair.b.host.data, bytes), 0);
    VIP_DESCRIPTOR* r =
        pair.b.host.make_rdma(1, 500'000, bytes, VIP_CONTROL_OP_RDMAREAD, pair.a.host, 8);
    ASSERT_EQ(pair.b.post_send(r), VIP_SUCCESS);
    ASSERT_EQ(pair.b.sent(r), kRdmaRead);
    EXPECT_EQ(std::memcmp(pair.b.host.data + 500'000, pair.b.host.data, bytes), 0);
  }
}

TEST(ViaRdma, AWriteWithImmediateDataTakesAReceiveDescriptor) {
  Pair pair;
  VIP_DESCRIPTOR* r = pair.a.host.make(0, 900'000, 4);
  ASSERT_EQ(pair.a.post_recv(r), VIP_SUCCESS);
  pair.connect();
  std::memset(pair.b.host.data, 9, 300'000);
  VIP_DESCRIPTOR* w = pair.b.host.make_rdma(
      0, 0, 300'000, VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE, pair.a.host, 0);
  w->CS.ImmediateData = 77;
  ASSERT_EQ(pair.b.post_send(w), VIP_SUCCESS);
  EXPECT_EQ(pair.a.received(r),
            VIP_STATUS_DONE | VIP_STATUS_OP_REMOTE_RDMA_WRITE | VIP_STATUS_IMMEDIATE);
  EXPECT_EQ(r->CS.ImmediateData, 77u);
  EXPECT_EQ(r->CS.Length, 300'000u);
  EXPECT_EQ(pair.a.host.data[299'999], 9);
  EXPECT_EQ(pair.b.sent(w), kRdmaWrite);
}

// What a read brings is what the send behind it carries.
TEST(ViaRdma, AFencedSendBeginsWhenTheReadBeforeItIsOver) {
  constexpr std::uint32_t kBytes = 500'000;
  Pair pair;
  pair.connect();
  for (int round = 1; round < 20; ++round) {
    std::memset(pair.a.host.data, round, kBytes);
    ASSERT_EQ(pair.a.post_recv(pair.a.host.make(0, kBytes, kBytes)), VIP_SUCCESS);
    VIP_DESCRIPTOR* r =
        pair.b.host.make_rdma(0, 0, kBytes, VIP_CONTROL_OP_RDMAREAD, pair.a.host, 0);
    VIP_DESCRIPTOR* s = pair.b.host.make(1, 0, kBytes, VIP_CONTROL_QFENCE);
    ASSERT_EQ(pair.b.post_send(r), VIP_SUCCESS);
    ASSERT_EQ(pair.b.post_send(s), VIP_SUCCESS);
    ASSERT_EQ(pair.b.sent(r), kRdmaRead);
    ASSERT_EQ(pair.b.sent(s), VIP_STATUS_DONE);
    ASSERT_EQ(pair.a.received(), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
    ASSERT_EQ(std::memcmp(pair.a.host.data, pair.a.host.data + kBytes, kBytes), 0);
  }
}

TEST(ViaRdma, AWriteWithImmediateDataAndNoDescriptorIsAborted) {
  Pair pair;
  pair.connect();
  VIP_DESCRIPTOR* w = pair.b.host.make_rdma(
      0, 0, 8, VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE, pair.a.host, 0);
  ASSERT_EQ(pair.b.post_send(w), VIP_SUCCESS);
  EXPECT_EQ(pair.b.sent(w), kRdmaWrite | VIP_STATUS_TRANSPORT_ERROR);
  while (pair.a.state() == VIP_STATE_CONNECTED) std::this_thread::yield();
  EXPECT_TRUE(pair.a.errors.has(VIP_ERROR_RDMAW_ABORT));
}

void expect_protected(Pair& pair, VIP_DESCRIPTOR* d, VIP_ERROR_CODE code) {
  ASSERT_EQ(pair.b.post_send(d), VIP_SUCCESS);
  EXPECT_NE(pair.b.sent(d) & VIP_STATUS_RDMA_PROT_ERROR, 0u);
  EXPECT_TRUE(pair.b.errors.has(code));
  while (pair.a.state() == VIP_STATE_CONNECTED) std::this_thread::yield();
  EXPECT_TRUE(pair.a.errors.has(code));
}

TEST(ViaRdma, RightsAreThoseOfTheMemory) {
  for (const bool writes : {true, false}) {
    Pair pair;
    pair.connect();
    VIP_MEM_ATTRIBUTES attributes{pair.a.host.tag, !writes, writes};
    const std::uint16_t op = writes ? VIP_CONTROL_OP_RDMAWRITE : VIP_CONTROL_OP_RDMAREAD;
    VIP_DESCRIPTOR* d = pair.b.host.make_rdma(0, 0, 8, op, pair.a.host, 0);
    ASSERT_EQ(pair.b.post_send(d), VIP_SUCCESS);
    EXPECT_EQ(pair.b.sent(d) & VIP_STATUS_ERROR_MASK, 0u) << "it may, at first";
    ASSERT_EQ(
        VipSetMemAttributes(pair.a.host.nic, pair.a.host.memory, pair.a.host.handle, &attributes),
        VIP_SUCCESS);
    expect_protected(pair, d, writes ? VIP_ERROR_RDMAW_PROT : VIP_ERROR_RDMAR_PROT);
  }
}

TEST(ViaRdma, RightsAreThoseOfTheVi) {
  for (const bool writes : {true, false}) {
    Pair pair;
    auto attributes = attributes_of(pair.a.host.tag, VIP_SERVICE_RELIABLE_DELIVERY);
    attributes.EnableRdmaWrite = !writes;
    attributes.EnableRdmaRead = writes;
    ASSERT_EQ(VipSetViAttributes(pair.a.vi, &attributes), VIP_SUCCESS);
    pair.connect();
    const std::uint16_t op = writes ? VIP_CONTROL_OP_RDMAWRITE : VIP_CONTROL_OP_RDMAREAD;
    expect_protected(pair, pair.b.host.make_rdma(0, 0, 8, op, pair.a.host, 0),
                     writes ? VIP_ERROR_RDMAW_PROT : VIP_ERROR_RDMAR_PROT);
  }
}

TEST(ViaRdma, AddressesAreThoseOfTheRegistration) {
  struct Case {
    std::ptrdiff_t offset;
    std::uint32_t bytes;
  };
  // Whole pages are checked.
  for (const Case c : {Case{(1 << 20) + 4096, 8}, Case{-64 * 320 - 4097, 8},
                       Case{(1 << 20) - 8, 8192}, Case{1 << 30, 0}}) {
    Pair pair;
    pair.connect();
    expect_protected(pair,
                     pair.b.host.make_rdma(0, 0, c.bytes, VIP_CONTROL_OP_RDMAWRITE, pair.a.host,
                                           static_cast<std::size_t>(c.offset)),
                     VIP_ERROR_RDMAW_PROT);
  }
  Pair pair;
  pair.connect();
  pair.a.host.deregister();
  expect_protected(pair, pair.b.host.make_rdma(0, 0, 8, VIP_CONTROL_OP_RDMAWRITE, pair.a.host, 0),
                   VIP_ERROR_RDMAW_PROT);
}

TEST(ViaRdma, MemoryThatIsNoMoreIsADataError) {
  Pair pair;
  VIP_MEM_ATTRIBUTES attributes{nullptr, 1, 0};
  void* gone = ::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  VIP_MEM_HANDLE handle = 0;
  ASSERT_EQ(VipRegisterMem(pair.a.host.nic, gone, 1 << 20, &attributes, &handle), VIP_SUCCESS);
  pair.connect();
  ::munmap(gone, 1 << 20);
  VIP_DESCRIPTOR* d = pair.b.host.make_rdma(0, 0, 8, VIP_CONTROL_OP_RDMAWRITE, pair.a.host, 0);
  pair.b.host.segment(d, 0).Remote.Data.Address = gone;
  pair.b.host.segment(d, 0).Remote.Handle = handle;
  ASSERT_EQ(pair.b.post_send(d), VIP_SUCCESS);
  EXPECT_NE(pair.b.sent(d) & VIP_STATUS_ERROR_MASK, 0u);
  EXPECT_TRUE(pair.b.errors.has(VIP_ERROR_RDMAW_DATA));
  while (pair.a.state() == VIP_STATE_CONNECTED) std::this_thread::yield();
  EXPECT_TRUE(pair.a.errors.has(VIP_ERROR_RDMAW_DATA));
  EXPECT_EQ(VipDeregisterMem(pair.a.host.nic, gone, handle), VIP_SUCCESS);
}

TEST(ViaRdma, ProtectionErrorsLeaveAnUnreliableViConnected) {
  Pair pair(VIP_SERVICE_UNRELIABLE);
  pair.connect();
  VIP_DESCRIPTOR* d =
      pair.b.host.make_rdma(0, 0, 8, VIP_CONTROL_OP_RDMAWRITE, pair.a.host, (1 << 20) + 4096);
  ASSERT_EQ(pair.b.post_send(d), VIP_SUCCESS);
  EXPECT_EQ(pair.b.sent(d), kRdmaWrite | VIP_STATUS_RDMA_PROT_ERROR);
  EXPECT_EQ(pair.b.state(), VIP_STATE_CONNECTED);
  EXPECT_EQ(pair.a.state(), VIP_STATE_CONNECTED);
}

TEST(ViaOptions, DeferredSendsWaitForABuffer) {
  Pair pair;
  VIP_CLAN_VI_OPTIONS options{};
  options.DeferSends = VIP_TRUE;
  ASSERT_EQ(VipClanSetVi(pair.b.vi, &options), VIP_SUCCESS);
  pair.connect();
  VIP_DESCRIPTOR* d = nullptr;
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(pair.b.post_send(pair.b.host.make(i, 0, i % 2 == 0 ? 8 : 20'000)), VIP_SUCCESS);
  }
  EXPECT_EQ(VipSendWait(pair.b.vi, 5, &d), VIP_TIMEOUT);
  for (int i = 0; i < 4; ++i) {
    VIP_DESCRIPTOR* r = pair.a.host.make(i, 0, 20'000);
    ASSERT_EQ(pair.a.post_recv(r), VIP_SUCCESS);
    // The sender is in no call: it goes all the same.
    EXPECT_EQ(pair.a.received(r), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(pair.b.sent(pair.b.host.descriptor(i)), VIP_STATUS_DONE);
  VIP_DESCRIPTOR* const s = pair.b.host.make(0, 0, 8);
  VIP_NIC_ATTRIBUTES nic;
  ASSERT_EQ(VipQueryNic(pair.b.host.nic, &nic), VIP_SUCCESS);
  for (VIP_ULONG i = 0; i < nic.MaxDescriptorsPerQueue; ++i)
    ASSERT_EQ(pair.b.post_send(s), VIP_SUCCESS);
  EXPECT_EQ(pair.b.post_send(s), VIP_ERROR_RESOURCE) << "the queue is full";
  ASSERT_EQ(VipDisconnect(pair.b.vi), VIP_SUCCESS);
  EXPECT_EQ(pair.b.sent(), VIP_STATUS_DONE | VIP_STATUS_DESC_FLUSHED_ERROR);
}

TEST(ViaOptions, ALongMessageGoesOnInTheNextDescriptors) {
  for (const std::uint32_t space : {100u, 10'000u}) {
    Pair pair;
    VIP_CLAN_VI_OPTIONS options{};
    options.SplitMessages = VIP_TRUE;
    ASSERT_EQ(VipClanSetVi(pair.a.vi, &options), VIP_SUCCESS);
    for (int i = 0; i < 4; ++i)
      ASSERT_EQ(pair.a.post_recv(pair.a.host.make(i, i * space, space)), VIP_SUCCESS);
    pair.connect();
    for (std::uint32_t i = 0; i < 4 * space; ++i) pair.b.host.data[i] = i % 251;
    VIP_DESCRIPTOR* s = pair.b.host.make(0, 0, 2 * space + 1, VIP_CONTROL_IMMEDIATE);
    s->CS.ImmediateData = 5;
    ASSERT_EQ(pair.b.post_send(s), VIP_SUCCESS);
    EXPECT_EQ(pair.b.sent(s), VIP_STATUS_DONE);
    for (int i = 0; i < 3; ++i) {
      VIP_DESCRIPTOR* r = pair.a.host.descriptor(i);
      EXPECT_EQ(pair.a.received(r),
                VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE | (i == 2 ? VIP_STATUS_IMMEDIATE : 0));
      EXPECT_EQ(r->CS.Length, i == 2 ? 1 : space);
      EXPECT_EQ(r->CS.Reserved, i == 2 ? 0u : 1u);
    }
    EXPECT_EQ(std::memcmp(pair.a.host.data, pair.b.host.data, 2 * space + 1), 0);
  }
}

TEST(ViaOptions, StrictProtectionLeavesEveryMessageWhole) {
  Pair pair;
  VIP_CLAN_VI_OPTIONS options{};
  options.StrictProtection = VIP_TRUE;
  options.CopyLimit = 16;
  ASSERT_EQ(VipClanSetVi(pair.a.vi, &options), VIP_SUCCESS);
  ASSERT_EQ(VipClanSetVi(pair.b.vi, &options), VIP_SUCCESS);
  pair.connect();
  for (int round = 0; round < 50; ++round) {
    VIP_DESCRIPTOR* r = pair.a.host.make(0, 0, 3000);
    pair.a.host.add(r, 5000, 3000);
    ASSERT_EQ(pair.a.post_recv(r), VIP_SUCCESS);
    std::memset(pair.b.host.data, round + 1, 6000);
    ASSERT_EQ(pair.b.post_send(pair.b.host.make(0, 0, 6000)), VIP_SUCCESS);
    EXPECT_EQ(pair.b.sent(), VIP_STATUS_DONE);
    ASSERT_EQ(pair.a.received(r), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
    ASSERT_EQ(std::memcmp(pair.a.host.data, pair.b.host.data, 3000), 0);
    ASSERT_EQ(std::memcmp(pair.a.host.data + 5000, pair.b.host.data, 3000), 0);
  }
  options.CopyLimit = 1 << 20;
  EXPECT_EQ(VipClanSetVi(pair.a.vi, &options), VIP_INVALID_PARAMETER);
}

}  // namespace
}  // namespace clan::via::testing
