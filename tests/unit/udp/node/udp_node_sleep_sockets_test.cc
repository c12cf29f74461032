// A thread that sleeps at a node, and the sockets that it sleeps on.
#include <clan/context.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "clan/detail/clock.h"
#include "engine/context/context_core.h"
#include "link/udp/io/packet_io.h"
#include "link/udp/node/udp_node.h"
#include "link/udp/wire/wire.h"
#include "support/streams.h"

namespace clan::test {
namespace {

// As SocketIo where it opens a second socket: that appears in a look for packets, by another thread
// than the one that sleeps.
class SecondAppears final : public udp::PacketIo {
 public:
  explicit SecondAppears(std::atomic<std::uint32_t>& word) : word_(word) {}

  void second_is_ready() { signal_eventfd(second_.get()); }

  Sent send(const udp::Train&, std::span<const std::byte>) override { return Sent::kSent; }
  std::size_t receive(std::span<udp::Arrival>) override {
    if (appears.load() && !has_second.exchange(true)) changed();
    return 0;
  }
  int descriptor() const override { return main_.get(); }
  std::size_t sources(std::span<pollfd> out) const override {
    asked.fetch_add(1);
    out[0] = {main_.get(), POLLIN, 0};
    if (!has_second.load()) return 1;
    out[1] = {second_.get(), POLLIN, 0};
    return 2;
  }
  void woken_by(std::span<const pollfd> ready) override {
    if (ready.size() == 2 && ready[1].revents != 0) word_.store(1);
  }
  udp::SocketAddress local_address() const override { return {}; }
  std::uint32_t packets_of_room() const override { return 32; }

  std::atomic<bool> appears{false}, has_second{false};
  mutable std::atomic<unsigned> asked{0};

 private:
  std::atomic<std::uint32_t>& word_;
  const Fd main_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  const Fd second_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

TEST(SleepOnSockets, OneThatAppearsMeanwhileWakesTheThreadInCharge) {
  auto context = must(Context::create());
  engine::ContextCore& core = *context.core();
  udp::NodeOwner owner;
  owner.node = core.node();
  owner.uid = core.owner(-1);
  owner.nic = &core.own_lane();
  owner.sink = &core;
  owner.reactor = &core.reactor();
  owner.find_service = [](const std::string&, udp::Greeting*) { return ECONNREFUSED; };
  owner.on_link = [](const std::shared_ptr<nic::Link>&) {};
  std::atomic<std::uint32_t> word{0};
  auto made = std::make_unique<SecondAppears>(word);
  SecondAppears& io = *made;
  auto node = must(udp::UdpNode::create(std::move(owner), std::move(made), nullptr, {}));
  std::thread sleeper([&] {
    udp::Sleep what;
    what.word = &word;
    what.deadline_ns = deadline_after_ms(5'000);
    EXPECT_EQ(node->sleep(what), 0) << "it sleeps on what there was";
  });
  while (io.asked.load() == 0) std::this_thread::yield();
  io.appears.store(true);
  // It has the node's mutex from its check of the sources until it sleeps.
  while (!io.has_second.load()) node->progress();
  io.second_is_ready();
  sleeper.join();
  node->shut_down(0);
}

}  // namespace
}  // namespace clan::test
