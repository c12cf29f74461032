// Two nodes of one process, each with a NIC and a thread of its own, and what they tell their
// owners.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/reactor.h"
#include "clan/detail/clock.h"
#include "link/udp/io/socket_io.h"
#include "link/udp/node/udp_link.h"
#include "link/udp/node/udp_node.h"
#include "link/udp/wire/security.h"
#include "link/udp/xdp/packet_choice.h"
#include "nic/memory_block.h"
#include "nic/nic.h"

namespace clan::udp {

inline SocketAddress at_port(std::uint16_t port) {
  return *parse_address(("127.0.0.1:" + std::to_string(port)).c_str());
}

/// A node, its NIC, and its owner, which keeps the calls that it gets.
class NodeHost final : public nic::LinkSink {
 public:
  explicit NodeHost(std::uint64_t number, const char* local = "127.0.0.1:0") : number_(number) {
    auto nic = nic::Nic::create(NodeId{number}, ::geteuid());
    EXPECT_TRUE(nic.ok());
    nic_ = std::move(*nic);
    NodeOwner owner;
    owner.node = NodeId{number};
    owner.uid = ::geteuid();
    owner.nic = nic_.get();
    owner.sink = this;
    owner.reactor = &reactor_;
    owner.find_service = [this](const std::string& service, Greeting* answer) {
      std::lock_guard lock(mutex_);
      ++asked_;
      const auto it = services_.find(service);
      if (it == services_.end()) return ECONNREFUSED;
      answer->endpoint = it->second.endpoint;
      answer->port = it->second.port;
      return 0;
    };
    owner.on_link = [this](std::shared_ptr<nic::Link> link) {
      std::lock_guard lock(mutex_);
      links_.push_back(std::move(link));
      changed_.notify_all();
    };
    auto io = open_packets(*parse_address(local), Packets::kSockets);
    EXPECT_TRUE(io.ok());
    auto node = UdpNode::create(std::move(owner), std::move(*io), nullptr, {});
    EXPECT_TRUE(node.ok());
    node_ = std::move(*node);
  }
  ~NodeHost() {
    reactor_.stop();
    node_->shut_down(0);
  }
  NodeHost(const NodeHost&) = delete;
  NodeHost& operator=(const NodeHost&) = delete;

  struct Where {
    std::uint32_t endpoint = 0;
    std::uint16_t port = 0;  ///< another process of this host has it
  };
  void offer(const std::string& service, Where where) {
    std::lock_guard lock(mutex_);
    services_[service] = where;
  }
  /// How often a service was looked up.
  int asked() {
    std::lock_guard lock(mutex_);
    return asked_;
  }
  UdpNode& node() { return *node_; }
  nic::Nic& nic() { return *nic_; }
  NodeId number() const { return {number_}; }
  std::uint16_t port() const { return node_->local_address().port; }
  SocketAddress address() const { return at_port(port()); }

  /// What has been reported to it.
  struct Told {
    std::vector<OobMessage> messages;
    std::map<std::uint64_t, int> transfers;  ///< by token, how they ended
    int down = 0, misbehaved = 0;
  };
  template <typename Enough>
  bool is_told(Enough&& enough) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return enough(told_); });
  }
  /// The link that a peer has made.
  std::shared_ptr<nic::Link> made(std::size_t number = 0) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return links_.size() > number; });
    return links_.size() > number ? links_[number] : nullptr;
  }

  void on_oob(const std::shared_ptr<nic::Link>&, const OobMessage& message) override {
    note([&] { told_.messages.push_back(message); });
  }
  void on_transfer_done(std::uint64_t token, int err, std::uint64_t) override {
    note([&] { told_.transfers[token] = err; });
  }
  void on_link_down(const std::shared_ptr<nic::Link>&) override {
    note([&] { ++told_.down; });
  }
  void on_misbehaviour(const std::shared_ptr<nic::Link>&) override {
    note([&] { ++told_.misbehaved; });
  }

 private:
  template <typename F>
  void note(F&& f) {
    std::lock_guard lock(mutex_);
    f();
    changed_.notify_all();
  }

  const std::uint64_t number_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Told told_;
  int asked_ = 0;
  std::map<std::string, Where> services_;
  std::vector<std::shared_ptr<nic::Link>> links_;
  std::unique_ptr<nic::Nic> nic_;
  Reactor reactor_;
  std::shared_ptr<UdpNode> node_;
};

struct NodePair : testing::Test {
  static std::uint64_t soon() { return monotonic_ns() + 20'000'000'000u; }
  std::shared_ptr<UdpLink> dial(const std::string& service = "service") {
    auto found = client.node().dial(server.address(), service, soon());
    EXPECT_TRUE(found.ok()) << found.error().message();
    return found.ok() ? found->link : nullptr;
  }
  NodePair() { server.offer("service", {.endpoint = 42}); }

  NodeHost server{1001}, client{1002};
};

}  // namespace clan::udp
