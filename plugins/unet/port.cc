#include "port.h"

#include <algorithm>

#include "endpoint.h"

namespace clan::unet::library {
namespace {

constexpr std::size_t kMostWaiting = 4096;  // records for which there was no room

template <typename Record>
bool read(std::span<const std::byte> bytes, Record* record) {
  if (bytes.size() != sizeof *record) return false;
  std::memcpy(static_cast<void*>(record), bytes.data(), sizeof *record);
  return true;
}

}  // namespace

Result<std::shared_ptr<Port>> Port::create(unet_node& node, const std::string& service,
                                           bool shared) {
  auto messages = MessageEndpoint::create(node.context, service);
  if (!messages) return messages.error();
  return std::make_shared<Port>(node, std::move(*messages), shared);
}

std::uint32_t Port::add(Endpoint& endpoint) {
  const auto free = std::find(endpoints_.begin(), endpoints_.end(), nullptr);
  const auto number = static_cast<std::uint32_t>(free - endpoints_.begin());
  if (free == endpoints_.end()) endpoints_.push_back(nullptr);
  endpoints_[number] = &endpoint;
  return number;
}

Port::Peer& Port::peer(PeerIndex index) {
  if (index >= peers_.size()) peers_.resize(index + 1);
  return peers_[index];
}

// --- what arrives --------------------------------------------------------------------------------

void Port::take(const Endpoint& first) {
  constexpr int kMost = 64;
  (void)clear();
  for (int i = 0; i < kMost && !messages.quiet(); ++i) {
    const auto message = messages.peek_fetched();
    if (!message) {
      take_departed();
      if (message.error().err != EAGAIN) return;
      continue;
    }
    const PeerIndex from = message->from;
    const bool makes_sense = !message->offered && arrive(from, message->bytes);
    messages.drop();
    if (!makes_sense) {
      count_hostile();
      messages.disconnect(from);
      leave(from, EPROTO);
    }
    // The line behind a message is on its way to this processor, and nobody waits for it.
    if (first.has_received()) return;
  }
}

void Port::take_departed() {
  PeerIndex gone = 0;
  int reason = 0;
  while (messages.take_departed(&gone, &reason)) leave(gone, reason != 0 ? reason : EPIPE);
}

// All channels with that peer are over.
void Port::leave(PeerIndex index, int reason) {
  std::erase_if(known_, [&](const Known& known) { return known.peer == index; });
  std::erase_if(backlog_, [&](const Waiting& waiting) { return waiting.peer == index; });
  for (Channel* channel : peer(index).ours) {
    if (channel != nullptr && channel->usable())
      channel->endpoint.over(*channel, reason == EPIPE ? 0 : reason);
  }
  peer(index).theirs.clear();
}

bool Port::arrive(PeerIndex from, std::span<const std::byte> record) {
  if (record.size() < sizeof(Head)) return false;
  Peer& peer = this->peer(from);
  switch (static_cast<Kind>(record.front())) {
    case Kind::kData: return arrive_data(peer, record);
    case Kind::kDirect: return arrive_direct(peer, record);
    case Kind::kConnect: return arrive_connect(from, record);
    case Kind::kAccept: return arrive_accept(from, record);
    case Kind::kRefuse: return arrive_refuse(from, record);
    case Kind::kClose: return arrive_close(peer, record);
  }
  return false;
}

bool Port::arrive_data(Peer& peer, std::span<const std::byte> record) {
  Head head;
  std::memcpy(&head, record.data(), sizeof head);
  if (head.number >= peer.theirs.size()) return false;
  const Incoming& in = peer.theirs[head.number];
  if (in.channel != nullptr) [[likely]] {
    in.channel->endpoint.deliver(*in.channel, record.subspan(sizeof head));
  } else if (in.endpoint != nullptr) {
    count(in.endpoint->row().dropped_tag);
  }
  return true;
}

bool Port::arrive_direct(Peer& peer, std::span<const std::byte> record) {
  DirectRecord direct;
  if (!read(record, &direct) || direct.head.number >= peer.theirs.size()) return false;
  const Incoming& in = peer.theirs[direct.head.number];
  if (in.channel != nullptr)
    return in.channel->endpoint.deliver_direct(*in.channel, direct.offset, direct.bytes);
  if (in.endpoint != nullptr) count(in.endpoint->row().dropped_tag);
  return true;
}

Port::Incoming* Port::incoming(Peer& peer, std::uint32_t number) {
  // A new number follows the last one: a peer cannot make the table long by naming one.
  if (number > peer.theirs.size() || number >= kMostChannels) return nullptr;
  if (number == peer.theirs.size()) peer.theirs.emplace_back();
  return peer.theirs[number].channel == nullptr ? &peer.theirs[number] : nullptr;
}

bool Port::arrive_connect(PeerIndex from, std::span<const std::byte> record) {
  ConnectRecord asked;
  if (!read(record, &asked)) return false;
  Incoming* const in = incoming(peer(from), asked.head.number);
  if (in == nullptr) return false;
  Endpoint* const endpoint =
      asked.endpoint < endpoints_.size() ? endpoints_[asked.endpoint] : nullptr;
  Channel* const channel = endpoint == nullptr ? nullptr : endpoint->find(asked.tag);
  *in = {endpoint, nullptr};
  if (channel == nullptr || channel->has_peer() || channel->key != asked.key) {
    RefuseRecord no;
    no.to = asked.head.number;
    no.serial = asked.serial;
    say(from, no);
    return true;
  }
  in->channel = channel;
  channel->peer = from;
  channel->number = number_for(peer(from), *channel);
  channel->state = Channel::State::kOpen;
  channel->area = asked.area;
  AcceptRecord yes;
  yes.head.number = channel->number;
  yes.to = asked.head.number;
  yes.serial = asked.serial;
  yes.area = endpoint->area_cookie();
  say(from, yes);
  return true;
}

// The channel that has asked, unless the program has closed it meanwhile.
Channel* Port::asking(const Peer& peer, std::uint32_t number, std::uint32_t serial) {
  Channel* const channel = number < peer.ours.size() ? peer.ours[number] : nullptr;
  const bool asks = channel != nullptr && channel->state == Channel::State::kConnecting &&
                    channel->serial == serial;
  return asks ? channel : nullptr;
}

bool Port::arrive_accept(PeerIndex from, std::span<const std::byte> record) {
  AcceptRecord yes;
  if (!read(record, &yes)) return false;
  Incoming* const in = incoming(peer(from), yes.head.number);
  if (in == nullptr) return false;
  Channel* const channel = asking(peer(from), yes.to, yes.serial);
  if (channel == nullptr) return true;
  channel->state = Channel::State::kOpen;
  channel->area = yes.area;
  *in = {&channel->endpoint, channel};
  return true;
}

bool Port::arrive_refuse(PeerIndex from, std::span<const std::byte> record) {
  RefuseRecord no;
  if (!read(record, &no)) return false;
  if (Channel* const channel = asking(peer(from), no.to, no.serial))
    channel->endpoint.over(*channel, EACCES);
  return true;
}

bool Port::arrive_close(Peer& peer, std::span<const std::byte> record) {
  Head head;
  if (!read(record, &head) || head.number >= peer.theirs.size()) return false;
  Channel* const channel = std::exchange(peer.theirs[head.number], {}).channel;
  if (channel != nullptr && channel->usable()) channel->endpoint.over(*channel, 0);
  return true;
}

// --- what is said --------------------------------------------------------------------------------

void Port::say_bytes(PeerIndex to, std::span<const std::byte> record) {
  if (clear() && messages.try_send(to, record, {})) return;
  if (messages.has_gone(to)) return;
  if (backlog_.size() < kMostWaiting) {
    backlog_.push_back({to, {record.begin(), record.end()}});
    return;
  }
  messages.disconnect(to);  // it asks for more than it takes
  leave(to, EPROTO);
}

bool Port::flush() {
  while (!backlog_.empty()) {
    const Waiting& first = backlog_.front();
    const Status sent = messages.try_send(first.peer, first.record, {});
    if (!sent && sent.error().err == EAGAIN) return false;
    backlog_.pop_front();
  }
  return true;
}

std::uint32_t Port::number_for(Peer& peer, Channel& channel) {
  const auto free = std::find(peer.ours.begin(), peer.ours.end(), nullptr);
  const auto number = static_cast<std::uint32_t>(free - peer.ours.begin());
  if (free == peer.ours.end()) peer.ours.push_back(nullptr);
  peer.ours[number] = &channel;
  return number;
}

Result<PeerIndex> Port::reach(const Address& address, std::int64_t timeout_ms) {
  for (const Known& known : known_) {
    if (known.address.node == address.node && known.address.endpoint == address.endpoint)
      return known.peer;
  }
  auto peer = messages.connect(address, timeout_ms);
  if (peer) known_.push_back({address, *peer});
  return peer;
}

Result<PeerIndex> Port::reach(const std::string& service, std::int64_t timeout_ms) {
  return messages.connect(service, timeout_ms);
}

Status Port::connect(Channel& channel, PeerIndex to, const ConnectRecord& asked) {
  if (peer(to).ours.size() >= kMostChannels) return Error{ENOSPC, "65536 channels to one peer"};
  channel.state = Channel::State::kConnecting;
  channel.peer = to;
  channel.number = number_for(peer(to), channel);
  channel.serial = ++serial_;
  ConnectRecord record = asked;
  record.head.number = channel.number;
  record.serial = channel.serial;
  say(to, record);
  return {};
}

void Port::close(Channel& channel) {
  if (!channel.has_peer()) return;
  Peer& there = peer(channel.peer);
  there.ours[channel.number] = nullptr;
  for (Incoming& in : there.theirs) {
    if (in.channel == &channel) in.channel = nullptr;
  }
  if (!channel.usable()) return;
  Head head{Kind::kClose, {}, channel.number};
  say(channel.peer, head);
}

}  // namespace clan::unet::library
