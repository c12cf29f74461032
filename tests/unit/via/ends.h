// Two VIs of this process that are connected with each other, each with registered memory of its
// own for descriptors and data; for tests.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vipl.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace clan::via::testing {

inline constexpr std::size_t kDescriptorBytes = 320;  // 16 segments
inline constexpr VIP_ULONG kSoon = 20'000;            // ms, which a test never waits for

/// An address with a discriminator of text.
struct Net {
  explicit Net(VIP_NIC_HANDLE nic, const std::string& name) {
    VIP_NIC_ATTRIBUTES attributes;
    EXPECT_EQ(VipQueryNic(nic, &attributes), VIP_SUCCESS);
    const auto length = static_cast<std::uint16_t>(name.size());
    std::memcpy(bytes, &attributes.NicAddressLen, 2);
    std::memcpy(bytes + 2, &length, 2);
    std::memcpy(bytes + 4, attributes.LocalNicAddress, attributes.NicAddressLen);
    std::memcpy(bytes + 4 + attributes.NicAddressLen, name.data(), name.size());
  }
  operator VIP_NET_ADDRESS*() { return reinterpret_cast<VIP_NET_ADDRESS*>(bytes); }
  alignas(2) unsigned char bytes[64] = {};
};

inline std::string unique_name() {
  static int number = 0;
  return "t" + std::to_string(::getpid()) + "." + std::to_string(++number);
}

/// A NIC, a tag and registered memory: descriptors first, then data.
struct Host {
  explicit Host(std::size_t data_bytes = 1 << 20, bool writable = true, bool readable = true) {
    EXPECT_EQ(VipOpenNic("/dev/clanvi0", &nic), VIP_SUCCESS);
    EXPECT_EQ(VipCreatePtag(nic, &tag), VIP_SUCCESS);
    memory_bytes = 64 * kDescriptorBytes + data_bytes;
    memory = static_cast<unsigned char*>(std::aligned_alloc(64, (memory_bytes + 63) / 64 * 64));
    std::memset(memory, 0, memory_bytes);
    VIP_MEM_ATTRIBUTES attributes{tag, writable, readable};
    EXPECT_EQ(VipRegisterMem(nic, memory, memory_bytes, &attributes, &handle), VIP_SUCCESS);
    data = memory + 64 * kDescriptorBytes;
  }
  ~Host() {
    if (registered) deregister();
    EXPECT_EQ(VipDestroyPtag(nic, tag), VIP_SUCCESS);
    EXPECT_EQ(VipCloseNic(nic), VIP_SUCCESS);
    std::free(memory);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  void deregister() {
    EXPECT_EQ(VipDeregisterMem(nic, memory, handle), VIP_SUCCESS);
    registered = false;
  }
  /// The i-th descriptor, for data segments at offsets of this host's data.
  VIP_DESCRIPTOR* descriptor(int i) {
    return reinterpret_cast<VIP_DESCRIPTOR*>(memory + i * kDescriptorBytes);
  }
  static VIP_DESCRIPTOR_SEGMENT& segment(VIP_DESCRIPTOR* d, int i) {
    return reinterpret_cast<VIP_DESCRIPTOR_SEGMENT*>(d + 0)[2 + i];
  }
  VIP_DESCRIPTOR* make(int i, std::size_t offset, std::uint32_t bytes, std::uint16_t control = 0) {
    VIP_DESCRIPTOR* d = descriptor(i);
    std::memset(static_cast<void*>(d), 0, kDescriptorBytes);
    d->CS.Control = control;
    add(d, offset, bytes);
    return d;
  }
  void add(VIP_DESCRIPTOR* d, std::size_t offset, std::uint32_t bytes) {
    VIP_DESCRIPTOR_SEGMENT& s = segment(d, d->CS.SegCount++);
    s.Local.Data.Address = data + offset;
    s.Local.Handle = handle;
    s.Local.Length = bytes;
  }
  /// Makes a descriptor of RDMA: the remote segment is first.
  VIP_DESCRIPTOR* make_rdma(int i, std::size_t offset, std::uint32_t bytes, std::uint16_t control,
                            Host& other, std::size_t there) {
    VIP_DESCRIPTOR* d = make(i, 0, 0, control);
    // By address: some tests want one that is in no object.
    segment(d, 0).Remote.Data.Address =
        reinterpret_cast<VIP_PVOID>(reinterpret_cast<std::uintptr_t>(other.data) + there);
    segment(d, 0).Remote.Handle = other.handle;
    add(d, offset, bytes);
    return d;
  }

  VIP_NIC_HANDLE nic = nullptr;
  VIP_PROTECTION_HANDLE tag = nullptr;
  VIP_MEM_HANDLE handle = 0;
  unsigned char *memory = nullptr, *data = nullptr;
  std::size_t memory_bytes = 0;
  bool registered = true;
};

/// Errors that the callback of a NIC has got.
struct Errors {
  explicit Errors(VIP_NIC_HANDLE nic) { EXPECT_EQ(VipErrorCallback(nic, this, note), VIP_SUCCESS); }
  static void note(VIP_PVOID self, VIP_ERROR_DESCRIPTOR* error) {
    auto* const errors = static_cast<Errors*>(self);
    std::lock_guard lock(errors->mutex);
    errors->all.push_back(*error);
  }
  bool has(VIP_ERROR_CODE code) {
    std::lock_guard lock(mutex);
    for (const auto& error : all) {
      if (error.ErrorCode == code) return true;
    }
    return false;
  }
  std::mutex mutex;
  std::vector<VIP_ERROR_DESCRIPTOR> all;
};

inline VIP_VI_ATTRIBUTES attributes_of(VIP_PROTECTION_HANDLE tag, int level) {
  VIP_VI_ATTRIBUTES attributes{};
  attributes.ReliabilityLevel = static_cast<VIP_RELIABILITY_LEVEL>(level);
  attributes.MaxTransferSize = 1 << 24;
  attributes.Ptag = tag;
  attributes.EnableRdmaWrite = VIP_TRUE;
  attributes.EnableRdmaRead = level != VIP_SERVICE_UNRELIABLE;
  return attributes;
}

struct End {
  explicit End(std::size_t data_bytes = 1 << 20) : host(data_bytes), errors(host.nic) {}
  ~End() {
    if (vi == nullptr) return;
    (void)VipDisconnect(vi);
    EXPECT_EQ(VipDestroyVi(vi), VIP_SUCCESS);
  }
  void create(int level, VIP_CQ_HANDLE send = nullptr, VIP_CQ_HANDLE receive = nullptr) {
    VIP_VI_ATTRIBUTES attributes = attributes_of(host.tag, level);
    ASSERT_EQ(VipCreateVi(host.nic, &attributes, send, receive, &vi), VIP_SUCCESS);
  }
  VIP_RETURN post_send(VIP_DESCRIPTOR* d) { return VipPostSend(vi, d, host.handle); }
  VIP_RETURN post_recv(VIP_DESCRIPTOR* d) { return VipPostRecv(vi, d, host.handle); }
  /// Takes the next completed descriptor, and its status.
  std::uint32_t sent(VIP_DESCRIPTOR* wanted = nullptr) { return status(&VipSendWait, wanted); }
  std::uint32_t received(VIP_DESCRIPTOR* wanted = nullptr) { return status(&VipRecvWait, wanted); }
  VIP_VI_STATE state() {
    VIP_VI_STATE now = VIP_STATE_IDLE;
    EXPECT_EQ(VipQueryVi(vi, &now, nullptr, nullptr, nullptr), VIP_SUCCESS);
    return now;
  }

