#include "link/udp/transport/endpoint.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "link/udp/transport/connection_parts.h"

namespace clan::udp {
namespace {

constexpr unsigned kSilent = 2;  ///< probe time-outs in a row after which a peer is called silent

}  // namespace

Endpoint::Endpoint(const Options& options, EndpointSink& sink,
                   std::function<std::uint64_t()> random, Security* security)
    : options_(options),
      sink_(sink),
      random_(std::move(random)),
      security_(security),
      mode_(security == nullptr ? Mode::kOff : security->mode()),
      cookie_key_{random_(), random_()} {}

Connection& Endpoint::add(std::unique_ptr<Connection> connection) {
  Connection& c = *connection;
  c.mode_ = mode_;
  c.random_ = &random_;
  c.ack_guard_.begin(random_());
  by_id_.emplace(c.id_, std::move(connection));
  return c;
}

int Endpoint::send(Connection& c, std::uint8_t channel, const Message& message) {
  if (channel >= kChannels || message.header.size() > kMostHeader ||
      message.payload.size() > kMostPayload) {
    return EINVAL;
  }
  if (c.state_ == Connection::State::kClosing || c.state_ >= Connection::State::kDraining)
    return ENOTCONN;
  c.send(channel, message);
  queue(c);
  return 0;
}

void Endpoint::close(Connection& c, int err, std::uint64_t now) {
  if (c.told_down_) return;
  c.close(err, now);
  touch(c, now);
}

// --- timers: a heap of deadlines -----------------------------------------------------------------

void Endpoint::heap_sift(std::size_t i) {
  auto place = [this](std::size_t at, Connection* c) {
    heap_[at] = c;
    c->heap_index_ = at;
  };
  Connection* c = heap_[i];
  while (i > 0 && heap_[(i - 1) / 2]->heap_time_ > c->heap_time_) {
    place(i, heap_[(i - 1) / 2]);
    i = (i - 1) / 2;
  }
  for (;;) {
    std::size_t child = 2 * i + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1]->heap_time_ < heap_[child]->heap_time_)
      ++child;
    if (heap_[child]->heap_time_ >= c->heap_time_) break;
    place(i, heap_[child]);
    i = child;
  }
  place(i, c);
}

void Endpoint::heap_update(Connection& c, std::uint64_t time) {
  if (c.heap_index_ == ~std::size_t{0}) {
    c.heap_index_ = heap_.size();
    heap_.push_back(&c);
  } else if (c.heap_time_ == time) {
    return;
  }
  c.heap_time_ = time;
  heap_sift(c.heap_index_);
}

void Endpoint::heap_remove(Connection& c) {
  const std::size_t i = std::exchange(c.heap_index_, ~std::size_t{0});
  if (i == ~std::size_t{0}) return;
  Connection* last = heap_.back();
  heap_.pop_back();
  if (last == &c) return;
  heap_[i] = last;
  last->heap_index_ = i;
  heap_sift(i);
}

void Endpoint::queue(Connection& c) {
  if (std::exchange(c.queued_, true)) return;
  turns_.push_back(&c);
}

// After anything that may have changed what a connection waits for.
void Endpoint::touch(Connection& c, std::uint64_t now) {
  if (c.gone()) {
    heap_remove(c);
    gone_.push_back(&c);
    return;
  }
  if (c.wants_to_send(now) || c.challenge_to_send_ ||
      (c.state_ == Connection::State::kHello && now >= c.hello_at_)) {
    queue(c);
  }
  c.note_credit(now);
  heap_update(c, c.next_timeout());
}

// Connections that are gone; nothing points to them afterwards.
void Endpoint::sweep() {
  while (!gone_.empty()) {
    Connection* c = gone_.back();
    gone_.pop_back();
    if (std::find(gone_.begin(), gone_.end(), c) != gone_.end()) continue;
    if (c->queued_) {
      for (std::size_t i = turns_.size(); i > 0; --i) {
        Connection* other = turns_.front();
        turns_.pop_front();
        if (other != c) turns_.push_back(other);
      }
    }
    if (c->handshake_ && c->peer_id_ != 0) --half_open_;  // accepted, never established
    auto it = by_peer_id_.find(c->peer_id_);
    if (it != by_peer_id_.end() && it->second == c) by_peer_id_.erase(it);
    by_id_.erase(c->id_);
  }
}

void Endpoint::on_timeout(std::uint64_t now) {
  const Sweep sweep{*this};
  // All that are due now, each once: one that stays due must not keep the others waiting.
  due_.clear();
  silent_.clear();
  while (!heap_.empty() && heap_[0]->heap_time_ <= now) {
    due_.push_back(heap_[0]);
    heap_remove(*heap_[0]);
  }
  for (Connection* c : due_) {
    if (c->gone()) continue;  // closed by an up-call of one before it
    const unsigned before = c->timeouts_;
    c->on_timeout(now);
    if (c->timeouts_ == kSilent && before < kSilent) silent_.push_back(c->address_);
    touch(*c, now);
  }
}

bool Endpoint::next_silent(SocketAddress* at) {
  if (silent_.empty()) return false;
  *at = silent_.back();
  silent_.pop_back();
  return true;
}

// --- sending -------------------------------------------------------------------------------------

void Endpoint::seal(Connection& c, std::span<std::byte> packet) {
  if (!c.session_) return write_check(packet);
  c.session_->seal(Reader(packet.subspan(16)).number<std::uint64_t>(), packet);
}

bool Endpoint::next_answer(std::span<std::byte> out, Train* train) {
  if (answers_.empty()) return false;
  Answer& a = answers_.front();
  std::copy(a.bytes.begin(), a.bytes.end(), out.begin());
  *train = {a.to, a.bytes.size(), a.bytes.size(), a.from};
  answers_.pop_front();
  return true;
}

