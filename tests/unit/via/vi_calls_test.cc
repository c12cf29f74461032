#include "ends.h"

namespace clan::via::testing {
namespace {

VIP_RETURN create(Host& host, VIP_VI_ATTRIBUTES attributes, VIP_VI_HANDLE* vi) {
  return VipCreateVi(host.nic, &attributes, nullptr, nullptr, vi);
}

TEST(ViaVi, AttributesThatNoViCanHaveAreNamed) {
  Host host;
  VIP_VI_HANDLE vi = nullptr;
  const auto good = attributes_of(host.tag, VIP_SERVICE_RELIABLE_DELIVERY);
  auto bad = good;
  bad.ReliabilityLevel = 3;
  EXPECT_EQ(create(host, bad, &vi), VIP_INVALID_RELIABILITY_LEVEL);
  bad = good;
  bad.MaxTransferSize = 1ul << 40;
  EXPECT_EQ(create(host, bad, &vi), VIP_INVALID_MTU);
  bad = good;
  bad.Ptag = host.nic;
  EXPECT_EQ(create(host, bad, &vi), VIP_INVALID_PTAG);
  bad = good;
  bad.ReliabilityLevel = VIP_SERVICE_UNRELIABLE;
  EXPECT_EQ(create(host, bad, &vi), VIP_INVALID_RDMAREAD);
  EXPECT_EQ(VipCreateVi(host.nic, nullptr, nullptr, nullptr, &vi), VIP_INVALID_PARAMETER);
  bad = good;
  EXPECT_EQ(VipCreateVi(host.nic, &bad, host.nic, nullptr, &vi), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipCreateVi(host.nic, &bad, nullptr, nullptr, nullptr), VIP_INVALID_PARAMETER);
}

TEST(ViaVi, AttributesOfAnIdleOneCanBeChanged) {
  Pair pair;
  auto wanted = attributes_of(nullptr, VIP_SERVICE_RELIABLE_RECEPTION);
  ASSERT_EQ(VipSetViAttributes(pair.a.vi, &wanted), VIP_SUCCESS);
  ASSERT_EQ(VipSetViAttributes(pair.b.vi, &wanted), VIP_SUCCESS);
  pair.connect();
  VIP_VI_STATE state;
  VIP_VI_ATTRIBUTES attributes;
  VIP_BOOLEAN sends = 0, receives = 0;
  ASSERT_EQ(VipQueryVi(pair.a.vi, &state, &attributes, &sends, &receives), VIP_SUCCESS);
  EXPECT_EQ(state, VIP_STATE_CONNECTED);
  EXPECT_EQ(attributes.ReliabilityLevel, VIP_SERVICE_RELIABLE_RECEPTION);
  EXPECT_TRUE(sends && receives);
  EXPECT_EQ(VipSetViAttributes(pair.a.vi, &wanted), VIP_INVALID_STATE);
  EXPECT_EQ(VipSetViAttributes(pair.a.vi, nullptr), VIP_INVALID_PARAMETER);
  VIP_CLAN_VI_OPTIONS options{};
  EXPECT_EQ(VipClanSetVi(pair.a.vi, &options), VIP_INVALID_STATE);
}

TEST(ViaVi, IsNotDestroyedWhileItIsInUse) {
  Pair pair;
  EXPECT_EQ(VipDestroyVi(nullptr), VIP_INVALID_PARAMETER);
  ASSERT_EQ(pair.a.post_recv(pair.a.host.make(0, 0, 8)), VIP_SUCCESS);
  EXPECT_EQ(VipDestroyVi(pair.a.vi), VIP_INVALID_STATE) << "a descriptor is posted";
  pair.connect();
  EXPECT_EQ(VipDestroyVi(pair.b.vi), VIP_INVALID_STATE) << "it is connected";
  EXPECT_EQ(VipDisconnect(pair.b.vi), VIP_SUCCESS);
  EXPECT_EQ(VipDisconnect(pair.b.vi), VIP_INVALID_STATE) << "it is idle";
}

TEST(ViaVi, KeepsItsUsersData) {
  Pair pair;
  int mine = 0;
  VIP_PVOID data = nullptr;
  ASSERT_EQ(VipSetUserData(pair.a.vi, &mine), VIP_SUCCESS);
  ASSERT_EQ(VipGetUserData(pair.a.vi, &data), VIP_SUCCESS);
  EXPECT_EQ(data, &mine);
  EXPECT_EQ(VipGetUserData(pair.a.vi, nullptr), VIP_INVALID_PARAMETER);
}

TEST(ViaVi, TakesNoMoreDescriptorsThanItsNicSays) {
  Pair pair;
  VIP_NIC_ATTRIBUTES nic;
  ASSERT_EQ(VipQueryNic(pair.a.host.nic, &nic), VIP_SUCCESS);
  VIP_DESCRIPTOR* d = pair.a.host.make(0, 0, 8);
  for (VIP_ULONG i = 0; i < nic.MaxDescriptorsPerQueue; ++i)
    ASSERT_EQ(pair.a.post_recv(d), VIP_SUCCESS);
  EXPECT_EQ(pair.a.post_recv(d), VIP_ERROR_RESOURCE);
  pair.connect();  // all of them are reported
  for (VIP_ULONG i = 0; i < nic.MaxDescriptorsPerQueue; ++i) {
    ASSERT_EQ(pair.b.post_send(pair.b.host.make(0, 0, 8)), VIP_SUCCESS);
    ASSERT_EQ(pair.b.sent(), VIP_STATUS_DONE);
    ASSERT_EQ(pair.a.received(d), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
  }
}

TEST(ViaVi, DescriptorsOfOtherStatesAndPlacesAreRefused) {
  Pair pair;
  VIP_DESCRIPTOR* d = pair.a.host.make(0, 0, 8);
  EXPECT_EQ(pair.a.post_send(d), VIP_INVALID_STATE) << "an idle VI sends nothing";
  EXPECT_EQ(VipPostRecv(pair.a.vi, nullptr, pair.a.host.handle), VIP_INVALID_PARAMETER);
  auto* askew = reinterpret_cast<VIP_DESCRIPTOR*>(reinterpret_cast<char*>(d) + 8);
  EXPECT_EQ(pair.a.post_recv(askew), VIP_INVALID_PARAMETER);
  EXPECT_FALSE(pair.a.errors.has(VIP_ERROR_POST_DESC));
  EXPECT_EQ(VipPostRecv(pair.a.vi, d, 0), VIP_INVALID_PARAMETER);
  EXPECT_TRUE(pair.a.errors.has(VIP_ERROR_POST_DESC)) << "it is in no registered memory";
  VIP_DESCRIPTOR* done = d;
  EXPECT_EQ(VipSendDone(pair.a.vi, &done), VIP_DESCRIPTOR_ERROR) << "nothing is posted";
  EXPECT_EQ(done, nullptr);
  EXPECT_EQ(VipRecvDone(pair.a.vi, nullptr), VIP_INVALID_PARAMETER);
  ASSERT_EQ(pair.a.post_recv(d), VIP_SUCCESS);
  EXPECT_EQ(VipRecvDone(pair.a.vi, &done), VIP_NOT_DONE);
  EXPECT_EQ(VipRecvWait(pair.a.vi, 1, &done), VIP_TIMEOUT);
  pair.connect();
}

}  // namespace
}  // namespace clan::via::testing
