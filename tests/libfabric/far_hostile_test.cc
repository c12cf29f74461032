// A peer that comes over the network and means no good: its fields are judged as those of a peer on
// this host, and it can neither pass for one nor reach memory as one does. On loopback, in a
// process of its own, as the provider reads once whether there is a network.
#include <clan/context.h>
#include <clan/message.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <vector>

#include "libfabric-provider/transport/wire.h"
#include "libfabric/node.h"

namespace clan::test {
namespace {

using namespace clan::ofi;
using Bytes = std::vector<std::byte>;

constexpr char kDirectory[] = "FI_CLAN_DIRECTORY_PORT";
constexpr std::uint64_t kKey = 42;

std::string free_udp_port() {
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(fd);
  return std::to_string(ntohs(address.sin_port));
}

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
    const std::string port = free_udp_port();
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

}  // namespace
}  // namespace clan::test
