// Endpoint: how connections begin and how strangers are answered.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/random.h"
#include "link/udp/transport/connection_parts.h"
#include "link/udp/transport/endpoint.h"

namespace clan::udp {
namespace {

constexpr std::uint64_t kCookieLifeMs = 15'000;
constexpr std::size_t kMostAnswers = 64;
constexpr unsigned kMostResets = 1000;  ///< a second
constexpr std::uint64_t kFirstHelloWait = 20 * kMillisecond;
constexpr std::uint64_t kMostHelloWait = 500 * kMillisecond;
constexpr std::size_t kMostAccept = 1024;

}  // namespace

Parameters Endpoint::parameters() const {
  Parameters p;
  p.packet_window = options_.packet_window;
  p.largest_packet = options_.largest_packet;
  std::copy(std::begin(options_.credit), std::end(options_.credit), std::begin(p.credit));
  return p;
}

// --- the client ----------------------------------------------------------------------------------

Connection* Endpoint::connect(const SocketAddress& to, std::span<const std::byte> greeting,
                              std::uint64_t now) {
  if (greeting.size() > kMostGreeting) return nullptr;
  auto state = std::make_unique<HandshakeState>();
  if (security_ != nullptr) {
    state->share = security_->make_share();
    if (!state->share) return nullptr;
  }
  auto made = std::make_unique<Connection>(sink_, options_, random_(), to, now);
  Handshake h;
  h.type = PacketType::kHello;
  h.mode = mode_;
  h.id = made->id_;
  h.random[0] = random_();
  h.random[1] = random_();
  h.parameters = parameters();
  h.greeting = greeting;
  if (state->share) h.share = state->share->bytes();
  state->packet.resize(kBasePacket);
  if (write_handshake(state->packet, h) == 0) return nullptr;
  state->signed_bytes = h.signed_bytes;
  made->handshake_ = std::move(state);
  Connection& c = add(std::move(made));
  c.deadline_ = now + options_.handshake;
  c.hello_at_ = now;
  c.hello_wait_ = kFirstHelloWait;
  seal_hello(c);
  touch(c, now);
  return &c;
}

void Endpoint::seal_hello(Connection& c) {
  HandshakeState& state = *c.handshake_;
  std::fill_n(state.packet.begin() + 4, 4, std::byte{0});
  if (security_ != nullptr) {
    const Tag tag = security_->mac(std::span(state.packet).first(state.signed_bytes));
    std::memcpy(state.packet.data() + state.signed_bytes, tag.data(), tag.size());
  }
  write_check(state.packet);
}

// HELLO, when it is time to send it (again).
std::size_t Endpoint::handshake_packet(Connection& c, std::span<std::byte> out, std::uint64_t now) {
  if (now < c.hello_at_) return 0;
  c.hello_at_ = now + c.hello_wait_;
  c.hello_wait_ = std::min(2 * c.hello_wait_, kMostHelloWait);
  std::copy(c.handshake_->packet.begin(), c.handshake_->packet.end(), out.begin());
  return c.handshake_->packet.size();
}

Connection* Endpoint::in_hello(std::uint64_t id) {
  auto it = by_id_.find(id);
  return it != by_id_.end() && it->second->state_ == Connection::State::kHello ? it->second.get()
                                                                               : nullptr;
}

bool Endpoint::mac_is_right(const Handshake& h, std::span<const std::byte> packet) {
  return security_ == nullptr || same_tag(security_->mac(packet.first(h.signed_bytes)), h.mac);
}

void Endpoint::on_retry(const Handshake& h, std::uint64_t now) {
  Connection* c = in_hello(h.to);
  if (c == nullptr) return;
  Writer cookie(std::span(c->handshake_->packet).subspan(kCookieAt));
  cookie.number(h.cookie.issued_ms);
  cookie.number(h.cookie.mac);
  seal_hello(*c);
  // At once the first time; forged ones must not make us send more than our timer would.
  if (!c->handshake_->cookie_seen) {
    c->handshake_->cookie_seen = true;
    c->hello_at_ = now;
  }
  touch(*c, now);
}

bool Endpoint::has_answered(const Connection& c) {
  return c.handshake_ != nullptr && c.handshake_->cookie_seen;
}

void Endpoint::on_accept(const SocketAddress& from, const Handshake& h,
                         std::span<const std::byte> packet, std::uint64_t now) {
  Connection* c = in_hello(h.to);
  if (c == nullptr || h.id == 0) return;
  HandshakeState& state = *c->handshake_;
  if (security_ != nullptr) {
    // A RETRY may have brought another cookie since: the keys do not cover it.
    std::array<std::byte, kBasePacket> hello;
    std::copy(state.packet.begin(), state.packet.end(), hello.begin());
    std::fill_n(hello.begin() + 4, 4, std::byte{0});
    std::fill_n(hello.begin() + kCookieAt, kCookieBytes, std::byte{0});
    auto session =
        security_->agree(*state.share, h.share, true, std::span(hello).first(state.signed_bytes),
                         packet.first(h.signed_bytes));
    if (!session || !same_tag(session->accept_mac(), h.mac)) return count(counters_.wrong_check);
    c->session_ = std::move(session);
  }
  auto finished = std::move(c->handshake_);
  // Mostly where we asked, but a host that does not know that address answers by its routes. A key
  // has checked the packet; without one, a sender that knows our HELLO's random id is on the path.
  c->address_ = from;
  c->establish(h.id, h.parameters, now);
  by_peer_id_[h.id] = c;
  c->state_ = Connection::State::kEstablished;
  c->ping_ = true;  // the server learns by our first packet that we are there
  sink_.on_established(*c, h.greeting);
  touch(*c, now);
}

void Endpoint::on_refuse(const Handshake& h, std::span<const std::byte> packet, std::uint64_t now) {
  Connection* c = in_hello(h.to);
  if (c == nullptr) return;
  if (!mac_is_right(h, packet)) return count(counters_.wrong_check);
  c->end(h.err == 0 ? ECONNREFUSED : static_cast<int>(h.err));
  touch(*c, now);
}

// --- the server ----------------------------------------------------------------------------------

Cookie Endpoint::make_cookie(const SocketAddress& from, const Handshake& hello,
                             std::uint64_t now_ms) const {
  std::byte said[16 + 2 + 4 + 8 + 8];
  Writer w(said);
  for (std::uint8_t b : from.ip) w.number(b);
  w.number(from.port);
  w.number(from.scope);
  w.number(hello.id);
  w.number(now_ms);
  return {now_ms, siphash(cookie_key_[0], cookie_key_[1], said)};
}

bool Endpoint::cookie_is_right(const SocketAddress& from, const Handshake& hello,
                               std::uint64_t now) const {
  const std::uint64_t now_ms = now / kMillisecond;
  if (hello.cookie.issued_ms > now_ms || now_ms - hello.cookie.issued_ms > kCookieLifeMs)
    return false;
  return make_cookie(from, hello, hello.cookie.issued_ms).mac == hello.cookie.mac;
}

// A packet of no connection, from the address that was asked: firewalls know no other. Null, and
// dropped, when there are many: it will be asked for again.
Endpoint::Answer* Endpoint::new_answer(const SocketAddress& to) {
  if (answers_.size() >= kMostAnswers) return nullptr;
  Answer& a = answers_.push_back();
  a.to = to;
  a.from = asked_at_;
  return &a;
}

void Endpoint::answer(const SocketAddress& to, Handshake& h) {
  Answer* made = new_answer(to);
  if (made == nullptr) return;
  Answer& a = *made;
  a.bytes.resize(kRefuseBytes + kTagBytes + 64);
  a.bytes.resize(write_handshake(a.bytes, h));
  if (h.mode != Mode::kOff && h.type != PacketType::kRetry && security_ != nullptr) {
    const Tag tag = security_->mac(std::span(a.bytes).first(h.signed_bytes));
    std::memcpy(a.bytes.data() + h.signed_bytes, tag.data(), tag.size());
  }
  write_check(a.bytes);
}

void Endpoint::refuse(const SocketAddress& from, const Handshake& hello, int err) {
  Handshake h;
  h.type = PacketType::kRefuse;
  h.mode = hello.mode;
  h.to = hello.id;
  h.err = static_cast<std::uint32_t>(err);
  answer(from, h);
}

void Endpoint::on_hello(const SocketAddress& from, const Handshake& h, std::span<std::byte> packet,
                        std::uint64_t now) {
  if (h.id == 0) return count(counters_.malformed);
  if (!cookie_is_right(from, h, now)) {
    if (h.cookie.mac != 0) ++counters_.bad_cookies;
    ++counters_.retries;
    Handshake retry;
    retry.type = PacketType::kRetry;
    retry.mode = mode_;
    retry.to = h.id;
    retry.cookie = make_cookie(from, h, now / kMillisecond);
    answer(from, retry);
    return;
  }
  if (!mac_is_right(h, packet)) return count(counters_.wrong_check);
  auto known = by_peer_id_.find(h.id);
  if (known != by_peer_id_.end()) {  // our ACCEPT was lost or is late
    Connection& c = *known->second;
    if (c.state_ != Connection::State::kAccepted || !(c.address_ == from)) return;
    if (Answer* a = new_answer(from))
      a->bytes.assign(c.handshake_->packet.begin(), c.handshake_->packet.end());
    return;
  }
  accept(from, h, packet, now);
}

void Endpoint::accept(const SocketAddress& from, const Handshake& h, std::span<std::byte> packet,
                      std::uint64_t now) {
  if (half_open_ >= options_.most_half_open || by_id_.size() >= options_.most_connections)
    return refuse(from, h, EAGAIN);
  std::byte greeting[kMostGreeting];
  std::size_t greeting_bytes = 0;
  if (const int err = sink_.on_request(from, h.greeting, greeting, &greeting_bytes); err != 0)
    return refuse(from, h, err);
  auto state = std::make_unique<HandshakeState>();
  Handshake reply;
  reply.type = PacketType::kAccept;
  reply.mode = mode_;
  reply.to = h.id;
  reply.id = random_();
  reply.random[0] = random_();
  reply.random[1] = random_();
  reply.parameters = parameters();
  reply.greeting = {greeting, std::min(greeting_bytes, sizeof greeting)};
  std::unique_ptr<KeyShare> share;
  if (security_ != nullptr) {
    share = security_->make_share();
    if (!share) return;
    reply.share = share->bytes();
  }
  state->packet.resize(kMostAccept);
  state->packet.resize(write_handshake(state->packet, reply));
  state->greeting.assign(h.greeting.begin(), h.greeting.end());
  auto made = std::make_unique<Connection>(sink_, options_, reply.id, from, now);
  if (security_ != nullptr) {
    std::fill_n(packet.begin() + kCookieAt, kCookieBytes, std::byte{0});  // as the client does
    made->session_ = security_->agree(*share, h.share, false, packet.first(h.signed_bytes),
                                      std::span(state->packet).first(reply.signed_bytes));
    if (!made->session_) return;
    const Tag tag = made->session_->accept_mac();
    std::memcpy(state->packet.data() + reply.signed_bytes, tag.data(), tag.size());
  }
  write_check(state->packet);
  made->handshake_ = std::move(state);
  made->state_ = Connection::State::kAccepted;
  made->deadline_ = now + options_.half_open;
  made->local_ = asked_at_;
  made->establish(h.id, h.parameters, now);
  Connection& c = add(std::move(made));
  by_peer_id_[h.id] = &c;
  ++half_open_;
  if (Answer* a = new_answer(from))
    a->bytes.assign(c.handshake_->packet.begin(), c.handshake_->packet.end());
  touch(c, now);
}

// The client's first packet has passed its check.
void Endpoint::establish_server(Connection& c) {
  c.state_ = Connection::State::kEstablished;
  --half_open_;
  auto finished = std::move(c.handshake_);
  sink_.on_established(c, finished->greeting);
}

// --- strangers -----------------------------------------------------------------------------------

void Endpoint::send_reset(const SocketAddress& from, std::uint64_t id, std::uint64_t number,
                          std::uint64_t now) {
  const std::uint64_t second = now / kSecond;
  if (second != reset_second_) {
    reset_second_ = second;
    resets_this_second_ = 0;
  }
  if (resets_this_second_ >= kMostResets) return;
  ++resets_this_second_;
  Handshake h;
  h.type = PacketType::kReset;
  h.mode = mode_;
  h.to = id;
  h.number = number;
  answer(from, h);
}

void Endpoint::on_reset(const Handshake& h, std::span<const std::byte> packet, std::uint64_t now) {
  auto it = by_peer_id_.find(h.to);
  if (it == by_peer_id_.end()) return;
  if (!mac_is_right(h, packet)) return count(counters_.wrong_check);
  Connection& c = *it->second;
  if (c.state_ == Connection::State::kAccepted) return;
  ++counters_.resets_taken;
  c.on_reset(h.number, now);
  touch(c, now);
}

}  // namespace clan::udp
