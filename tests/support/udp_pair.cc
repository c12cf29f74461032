#include "support/udp_pair.h"

#include <cstdio>
#include <thread>

#include "clan/detail/clock.h"
#include "link/udp/io/socket_io.h"
#include "support/streams.h"

namespace clan::test {

void LossyIo::send_one(const udp::SocketAddress& to, std::span<const std::byte> bytes) {
  (void)under_->send({to, bytes.size(), bytes.size()}, bytes);
}

udp::PacketIo::Sent LossyIo::send(const udp::Train& train, std::span<const std::byte> bytes) {
  if (paused_.load()) return Sent::kSent;
  if (what_.loss + what_.copies + what_.late == 0) return under_->send(train, bytes);
  for (std::size_t at = 0; at < bytes.size(); at += train.segment) {
    const auto packet = bytes.subspan(at, std::min(train.segment, bytes.size() - at));
    ++sent_;
    if (chance(what_.late)) {
      late_.push_back({train.to, {packet.begin(), packet.end()}, sent_ + 1 + random_.below(16)});
    } else if (!chance(what_.loss)) {
      send_one(train.to, packet);
      if (chance(what_.copies)) send_one(train.to, packet);
    }
    while (!late_.empty() && late_.front().after <= sent_) {
      send_one(late_.front().to, late_.front().bytes);
      late_.pop_front();
    }
  }
  return Sent::kSent;
}

std::shared_ptr<udp::UdpNode> UdpPair::make_node(engine::ContextCore& core,
                                                 const Impairment& what) {
  udp::SocketAddress local;
  auto socket = must(udp::SocketIo::open(local, {}));
  udp::Options options;
  options.packet_window = socket->packets_of_room();
  options.credit[0] = 4 << 20;
  udp::NodeOwner owner;
  owner.node = core.node();
  owner.uid = core.owner(-1);
  owner.nic = &core.own_lane();
  owner.sink = &core;
  owner.reactor = &core.reactor();
  owner.find_service = [](const std::string&, udp::Greeting*) { return ECONNREFUSED; };
  owner.on_link = [this, &core](std::shared_ptr<nic::Link> link) {
    at_a_ = link;
    core.add_link(std::move(link));
  };
  auto io = std::make_unique<LossyIo>(std::move(socket), what, paused_, looks_);
  return must(udp::UdpNode::create(std::move(owner), std::move(io), nullptr, options));
}

UdpPair::UdpPair(engine::ContextCore& a, engine::ContextCore& b, const Impairment& what)
    : a_(make_node(a, what)), b_(make_node(b, what)) {
  const std::string at = "127.0.0.1:" + std::to_string(a_->local_address().port);
  auto found = must(b_->dial(must(udp::parse_address(at.c_str())), "", deadline_after_ms(10'000)));
  at_b_ = found.link;
  b.add_link(at_b_);
  while (a.snapshot().links == 0) std::this_thread::yield();
}

UdpPair::~UdpPair() {
  a_->shut_down(0);
  b_->shut_down(0);
}

void UdpPair::cut() {
  a_->break_links(ECONNRESET);
  b_->break_links(ECONNRESET);
}

void UdpPair::end_a() { a_->shut_down(2 * udp::kSecond); }

void UdpPair::settle() {
  // An answer comes behind all that was sent before the question; this cookie is of no aperture.
  for (const auto& link : {at_a_, at_b_}) {
    RdmaCookie nobodys;
    nobodys.node = link->remote_node();
    (void)link->import(nobodys, true);
  }
}

void UdpPair::print() const {
  for (const auto& link : {at_a_, at_b_}) {
    const udp::Connection* c = static_cast<udp::UdpLink&>(*link).connection();
    if (c == nullptr) {
      std::puts("udp: no connection");
      continue;
    }
    const udp::ConnectionCounters& n = c->counters();
    const auto number = [](std::uint64_t v) { return static_cast<unsigned long long>(v); };
    std::printf(
        "udp: window %llu%s, packets of %zu, %llu under way, %llu and %llu waiting; %llu sent, "
        "%llu received, "
        "%llu lost, %llu spurious, %llu time-outs, round trip %llu us\n",
        number(c->congestion().window()), c->congestion().slow_start() ? " (slow start)" : "",
        c->mtu().current(), number(c->under_way()), number(c->queued_bytes(0)),
        number(c->queued_bytes(3)), number(n.packets_sent), number(n.packets_received),
        number(n.lost), number(n.spurious), number(n.timeouts), number(c->rtt().smoothed() / 1000));
  }
}

}  // namespace clan::test