void Endpoint::fill_train(Connection& c, std::span<std::byte> out, std::uint64_t now,
                          Train* train) {
  std::size_t limit = kLargestPacket;
  for (std::size_t packets = 0; packets < kTrainPackets; ++packets) {
    const std::size_t room = std::min(limit, out.size() - train->bytes);
    if (room < limit && packets > 0) return;
    const std::size_t bytes = c.build(out.subspan(train->bytes, room), limit, now);
    if (bytes == 0) return;
    seal(c, out.subspan(train->bytes, bytes));
    if (packets == 0) train->segment = limit = bytes;
    train->bytes += bytes;
    if (bytes < limit) return;
  }
}

Train Endpoint::transmit(std::span<std::byte> out, std::uint64_t now) {
  const Sweep sweep{*this};
  Train train;
  // Answers and connections in turn: a flood of strangers must not stop the connections.
  if (!answered_ && next_answer(out, &train)) {
    answered_ = true;
    return train;
  }
  answered_ = false;
  for (std::size_t left = turns_.size(); left > 0; --left) {
    Connection& c = *turns_.front();
    turns_.pop_front();
    c.queued_ = false;
    train.to = c.address_;
    train.from = c.local_;
    if (c.state_ == Connection::State::kHello) {
      train.bytes = train.segment = handshake_packet(c, out, now);
    } else if (const std::size_t n = c.build_challenge(out, now, &train.to); n > 0) {
      seal(c, out.first(n));
      train.bytes = train.segment = n;
    } else {
      fill_train(c, out.first(kTrainBytes), now, &train);
    }
    touch(c, now);
    if (train.bytes > 0) return train;
  }
  next_answer(out, &train);
  return train;
}

void Endpoint::on_too_big(const SocketAddress& to, std::size_t bytes, std::uint64_t now) {
  if (bytes <= kBasePacket) return;
  for (auto& [id, c] : by_id_) {
    if (c->address_ == to) c->on_too_big(bytes, now);
  }
}

void Endpoint::on_refused(const SocketAddress& to, std::uint64_t now) {
  const Sweep sweep{*this};
  for (auto& [id, c] : by_id_) {
    if (!(c->address_ == to)) continue;
    c->on_refused(now);
    touch(*c, now);
  }
}

void Endpoint::watch(Connection& c, bool on, std::uint64_t now) {
  if (!on) {
    --c.watchers_;  // the timer may be early now, once
  } else if (c.watchers_++ == 0 && !c.gone()) {
    touch(c, now);
  }
}

// --- receiving -----------------------------------------------------------------------------------

void Endpoint::receive_data(const SocketAddress& from, std::span<std::byte> packet,
                            std::uint64_t now) {
  const std::size_t tag = mode_ == Mode::kOff ? 0 : kTagBytes;
  if (packet.size() < kDataHeader + tag) return count(counters_.malformed);
  Reader in(packet.subspan(kCommonHeader));
  const auto id = in.number<std::uint64_t>();
  const auto number = in.number<std::uint64_t>();
  // number + 1 is always a number, too
  if (number > kMostNumber) return count(counters_.malformed);
  auto it = by_id_.find(id);
  if (it == by_id_.end()) {
    const bool right = mode_ != Mode::kOff || check_is_right(packet);
    if (right && packet.size() >= kLeastReset) send_reset(from, id, number, now);
    return;
  }
  Connection& c = *it->second;
  if (c.state_ == Connection::State::kHello || number == 0 || c.seen(number))
    return count(c.counters_.duplicates);
  const auto body = packet.subspan(kDataHeader, packet.size() - kDataHeader - tag);
  const bool right = c.session_ ? Reader(packet.subspan(4)).number<std::uint32_t>() == 0 &&
                                      c.session_->open(number, packet)
                                : check_is_right(packet);
  if (!right) return count(counters_.wrong_check);
  if (c.state_ == Connection::State::kAccepted) establish_server(c);
  c.receive(number, body, from, now);
  touch(c, now);
}

void Endpoint::receive(const SocketAddress& from, std::span<std::byte> packet, std::uint64_t now,
                       const SocketAddress& at) {
  const Sweep sweep{*this};
  asked_at_ = at;
  PacketType type;
  Mode mode;
  if (!read_common(packet, &type, &mode)) return count(counters_.malformed);
  if (type == PacketType::kData) {
    if (mode != mode_) return count(counters_.wrong_mode);
    return receive_data(from, packet, now);
  }
  if (!check_is_right(packet)) return count(counters_.wrong_check);
  // The MAC of a handshake was made while the check was 0.
  std::fill_n(packet.begin() + 4, 4, std::byte{0});
  Handshake h;
  if (!read_handshake(packet, &h)) return count(counters_.malformed);
  if (h.mode != mode_) {
    ++counters_.wrong_mode;
    if (h.type == PacketType::kHello) refuse(from, h, EPROTO);
    return;
  }
  switch (h.type) {
    case PacketType::kHello: on_hello(from, h, packet, now); break;
    case PacketType::kRetry: on_retry(h, now); break;
    case PacketType::kAccept: on_accept(from, h, packet, now); break;
    case PacketType::kRefuse: on_refuse(h, packet, now); break;
    case PacketType::kReset: on_reset(h, packet, now); break;
    case PacketType::kData: break;
  }
}

std::uint64_t Endpoint::bytes_left() const {
  std::uint64_t bytes = 0;
  for (const auto& [id, c] : by_id_) {
    bytes += c->under_way();
    for (std::uint8_t channel = 0; channel < kChannels; ++channel)
      bytes += c->queued_bytes(channel);
  }
  return bytes;
}

}  // namespace clan::udp
