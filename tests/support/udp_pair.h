// UdpPair: two contexts of this process linked over real UDP sockets on loopback, as if they were
// on two hosts; LossyIo: a network between them that loses, repeats and reorders packets.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "engine/context/context_core.h"
#include "link/udp/io/packet_io.h"
#include "link/udp/node/udp_link.h"
#include "link/udp/node/udp_node.h"
#include "support/pattern.h"

namespace clan::test {

/// What happens to packets that are sent; parts in a thousand.
struct Impairment {
  std::uint64_t seed = 1;
  std::uint64_t loss = 0, copies = 0, late = 0;  ///< late: after up to 16 others
};

class LossyIo final : public udp::PacketIo {
 public:
  LossyIo(std::unique_ptr<udp::PacketIo> under, const Impairment& what,
          const std::atomic<bool>& paused, std::atomic<unsigned>& looks)
      : under_(std::move(under)), what_(what), paused_(paused), looks_(looks), random_(what.seed) {}

  Sent send(const udp::Train& train, std::span<const std::byte> bytes) override;
  std::size_t receive(std::span<udp::Arrival> out) override {
    looks_.fetch_add(1);
    return under_->receive(out);
  }
  int descriptor() const override { return under_->descriptor(); }
  udp::SocketAddress local_address() const override { return under_->local_address(); }
  std::uint32_t packets_of_room() const override { return under_->packets_of_room(); }

 private:
  struct Late {
    udp::SocketAddress to;
    std::vector<std::byte> bytes;
    std::uint64_t after;  ///< packets
  };
  bool chance(std::uint64_t in_a_thousand) { return random_.below(1000) < in_a_thousand; }
  void send_one(const udp::SocketAddress& to, std::span<const std::byte> bytes);

  std::unique_ptr<udp::PacketIo> under_;
  const Impairment what_;
  const std::atomic<bool>& paused_;
  std::atomic<unsigned>& looks_;
  Random random_;
  std::uint64_t sent_ = 0;
  std::deque<Late> late_;
};

class UdpPair {
 public:
  /// b dials a. The links are in the contexts' tables.
  UdpPair(engine::ContextCore& a, engine::ContextCore& b, const Impairment& what);
  ~UdpPair();
  UdpPair(const UdpPair&) = delete;
  UdpPair& operator=(const UdpPair&) = delete;

  /// From now on no packet leaves.
  void pause() { paused_.store(true); }
  /// Both ends hear that the other is gone.
  void cut();
  /// After the context a has ended: its node says good-bye, as a context's own node does. Nobody
  /// else would repeat what is lost.
  void end_a();
  /// All that has been sent so far has been taken by the other end.
  void settle();
  /// For packets, by threads of either context.
  unsigned looks() const { return looks_.load(); }
  /// What both ends' connections are at, for a test that has failed.
  void print() const;

 private:
  std::shared_ptr<udp::UdpNode> make_node(engine::ContextCore& core, const Impairment& what);
  std::atomic<bool> paused_{false};
  std::atomic<unsigned> looks_{0};
  std::shared_ptr<udp::UdpNode> a_, b_;
  std::shared_ptr<nic::Link> at_a_, at_b_;
};

}  // namespace clan::test
