// Both ends of the shared-memory link in one process, without driver threads: a test is the driver
// of either end, and calls on_ready() when there is something to read.
#pragma once

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "link/control.h"
#include "link/shm_link.h"
#include "support/streams.h"

namespace clan::test {

/// What a context brings to the handshake.
struct ShmSide {
  ShmSide() {
    nic = must(nic::Nic::create(node, ::geteuid()));
    doorbell = must(create_eventfd());
  }
  std::function<nic::Nic*(uid_t)> lane() {
    return [this](uid_t) { return allows ? nic.get() : nullptr; };
  }
  const NodeId node{random_u64()};
  std::unique_ptr<nic::Nic> nic;
  Fd doorbell;
  bool allows = true;  ///< policy
};

/// A client that says hello, and a server that has accepted its socket.
struct ShmMeeting : testing::Test {
  ShmMeeting() : listener(must(listen_abstract(name))) {}

  Result<link::ShmPeer> begin(uid_t owner = ::geteuid()) {
    return link::begin_dial(name, owner, client.node, client.doorbell.get(), client.lane());
  }
  Fd accepted() {
    return Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  }
  Result<link::ShmPeer> answered(std::uint32_t endpoint = 7) {
    return answered(accepted(), endpoint);
  }
  Result<link::ShmPeer> answered(Fd socket, std::uint32_t endpoint = 7) {
    return link::answer(std::move(socket), server.node, server.doorbell.get(), server.lane(),
                        endpoint);
  }

  const std::string name = "clan-test/" + std::to_string(random_u64());
  ShmSide client, server;
  Fd listener;
};

/// Notes what a link tells.
struct ShmNotes final : nic::LinkSink {
  void on_oob(const std::shared_ptr<nic::Link>&, const OobMessage& message) override {
    messages.push_back(message);
  }
  void on_transfer_done(std::uint64_t token, int err, std::uint64_t bytes) override {
    transfers.push_back({token, err, bytes});
  }
  void on_link_down(const std::shared_ptr<nic::Link>&) override { ++downs; }
  void on_misbehaviour(const std::shared_ptr<nic::Link>&) override { ++misbehaviours; }

  struct Done {
    std::uint64_t token;
    int err;
    std::uint64_t bytes;
  };
  std::vector<OobMessage> messages;
  std::vector<Done> transfers;
  int downs = 0, misbehaviours = 0;
};

/// Two ends that are linked. `memory` is the server's, its cookie `cookie`.
struct ShmPair : ShmMeeting {
  explicit ShmPair(bool direct_copy = true) {
    link::ShmPeer of_client = must(begin()), of_server = must(answered());
    std::uint32_t endpoint = 0;
    EXPECT_OK(link::finish_dial(of_client, &endpoint));
    a = std::make_shared<link::ShmLink>(std::move(of_client), *client.nic, a_notes, reactor,
                                        link::ShmLink::Options{direct_copy});
    b = std::make_shared<link::ShmLink>(std::move(of_server), *server.nic, b_notes, reactor,
                                        link::ShmLink::Options{direct_copy, true});
  }
  /// Each end reads what the other has sent, and answers to it.
  void exchange() {
    for (int k = 0; k < 4; ++k) {
      b->on_ready(EPOLLIN);
      a->on_ready(EPOLLIN);
    }
  }
  /// Memory of the server's, which peers can map.
  RdmaCookie export_block(Rights rights = Rights::kReadWrite, std::size_t bytes = 8192) {
    block = must(nic::MemoryBlock::create(bytes));
    if (rights == Rights::kRead) {
      EXPECT_OK(block->seal_read_only());
    }
    return must(server.nic->export_aperture({block->data(), bytes, rights, block}));
  }
  /// The program's own, which they cannot.
  RdmaCookie export_own(Rights rights = Rights::kReadWrite) {
    return must(server.nic->export_aperture({own.data(), own.size(), rights, nullptr}));
  }

  Reactor reactor;  ///< has no thread: nothing is put under its watch
  ShmNotes a_notes, b_notes;
  std::shared_ptr<link::ShmLink> a, b;
  std::shared_ptr<nic::MemoryBlock> block;
  std::vector<std::byte> own = std::vector<std::byte>(200'000);
};

}  // namespace clan::test
