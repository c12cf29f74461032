// FarPeer: a peer of the provider behind a UDP link, which says what the test orders. On loopback,
// in a process of its own, as the provider reads once whether there is a network.
#pragma once

#include <clan/context.h>
#include <clan/message.h>
#include <clan/rdma.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "libfabric-provider/wire/wire.h"
#include "libfabric/node.h"
#include "support/loopback.h"

namespace clan::test {

using Bytes = std::vector<std::byte>;
constexpr char kDirectory[] = "FI_CLAN_DIRECTORY_PORT";

/// True in the process where there is a network. Elsewhere the test runs in such a one.
inline bool in_a_network() {
  if (std::getenv("CLAN_NETWORK_MODE") != nullptr) return true;
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter =
      std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name();
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

inline std::uint16_t port_of(Node& node) {
  sockaddr_in address{};
  std::memcpy(&address, node.name().data(), sizeof address);
  return ntohs(address.sin_port);
}

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
  bool say(const ofi::WireHeader& header, const Bytes& body = {}) {
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
    ofi::Hello hello;
    hello.length = sizeof v4;
    std::memcpy(&hello.address, &v4, sizeof v4);
    Bytes body(sizeof hello);
    std::memcpy(body.data(), &hello, sizeof hello);
    return say({.op = ofi::Op::kHello}, body);
  }
  /// The next message of that kind, if it has come; others are dropped.
  bool hear(ofi::Op op, ofi::WireHeader* header, Bytes* body) {
    while (auto message = messages_.peek()) {
      std::memcpy(header, message->bytes.data(), sizeof *header);
      body->assign(message->bytes.begin() + sizeof *header, message->bytes.end());
      messages_.drop();
      if (header->op == op) return true;
    }
    return false;
  }
  bool offer(std::uint64_t length, std::uint32_t id, std::uint8_t flags = 0) {
    const ofi::FarOffer offer{length, 1000 + id};
    Bytes body(sizeof offer);
    std::memcpy(body.data(), &offer, sizeof offer);
    return say({.op = ofi::Op::kMessage,
                .flags = static_cast<std::uint8_t>(ofi::kOffered | flags),
                .id = id},
               body);
  }
  bool say_placed(std::uint64_t receive, int err = 0) {
    return say({.op = ofi::Op::kPlaced, .tag = receive, .data = static_cast<std::uint64_t>(err)});
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

}  // namespace clan::test
