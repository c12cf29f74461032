// One end of a VI as a program of its own, for programs.py:
//
//     via-end serve NAME           answers whatever comes, until the other end disconnects
//     via-end ask NAME HOST LEVEL  messages of all sizes, RDMA both ways; "right"
//     via-end hold NAME HOST       a few messages, "held", and then waits to be killed
//     via-end poll NAME HOST       polls; the times between which nothing else was done
#include <netdb.h>

#include <chrono>
#include <cstdio>

#include "via/ends.h"

namespace clan::via::testing {
namespace {

constexpr std::uint32_t kMost = 300'000;
constexpr std::size_t kTarget = 1 << 20;  // in the data: what peers write and read by RDMA

/// What the server says first: where its memory is.
struct Welcome {
  unsigned char* data;
  VIP_MEM_HANDLE handle;
};

void fail(const char* what) {
  std::fprintf(stderr, "via-end: %s\n", what);
  std::_Exit(1);
}

Net remote_of(VIP_NIC_HANDLE nic, const std::string& host, const std::string& name) {
  Net net(nic, name);
  VIP_NET_ADDRESS* address = net;
  if (VipNSInit(nic, nullptr) != VIP_SUCCESS ||
      VipNSGetHostByName(nic, const_cast<char*>(host.c_str()), address, 0) != VIP_SUCCESS) {
    fail("no such host");
  }
  return net;
}

int serve_others(const std::string& name) {
  End end(4 << 20);
  VIP_CONN_HANDLE connection = nullptr;
  VIP_VI_ATTRIBUTES theirs{};
  Net local(end.host.nic, name), remote(end.host.nic, "");
  std::puts("ready");
  std::fflush(stdout);
  if (VipConnectWait(end.host.nic, local, kSoon, remote, &theirs, &connection) != VIP_SUCCESS)
    fail("nobody asks");
  end.create(theirs.ReliabilityLevel);
  for (int i = 0; i < 2; ++i) (void)end.post_recv(end.host.make(i, i * kMost, kMost));
  if (VipConnectAccept(connection, end.vi) != VIP_SUCCESS) fail("no connection");
  const Welcome welcome{end.host.data + kTarget, end.host.handle};
  std::memcpy(end.host.data + 2 * kMost, &welcome, sizeof welcome);
  (void)end.post_send(end.host.make(2, 2 * kMost, sizeof welcome));
  (void)end.sent();
  for (;;) {
    VIP_DESCRIPTOR* d = nullptr;
    VIP_RETURN rc = VIP_NOT_DONE;
    while (rc == VIP_NOT_DONE) rc = VipRecvDone(end.vi, &d);
    if (rc != VIP_SUCCESS) break;
    const std::uint32_t bytes = d->CS.Length;
    const bool written = (d->CS.Status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_REMOTE_RDMA_WRITE;
    unsigned char* const from = written ? end.host.data + kTarget
                                        : static_cast<unsigned char*>(d->DS[0].Local.Data.Address);
    VIP_DESCRIPTOR* s = end.host.make(2, static_cast<std::size_t>(from - end.host.data), bytes);
    if (end.post_send(s) != VIP_SUCCESS || end.sent(s) != VIP_STATUS_DONE) break;
    (void)end.post_recv(d);
  }
  (void)VipDisconnect(end.vi);
  return end.errors.has(VIP_ERROR_CONN_LOST) && end.errors.all.size() == 1 ? 0 : 1;
}

struct Client {
  Client(const std::string& name, const std::string& host, int level) : end(4 << 20) {
    end.create(level);
    for (int i = 0; i < 2; ++i) (void)end.post_recv(end.host.make(i, i * kMost, kMost));
    Net local(end.host.nic, name + "c"), remote = remote_of(end.host.nic, host, name);
    VIP_RETURN rc = VIP_NO_MATCH;
    while (rc == VIP_NO_MATCH) rc = VipConnectRequest(end.vi, local, remote, kSoon, nullptr);
    if (rc != VIP_SUCCESS) fail("no connection");
    const VIP_DESCRIPTOR* d = take();
    std::memcpy(&welcome, d->DS[0].Local.Data.Address, sizeof welcome);
    (void)end.post_recv(const_cast<VIP_DESCRIPTOR*>(d));
  }
  VIP_DESCRIPTOR* take() {
    VIP_DESCRIPTOR* d = nullptr;
    VIP_RETURN rc = VIP_NOT_DONE;
    while (rc == VIP_NOT_DONE) rc = VipRecvDone(end.vi, &d);
    if (rc != VIP_SUCCESS) fail("nothing received");
    return d;
  }
  void send(VIP_DESCRIPTOR* s) {
    VIP_DESCRIPTOR* d = nullptr;
    if (end.post_send(s) != VIP_SUCCESS) fail("not sent");
    VIP_RETURN rc = VIP_NOT_DONE;
    while (rc == VIP_NOT_DONE) rc = VipSendDone(end.vi, &d);
    if (rc != VIP_SUCCESS) fail("not sent");
  }
  void expect_back(const unsigned char* what, std::uint32_t bytes) {
    VIP_DESCRIPTOR* d = take();
    if (d->CS.Length != bytes || std::memcmp(d->DS[0].Local.Data.Address, what, bytes) != 0)
      fail("other bytes came back");
    (void)end.post_recv(d);
  }
  VIP_DESCRIPTOR* rdma(std::uint16_t control, std::size_t offset, std::uint32_t bytes) {
    VIP_DESCRIPTOR* d = end.host.make(3, 0, 0, control);
    end.host.segment(d, 0).Remote.Data.Address = welcome.data;
    end.host.segment(d, 0).Remote.Handle = welcome.handle;
    end.host.add(d, offset, bytes);
    return d;
  }
  End end;
  Welcome welcome{};
};

int ask(const std::string& name, const std::string& host, int level) {
  Client client(name, host, level);
  Host& own = client.end.host;
  unsigned char* const out = own.data + 2 * kMost;
  for (const std::uint32_t bytes : {0u, 1u, 40u, 1400u, 16'384u, 16'385u, 65'536u, kMost}) {
    for (std::uint32_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(i * 7 + bytes);
    client.send(own.make(2, 2 * kMost, bytes));
    client.expect_back(out, bytes);
    client.send(client.rdma(VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE, 2 * kMost, bytes));
    client.expect_back(out, bytes);
    if (level == VIP_SERVICE_UNRELIABLE) continue;  // which has no reads
    client.send(client.rdma(VIP_CONTROL_OP_RDMAREAD, 3 * kMost, bytes));
    if (std::memcmp(own.data + 3 * kMost, out, bytes) != 0) fail("other bytes were read");
  }
  std::puts("right");
  return VipDisconnect(client.end.vi) == VIP_SUCCESS ? 0 : 1;
}

int hold(const std::string& name, const std::string& host) {
  Client client(name, host, VIP_SERVICE_RELIABLE_DELIVERY);
  for (int i = 0; i < 3; ++i) {
    client.send(client.end.host.make(2, 2 * kMost, 20'000));
    client.expect_back(client.end.host.data + 2 * kMost, 20'000);
  }
  client.send(client.rdma(VIP_CONTROL_OP_RDMAWRITE, 2 * kMost, 100));
  std::puts("held");
  std::fflush(stdout);
  for (;;) ::pause();
}

int poll(const std::string& name, const std::string& host) {
  Client client(name, host, VIP_SERVICE_RELIABLE_DELIVERY);
  std::vector<double> times;
  for (int i = 0; i < 200; ++i) {
    for (int k = 0; k < 20; ++k) {
      const std::uint32_t bytes = k % 2 == 0 ? 64 : 4000;
      client.send(client.end.host.make(2, 2 * kMost, bytes));
      client.expect_back(client.end.host.data + 2 * kMost, bytes);
    }
    times.push_back(
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  }
  for (const double time : times) std::printf("%.6f\n", time);
  return 0;
}

}  // namespace
}  // namespace clan::via::testing

int main(int argc, char** argv) {
  using namespace clan::via::testing;
  const std::string what = argc > 2 ? argv[1] : "";
  if (what == "serve") return serve_others(argv[2]);
  if (what == "ask" && argc > 4) return ask(argv[2], argv[3], std::atoi(argv[4]));
  if (what == "hold" && argc > 3) return hold(argv[2], argv[3]);
  if (what == "poll" && argc > 3) return poll(argv[2], argv[3]);
  return 2;
}