  Host host;
  Errors errors;
  VIP_VI_HANDLE vi = nullptr;

 private:
  std::uint32_t status(VIP_RETURN (*wait)(VIP_VI_HANDLE, VIP_ULONG, VIP_DESCRIPTOR**),
                       VIP_DESCRIPTOR* wanted) {
    VIP_DESCRIPTOR* d = nullptr;
    const VIP_RETURN rc = wait(vi, kSoon, &d);
    EXPECT_NE(d, nullptr) << "return code " << rc;
    if (d == nullptr) return 0;
    EXPECT_TRUE(wanted == nullptr || d == wanted);
    EXPECT_EQ(rc, (d->CS.Status & VIP_STATUS_ERROR_MASK) == 0 ? VIP_SUCCESS : VIP_DESCRIPTOR_ERROR);
    return d->CS.Status;
  }
};

/// Connects two VIs, of one process or of several, by client and server.
inline VIP_RETURN serve(VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, const std::string& name) {
  Net local(nic, name), remote(nic, "");
  VIP_CONN_HANDLE connection = nullptr;
  const VIP_RETURN rc = VipConnectWait(nic, local, kSoon, remote, nullptr, &connection);
  return rc == VIP_SUCCESS ? VipConnectAccept(connection, vi) : rc;
}
inline VIP_RETURN request(VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, const std::string& name) {
  Net local(nic, name + "c"), remote(nic, name);
  VIP_RETURN rc = VIP_NO_MATCH;
  while (rc == VIP_NO_MATCH) {
    rc = VipConnectRequest(vi, local, remote, kSoon, nullptr);
    if (rc == VIP_NO_MATCH) std::this_thread::yield();
  }
  return rc;
}
inline void connect(End& a, End& b) {
  const std::string name = unique_name();
  std::thread server([&] { EXPECT_EQ(serve(a.host.nic, a.vi, name), VIP_SUCCESS); });
  EXPECT_EQ(request(b.host.nic, b.vi, name), VIP_SUCCESS);
  server.join();
}

struct Pair {
  explicit Pair(int level = VIP_SERVICE_RELIABLE_DELIVERY, std::size_t data_bytes = 1 << 20)
      : a(data_bytes), b(data_bytes) {
    a.create(level);
    b.create(level);
  }
  void connect() { testing::connect(a, b); }
  End a, b;
};

}  // namespace clan::via::testing
