#include "udp/simulation.h"

#include <algorithm>
#include <cstdio>

#include "udp/allocations.h"

namespace clan::test {

using udp::Connection;
using udp::kChannels;
using udp::SocketAddress;

namespace {

constexpr std::size_t kHeaderBytes = 16;
/// events without the clock moving: something spins
constexpr std::uint64_t kMostAtOnce = 300'000;

std::uint64_t pattern_seed(const Traffic& t, std::uint8_t channel, std::uint64_t index) {
  return mix(t.seed * 1'000'003 + channel * 7919 + index);
}

void put(std::span<std::byte> out, std::uint64_t value) {
  std::memcpy(out.data(), &value, sizeof value);
}
std::uint64_t get(std::span<const std::byte> in) {
  std::uint64_t value;
  std::memcpy(&value, in.data(), sizeof value);
  return value;
}

}  // namespace

std::size_t message_bytes(const Traffic& t, std::uint8_t channel, std::uint64_t index) {
  Random random(pattern_seed(t, channel, index) ^ 0x5151);
  if (random.below(16) == 0) return 0;
  return random.size_up_to(t.most_bytes[channel]);
}

// --- the network ---------------------------------------------------------------------------------

Network::~Network() = default;

SocketAddress Network::address_of(std::size_t node, std::uint16_t port) {
  SocketAddress a;
  a.ip[14] = static_cast<std::uint8_t>(node >> 8);
  a.ip[15] = static_cast<std::uint8_t>(node);
  a.port = port;
  return a;
}

Node& Network::add_node(const udp::Options& options, udp::Security* security) {
  const std::size_t index = nodes_.size();
  nodes_.push_back(std::make_unique<Node>(*this, index, options, security));
  for (auto& row : paths_) row.resize(nodes_.size());
  paths_.emplace_back(nodes_.size());
  return *nodes_.back();
}

PathModel& Network::path(std::size_t a, std::size_t b) { return paths_[a][b].model; }

void Network::set_all_paths(const PathModel& model) {
  for (auto& row : paths_) {
    for (PathState& p : row) p = {model};
  }
}

void Network::wake_at(std::size_t node, std::uint64_t time) {
  if (time == udp::kNever) return;
  time = std::max(time, now_);
  if (nodes_[node]->wake_ <= time && nodes_[node]->wake_ >= now_) return;
  nodes_[node]->wake_ = time;
  events_.push({time, order_++, node, kNone, 0});
}

void Network::send(std::size_t from, const SocketAddress& to, std::span<const std::byte> packet) {
  ++counters_.sent;
  const std::size_t node = std::size_t{to.ip[14]} << 8 | to.ip[15];
  if (node >= nodes_.size() || to.port != nodes_[node]->port()) {
    ++counters_.lost;
    return;
  }
  PathState& path = paths_[from][node];
  if (path.model.cut || chance(path.model.loss_ppm)) {
    ++counters_.lost;
    return;
  }
  if (path.burst_left > 0) {
    --path.burst_left;
    ++counters_.lost;
    return;
  }
  if (chance(path.model.burst_ppm)) path.burst_left = random_.below(path.model.burst_packets + 1);
  if (packet.size() > path.model.mtu) {
    ++counters_.too_big;
    return;
  }
  deliver(from, node, path, packet);
  if (chance(path.model.copy_ppm)) {
    ++counters_.copied;
    deliver(from, node, path, packet);
  }
}

void Network::share_arrivals(std::size_t node, std::uint64_t bytes_per_second,
                             std::uint64_t queue_bytes) {
  if (ports_.size() <= node) ports_.resize(node + 1);
  ports_[node].model.bytes_per_second = bytes_per_second;
  ports_[node].model.queue_bytes = queue_bytes;
}

// False: the queue was full.
bool Network::through_queue(PathState& path, std::size_t bytes, std::uint64_t* leaves) {
  if (path.model.bytes_per_second == 0) return true;
  const std::uint64_t backlog = path.free_at > *leaves ? path.free_at - *leaves : 0;
  if (backlog * path.model.bytes_per_second / udp::kSecond > path.model.queue_bytes) {
    ++counters_.queue_full;
    return false;
  }
  path.free_at =
      std::max(*leaves, path.free_at) + bytes * udp::kSecond / path.model.bytes_per_second;
  *leaves = path.free_at;
  return true;
}

void Network::deliver(std::size_t from, std::size_t to, PathState& path,
                      std::span<const std::byte> packet) {
  std::uint64_t leaves = now_;
  if (!through_queue(path, packet.size(), &leaves)) return;
  if (to < ports_.size() && !through_queue(ports_[to], packet.size(), &leaves)) return;
  std::size_t slot;
  if (free_packets_.empty()) {
    slot = packets_.size();
    packets_.emplace_back();
  } else {
    slot = free_packets_.back();
    free_packets_.pop_back();
  }
  packets_[slot].assign(packet.begin(), packet.end());
  if (chance(path.model.damage_ppm)) {
    ++counters_.damaged;
    const std::uint64_t bit = random_.below(packet.size() * 8);
    packets_[slot][bit / 8] ^= std::byte{1} << (bit % 8);
    if (random_.below(4) == 0) packets_[slot].resize(1 + random_.below(packet.size()));
  }
  const std::uint64_t jitter = path.model.jitter == 0 ? 0 : random_.below(path.model.jitter);
  events_.push({leaves + path.model.delay + jitter, order_++, to, slot, from});
}

bool Network::step(std::uint64_t end) {
  if (events_.empty() || events_.top().time > end) {
    now_ = std::max(now_, end);
    return false;
  }
  const Event e = events_.top();
  events_.pop();
  at_this_time_ = e.time == now_ ? at_this_time_ + 1 : 0;
  if (at_this_time_ > kMostAtOnce) report("the clock does not move: something spins");
  now_ = e.time;
  Node& node = *nodes_[e.node];
  if (e.packet == kNone) {
    if (node.wake_ == e.time) {
      node.wake_ = udp::kNever;
      node.on_wake();
    }
    return true;
  }
  ++counters_.delivered;
  node.receive(address_of(e.from, nodes_[e.from]->port()), packets_[e.packet]);
  free_packets_.push_back(e.packet);
  return true;
}

// --- a node --------------------------------------------------------------------------------------

bool Talk::received_all() const {
  for (std::size_t c = 0; c < kChannels; ++c) {
    if (next_in[c] < in.messages[c]) return false;
  }
  return true;
}
bool Talk::sent_all() const {
  std::uint64_t all = 0;
  for (std::uint32_t n : out.messages) all += n;
  return confirmed == all;
}

Node::Node(Network& network, std::size_t index, const udp::Options& options,
           udp::Security* security)
    : network_(network), index_(index), options_(options), security_(security) {
  restart();
}

void Node::restart() {
  const Charge charge(&memory_);
  endpoint_ = std::make_unique<udp::Endpoint>(
      options_, *this, [this] { return network_.random().next() | 1; }, security_);
  const Charge nobody(nullptr);
  talks_.clear();
}

Talk& Node::connect(std::size_t to, const Traffic& out, const Traffic& in) {
  talks_.push_back(std::make_unique<Talk>(*this));
  Talk& talk = *talks_.back();
  talk.client = true;
  talk.peer = to;
  talk.out = out;
  talk.in = in;
  // The greeting tells the server what to send and to expect.
  std::byte greeting[2 * sizeof(Traffic) + 8];
  std::memcpy(greeting, &in, sizeof in);
  std::memcpy(greeting + sizeof in, &out, sizeof out);
  put(std::span(greeting).subspan(2 * sizeof(Traffic)), index_);
  const auto address = Network::address_of(to, network_.node(to).port());
  {
    const Charge charge(&memory_);
    talk.connection = endpoint_->connect(address, greeting, network_.now());
  }
  talk.connection->user = &talk;
  pump();
  return talk;
}

void Node::close(Talk& talk, int err) {
  if (talk.down) return;
  talk.closing = true;
  {
    const Charge charge(&memory_);
    endpoint_->close(*talk.connection, err, network_.now());
  }
  pump();
}

bool Node::busy() const {
  return std::any_of(talks_.begin(), talks_.end(), [](const auto& t) {
    return !t->down && (!t->established || !t->received_all() || !t->sent_all());
  });
}

// Sends what fits into a modest backlog.
void Node::offer(Talk& talk) {
  bool more = false;
  for (std::uint8_t c = 0; c < kChannels; ++c) {
    while (talk.next_out[c] < talk.out.messages[c]) {
      if (talk.connection->queued_bytes(c) > 300'000) {
        more = true;
        break;
      }
      const std::uint64_t index = talk.next_out[c]++;
      const std::size_t bytes = message_bytes(talk.out, c, index);
      std::byte header[kHeaderBytes];
      put(std::span(header), index);
      put(std::span(header).subspan(8), talk.out.seed);
      auto payload = pattern(bytes, pattern_seed(talk.out, c, index));
      udp::Message m{header, payload, index % 2 == 0, true, index};
      if (!m.copy) {
        talk.lent[c].resize(talk.out.messages[c]);
        talk.lent[c][index] = std::move(payload);
        m.payload = talk.lent[c][index];
      }
      const Charge charge(&memory_);
      if (const int err = endpoint_->send(*talk.connection, c, m); err != 0) {
        network_.report("send failed with " + std::to_string(err));
        return;
      }
      if (network_.random().below(8) == 0) {  // the rest at the next look
        more = true;
        break;
      }
    }
  }
  if (more) look_at_ = std::min(look_at_, network_.now() + talk.out.interval);
}

void Node::receive(const SocketAddress& from, std::span<std::byte> packet) {
  {
    const Charge charge(&memory_);
    endpoint_->receive(from, packet, network_.now());
  }
  pump();
}

void Node::on_wake() {
  {
    const Charge charge(&memory_);
    endpoint_->on_timeout(network_.now());
  }
  if (network_.now() >= look_at_) {
    look_at_ = udp::kNever;
    for (auto& t : talks_) {
      if (t->established && !t->down && !t->closing) offer(*t);
    }
  }
  pump();
}

void Node::pump() {
  static std::vector<std::byte> buffer(udp::Endpoint::kTrainBytes + 1000);
  for (int turns = 0;; ++turns) {
    udp::Train train;
    {
      const Charge charge(&memory_);
      train = endpoint_->transmit(buffer, network_.now());
    }
    if (train.bytes == 0) break;
    if (train.segment == 0 || train.bytes > udp::Endpoint::kTrainBytes)
      network_.report("a train of no shape");
    for (std::size_t at = 0; at < train.bytes; at += train.segment) {
      const std::size_t n = std::min(train.segment, train.bytes - at);
      network_.send(index_, train.to, std::span(buffer).subspan(at, n));
    }
    if (turns > 100'000) {
      network_.report("sends without end");
      break;
    }
  }
  most_memory_ = std::max(most_memory_, memory_);
  network_.wake_at(index_, std::min(endpoint_->next_timeout(), look_at_));
}

int Node::on_request(const SocketAddress&, std::span<const std::byte> greeting,
                     std::span<std::byte>, std::size_t*) {
  if (greeting.size() != 2 * sizeof(Traffic) + 8) return EINVAL;
  return refusal_;
}

void Node::on_established(Connection& c, std::span<const std::byte> greeting) {
  const Charge nobody(nullptr);
  if (c.user == nullptr) {
    talks_.push_back(std::make_unique<Talk>(*this));
    Talk& talk = *talks_.back();
    talk.connection = &c;
    std::memcpy(static_cast<void*>(&talk.out), greeting.data(), sizeof(Traffic));
    std::memcpy(static_cast<void*>(&talk.in), greeting.data() + sizeof(Traffic), sizeof(Traffic));
    talk.peer = get(greeting.subspan(2 * sizeof(Traffic)));
    c.user = &talk;
  }
  talk_of(c).established = true;
  offer(talk_of(c));
}

bool Talk::on_fragment(std::uint8_t channel, std::span<const std::byte> header, std::uint32_t total,
                       std::uint32_t offset, std::span<const std::byte> bytes) {
  const Charge nobody(nullptr);
  if (header.size() != kHeaderBytes) {
    node.report("a header of another length");
    return false;
  }
  const std::uint64_t index = get(header);
  if (index % 3 == 0 && total < 100'000 && channel != 3) return false;  // to be kept
  if (first_wrong_byte(bytes, pattern_seed(in, channel, index), offset) != bytes.size()) {
    node.report("a fragment with wrong bytes");
  }
  auto at = std::find_if(placing.begin(), placing.end(),
                         [&](const auto& p) { return p.channel == channel && p.index == index; });
  if (at == placing.end()) {
    placing.push_back({channel, index, {}});
    at = placing.end() - 1;
  }
  std::uint64_t fresh = 0;
  at->placed.for_each_missing(offset, offset + bytes.size(),
                              [&](auto b, auto e) { fresh += e - b; });
  if (fresh != bytes.size()) node.report("bytes of a fragment come twice");
  at->placed.add(offset, offset + bytes.size());
  return true;
}

void Talk::on_message(std::uint8_t channel, std::span<const std::byte> header, std::uint32_t total,
                      std::span<const std::byte> payload) {
  const Charge nobody(nullptr);
  if (down) node.report("a message after the connection's end");
  if (header.size() != kHeaderBytes || get(header.subspan(8)) != in.seed) {
    node.report("a message with a wrong header");
    return;
  }
  const std::uint64_t index = get(header);
  if (index != next_in[channel]) {
    node.report("message " + std::to_string(index) + " of channel " + std::to_string(channel) +
                " came when " + std::to_string(next_in[channel]) + " was due");
    return;
  }
  ++next_in[channel];
  if (total != message_bytes(in, channel, index)) node.report("a message of another length");
  if (!payload.empty() || total == 0) {
    if (payload.size() != total || !is_pattern(payload, pattern_seed(in, channel, index), 0)) {
      node.report("a message with wrong bytes");
    }
    return;
  }
  auto at = std::find_if(placing.begin(), placing.end(),
                         [&](const auto& p) { return p.channel == channel && p.index == index; });
  if (at == placing.end() || at->placed.size() != 1 || !(at->placed[0] == udp::Range{0, total})) {
    node.report("a message was released before all of it was placed");
    return;
  }
  placing.erase(at);
}

void Talk::on_sent(std::uint8_t channel, std::uint64_t token) {
  const Charge nobody(nullptr);
  ++confirmed;
  if (token < lent[channel].size()) std::vector<std::byte>().swap(lent[channel][token]);
}

void Node::on_down(Connection& c, int err) {
  const Charge nobody(nullptr);
  if (c.user == nullptr) return;  // was never established
  Talk& talk = talk_of(c);
  if (talk.down) network_.report("a connection ends twice");
  talk.down = true;
  talk.err = err;
  talk.connection = nullptr;
}

}  // namespace clan::test
