#include <sys/wait.h>

#include <fstream>

#include "ends.h"

namespace clan::via::testing {
namespace {

TEST(ViaNic, AnyNameOpensAHandleOfItsOwn) {
  VIP_NIC_HANDLE a = nullptr, b = nullptr;
  ASSERT_EQ(VipOpenNic("VINIC", &a), VIP_SUCCESS);
  ASSERT_EQ(VipOpenNic("VINIC", &b), VIP_SUCCESS);
  EXPECT_NE(a, b);
  VIP_NIC_ATTRIBUTES attributes;
  ASSERT_EQ(VipQueryNic(a, &attributes), VIP_SUCCESS);
  EXPECT_STREQ(attributes.Name, "VINIC");
  EXPECT_EQ(attributes.ThreadSafe, VIP_TRUE);
  EXPECT_EQ(attributes.NicAddressLen, 16);
  EXPECT_EQ(attributes.ReliabilityLevelSupport, 7);
  EXPECT_EQ(VipCloseNic(a), VIP_SUCCESS);
  EXPECT_EQ(VipCloseNic(b), VIP_SUCCESS);
}

TEST(ViaNic, NullAndForeignHandlesAreInvalidParameters) {
  VIP_NIC_HANDLE nic = nullptr;
  EXPECT_EQ(VipOpenNic(nullptr, &nic), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipOpenNic("x", nullptr), VIP_INVALID_PARAMETER);
  Host host;
  VIP_NIC_ATTRIBUTES attributes;
  EXPECT_EQ(VipQueryNic(nullptr, &attributes), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipQueryNic(host.tag, &attributes), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipQueryNic(host.nic, nullptr), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipCloseNic(host.tag), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipErrorCallback(nullptr, nullptr, nullptr), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipCreatePtag(nullptr, nullptr), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipCreatePtag(host.nic, nullptr), VIP_INVALID_PARAMETER);
  VIP_CQ_HANDLE cq = nullptr;
  EXPECT_EQ(VipCreateCQ(nullptr, 1, &cq), VIP_INVALID_PARAMETER);
}

TEST(ViaNic, IsNotToBeHadWhereClanIsDisabled) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    VIP_NIC_HANDLE nic = nullptr;
    ::setenv("CLAN_DISABLE", "1", 1);
    ::_exit(VipOpenNic("x", &nic) == VIP_ERROR_RESOURCE ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

TEST(ViaNic, IsNotClosedWhileItHasObjects) {
  VIP_NIC_HANDLE nic = nullptr;
  ASSERT_EQ(VipOpenNic("x", &nic), VIP_SUCCESS);
  VIP_PROTECTION_HANDLE tag = nullptr;
  ASSERT_EQ(VipCreatePtag(nic, &tag), VIP_SUCCESS);
  EXPECT_EQ(VipCloseNic(nic), VIP_ERROR_RESOURCE);
  ASSERT_EQ(VipDestroyPtag(nic, tag), VIP_SUCCESS);
  EXPECT_EQ(VipCloseNic(nic), VIP_SUCCESS);
}

struct Closing {
  static void note(VIP_PVOID self, VIP_ERROR_DESCRIPTOR* error) {
    auto& closing = *static_cast<Closing*>(self);
    if (closing.closed.empty()) {
      EXPECT_EQ(VipDisconnect(error->ViHandle), VIP_SUCCESS);
      EXPECT_EQ(VipDestroyVi(error->ViHandle), VIP_SUCCESS);
      EXPECT_EQ(VipDestroyCQ(closing.cq), VIP_SUCCESS);
    }
    closing.closed.push_back(VipCloseNic(error->NicHandle));
  }
  VIP_CQ_HANDLE cq = nullptr;
  std::vector<VIP_RETURN> closed;
};

// The end of the connection, and a completion queue that is too small for what it flushes.
TEST(ViaNic, IsNotClosedWhileItsHandlerIsToGetAnotherError) {
  Closing closing;
  End client;
  client.create(VIP_SERVICE_RELIABLE_DELIVERY);
  Host memory;
  VIP_NIC_HANDLE nic = nullptr;
  VIP_VI_HANDLE vi = nullptr;
  ASSERT_EQ(VipOpenNic("nic0", &nic), VIP_SUCCESS);
  ASSERT_EQ(VipErrorCallback(nic, &closing, &Closing::note), VIP_SUCCESS);
  ASSERT_EQ(VipCreateCQ(nic, 1, &closing.cq), VIP_SUCCESS);
  VIP_VI_ATTRIBUTES attributes = attributes_of(memory.tag, VIP_SERVICE_RELIABLE_DELIVERY);
  ASSERT_EQ(VipCreateVi(nic, &attributes, nullptr, closing.cq, &vi), VIP_SUCCESS);
  for (int i = 0; i < 2; ++i)
    ASSERT_EQ(VipPostRecv(vi, memory.make(i, 0, 8), memory.handle), VIP_SUCCESS);
  const std::string name = unique_name();
  std::thread server([&] { EXPECT_EQ(serve(nic, vi, name), VIP_SUCCESS); });
  EXPECT_EQ(request(client.host.nic, client.vi, name), VIP_SUCCESS);
  server.join();
  ASSERT_EQ(VipDisconnect(client.vi), VIP_SUCCESS);
  VIP_DESCRIPTOR* d = nullptr;
  VIP_RETURN rc = VIP_NOT_DONE;
  while (rc == VIP_NOT_DONE) rc = VipRecvDone(vi, &d);
  EXPECT_EQ(rc, VIP_DESCRIPTOR_ERROR);
  EXPECT_EQ(closing.closed, (std::vector<VIP_RETURN>{VIP_ERROR_RESOURCE, VIP_SUCCESS}));
}

TEST(ViaNic, DiscoversItself) {
  Host host;
  unsigned char address[64];
  VIP_AUTODISCOVERY_LIST list{7, reinterpret_cast<VIP_NET_ADDRESS*>(address), 1};
  EXPECT_EQ(VipQuerySystemManagementInfo(host.nic, 99, &list), VIP_INVALID_PARAMETER);
  ASSERT_EQ(VipQuerySystemManagementInfo(host.nic, VIP_SMI_AUTODISCOVERY, &list), VIP_SUCCESS);
  EXPECT_EQ(list.NumberOfHops, 0u);
  EXPECT_EQ(list.NumAdAddrs, 1u);
  EXPECT_EQ(std::memcmp(address + 4, static_cast<Net&&>(Net(host.nic, "")).bytes + 4, 16), 0);
}

TEST(ViaMemory, AHandleIsNeverZeroNorThatOfAnEarlierRegistration) {
  Host host;
  VIP_MEM_ATTRIBUTES attributes{host.tag, 0, 0};
  VIP_MEM_HANDLE first = 0, second = 0;
  ASSERT_EQ(VipRegisterMem(host.nic, host.data, 100, &attributes, &first), VIP_SUCCESS);
  ASSERT_EQ(VipDeregisterMem(host.nic, host.data, first), VIP_SUCCESS);
  ASSERT_EQ(VipRegisterMem(host.nic, host.data, 100, &attributes, &second), VIP_SUCCESS);
  EXPECT_NE(first, 0u);
  EXPECT_NE(second, first);
  EXPECT_EQ(VipDeregisterMem(host.nic, host.data, first), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipDeregisterMem(host.nic, host.data + 1, second), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipDeregisterMem(host.nic, host.data, second), VIP_SUCCESS);
}

TEST(ViaMemory, AttributesAreKeptAndCanBeChanged) {
  Host host;
  VIP_MEM_ATTRIBUTES attributes{};
  ASSERT_EQ(VipQueryMem(host.nic, host.memory, host.handle, &attributes), VIP_SUCCESS);
  EXPECT_EQ(attributes.Ptag, host.tag);
  EXPECT_EQ(attributes.EnableRdmaWrite, VIP_TRUE);
  attributes.EnableRdmaWrite = VIP_FALSE;
  ASSERT_EQ(VipSetMemAttributes(host.nic, host.memory, host.handle, &attributes), VIP_SUCCESS);
  ASSERT_EQ(VipQueryMem(host.nic, host.memory, host.handle, &attributes), VIP_SUCCESS);
  EXPECT_EQ(attributes.EnableRdmaWrite, VIP_FALSE);
  EXPECT_EQ(attributes.EnableRdmaRead, VIP_TRUE);
  EXPECT_EQ(VipQueryMem(host.nic, host.memory, host.handle, nullptr), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipQueryMem(host.nic, host.memory, 0, &attributes), VIP_INVALID_PARAMETER);
}

TEST(ViaMemory, BadParametersAreRefused) {
  Host host;
  VIP_MEM_HANDLE handle = 0;
  VIP_MEM_ATTRIBUTES attributes{host.tag, 0, 0}, bad{host.nic, 0, 0};
  EXPECT_EQ(VipRegisterMem(host.nic, nullptr, 1, &attributes, &handle), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipRegisterMem(host.nic, host.data, 0, &attributes, &handle), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipRegisterMem(host.nic, host.data, 1, nullptr, &handle), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipRegisterMem(host.nic, host.data, 1, &attributes, nullptr), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipRegisterMem(host.nic, host.data, 1, &bad, &handle), VIP_INVALID_PTAG);
  EXPECT_EQ(VipRegisterMem(host.nic, host.data, 1ul << 60, &attributes, &handle),
            VIP_ERROR_RESOURCE);
  EXPECT_EQ(VipSetMemAttributes(host.nic, host.memory, host.handle, &bad), VIP_INVALID_PTAG);
}

TEST(ViaMemory, IsRegisteredAsOftenAsTheNicSays) {
  Host host;
  VIP_NIC_ATTRIBUTES nic;
  ASSERT_EQ(VipQueryNic(host.nic, &nic), VIP_SUCCESS);
  VIP_MEM_ATTRIBUTES attributes{host.tag, 0, 0};
  std::vector<VIP_MEM_HANDLE> handles;
  VIP_MEM_HANDLE handle = 0;
  VIP_RETURN rc = VIP_SUCCESS;
  while ((rc = VipRegisterMem(host.nic, host.data, 1, &attributes, &handle)) == VIP_SUCCESS)
    handles.push_back(handle);
  EXPECT_EQ(rc, VIP_ERROR_RESOURCE);
  EXPECT_EQ(handles.size() + 1, nic.MaxRegisterRegions) << "the host has one";
  for (const VIP_MEM_HANDLE one : handles)
    ASSERT_EQ(VipDeregisterMem(host.nic, host.data, one), VIP_SUCCESS);
}

TEST(ViaPtag, IsNotDestroyedWhileItIsInUse) {
  Host host;
  EXPECT_EQ(VipDestroyPtag(host.nic, host.tag), VIP_ERROR_RESOURCE);
  EXPECT_EQ(VipDestroyPtag(host.nic, host.nic), VIP_INVALID_PTAG);
  EXPECT_EQ(VipDestroyPtag(host.nic, nullptr), VIP_INVALID_PTAG);
}

TEST(ViaNames, AreResolvedBetweenInitAndShutdownOnly) {
  Host host;
  Net address(host.nic, "x");
  char name[] = "localhost", nobody[] = "no-such-host.invalid";
  EXPECT_EQ(VipNSGetHostByName(host.nic, name, address, 0), VIP_ERROR_NAMESERVICE);
  ASSERT_EQ(VipNSInit(host.nic, nullptr), VIP_SUCCESS);
  ASSERT_EQ(VipNSGetHostByName(host.nic, name, address, 0), VIP_SUCCESS);
  EXPECT_EQ(std::memcmp(address.bytes, Net(host.nic, "x").bytes, 64), 0) << "this host is one";
  EXPECT_EQ(VipNSGetHostByName(host.nic, name, address, 50), VIP_ERROR_NAMESERVICE);
  EXPECT_EQ(VipNSGetHostByName(host.nic, nobody, address, 0), VIP_ERROR_NAMESERVICE);
  EXPECT_EQ(VipNSGetHostByName(host.nic, nullptr, address, 0), VIP_INVALID_PARAMETER);
  char found[256];
  VIP_ULONG length = sizeof found;
  EXPECT_EQ(VipNSGetHostByAddr(host.nic, address, found, &length), VIP_SUCCESS);
  EXPECT_EQ(std::strlen(found) + 1, length);
  length = 1;
  EXPECT_EQ(VipNSGetHostByAddr(host.nic, address, found, &length), VIP_ERROR_RESOURCE);
  EXPECT_EQ(VipNSShutdown(host.nic), VIP_SUCCESS);
  EXPECT_EQ(VipNSShutdown(host.nic), VIP_ERROR_NAMESERVICE);
}

}  // namespace
}  // namespace clan::via::testing
