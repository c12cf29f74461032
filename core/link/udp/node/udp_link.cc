// UdpLink: what the engine asks of it. Puts, questions that wait for an answer, and arrivals are in
// udp_link_put.cc, udp_link_questions.cc and udp_link_receive.cc.
#include "link/udp/node/udp_link.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "clan/detail/clock.h"
#include "clan/detail/words.h"
#include "link/udp/node/udp_node.h"

namespace clan::udp {

UdpLink::UdpLink(std::shared_ptr<UdpNode> node, Connection& connection, const Greeting& peer)
    : node_(std::move(node)), connection_(&connection), peer_(peer) {}

// A holder of the pre-shared key counts as our own user: user ids of other hosts mean nothing here.
uid_t UdpLink::remote_uid() const { return node_->owner_.uid; }

// --- sending, under the node's mutex -------------------------------------------------------------

void UdpLink::send(std::uint8_t channel, const LinkHeader& header,
                   std::span<const std::byte> payload, bool copy, bool notify, std::uint64_t token,
                   const std::shared_ptr<nic::PinnedPayload>& kept) {
  if (connection_ == nullptr) return;
  std::array<std::byte, kMostHeader> bytes;
  const std::size_t n = write_link_header(bytes, header);
  if (channel == kUrgent) ++urgent_sent_;
  node_->cork_.add(kWholeFrame + n + payload.size());
  (void)node_->endpoint_.send(*connection_, channel,
                              {std::span(bytes).first(n), payload, copy, notify, token, kept});
}

void UdpLink::send_revoked(std::uint32_t aperture, std::uint32_t generation) {
  send(kUrgent, {.type = LinkMessageType::kRefused,
                 .err = ESTALE,
                 .aperture = aperture,
                 .generation = generation});
}

LinkHeader UdpLink::access(LinkMessageType type, const nic::RemoteHandle& handle,
                           std::uint64_t offset) const {
  return {.type = type,
          .aperture = handle.aperture,
          .generation = handle.generation_wanted,
          .key_image = handle.key_image,
          .offset = offset,
          .after = urgent_sent_};
}

// What this end knows already.
int UdpLink::refusal(const nic::RemoteHandle& handle, std::uint64_t offset, std::uint64_t length,
                     Rights right) {
  if (!alive()) return ECONNRESET;
  if (offset > handle.length || length > handle.length - offset) return ERANGE;
  if (!includes(handle.rights, right)) return EACCES;
  auto it = imported_.find({handle.aperture, handle.generation_wanted});
  return it == imported_.end() ? 0 : it->second.refused;
}

Status UdpLink::check(const nic::RemoteHandle& handle) {
  if (!alive()) return Error{ECONNRESET, "the peer is gone"};
  std::lock_guard lock(node_->mutex_);
  const int err = refusal(handle, 0, 0, Rights::kNone);
  return err == 0 ? Status() : Error{err, "the aperture has been revoked"};
}

void UdpLink::announce_revoked(std::uint32_t aperture, std::uint32_t generation) {
  node_->announce_revoked(shared_from_this(), aperture, generation);
}

Status UdpLink::after_access(const nic::RemoteHandle&, std::uint64_t, std::uint64_t,
                             nic::AccessKind) {
  return Error{EOPNOTSUPP, "nothing is mapped over this link"};
}

Status UdpLink::send_oob(const OobMessage& message) {
  if (!alive()) return Error{ECONNRESET, "the peer is gone"};
  std::lock_guard lock(node_->mutex_);
  if (!alive()) return Error{ECONNRESET, "the peer is gone"};
  node_->send_revocations();
  OobMessage copy = message;
  copy.length = std::min<std::uint32_t>(message.length, kOobPayload);
  const std::size_t fixed = offsetof(OobMessage, payload);
  send(kUrgent, {.type = LinkMessageType::kOob},
       std::as_bytes(std::span(&copy, 1)).first(fixed + copy.length));
  node_->after_call();
  return {};
}

// --- RDMA ----------------------------------------------------------------------------------------

nic::TransferResult UdpLink::transfer(const nic::Transfer& t) {
  using Kind = nic::TransferResult::Kind;
  if (!alive()) return {Kind::kError, ECONNRESET};
  std::lock_guard lock(node_->mutex_);
  const bool write = t.op == RdmaOp::kWrite;
  if (const int err =
          refusal(*t.remote, t.remote_offset, t.length, write ? Rights::kWrite : Rights::kRead);
      err != 0) {
    return {Kind::kError, err};
  }
  if (transfers_ >= kMostTransfers || (!write && t.length > kMostRead)) {
    return {transfers_ >= kMostTransfers ? Kind::kBusy : Kind::kError, EAGAIN};
  }
  node_->send_revocations();
  const std::uint64_t request = next_request_++;
  pending_[request] = {.kind = write ? Pending::Kind::kWrite : Pending::Kind::kRead,
                       .sent = !write,
                       .token = t.token,
                       .local = t.local,
                       .length = t.length};
  ++transfers_;
  LinkHeader h =
      access(write ? LinkMessageType::kWrite : LinkMessageType::kRead, *t.remote, t.remote_offset);
  h.request = request;
  h.length = t.length;
  if (write) {
    send(kBulk, h, {t.local, static_cast<std::size_t>(t.length)}, false, true, request);
  } else {
    send(kBulk, h);
  }
  node_->after_call();
  return {Kind::kPending, 0};
}

// It counts until the peer has answered, as the peer counts it.
void UdpLink::cancel(std::uint64_t token) {
  if (node_->abandoned()) return;
  std::lock_guard lock(node_->mutex_);
  for (auto it = pending_.begin(); it != pending_.end(); ++it) {
    Pending& p = it->second;
    if (!p.is_transfer() || p.cancelled || p.token != token) continue;
    if (connection_ != nullptr && !p.sent) connection_->detach(kBulk, it->first);
    p.cancelled = true;
    p.local = nullptr;
    return;
  }
}

// --- progress, the end ---------------------------------------------------------------------------

void UdpLink::progress() { node_->progress(); }
int UdpLink::sleep(EventCount& fired, std::uint32_t seen, std::uint64_t deadline_ns) {
  return node_->sleep({.word = &fired.news,
                       .seen = seen,
                       .deadline_ns = deadline_ns,
                       .link = this,
                       .count = &fired});
}

void UdpLink::watch(bool on) {
  if (connection_ != nullptr) node_->endpoint_.watch(*connection_, on, monotonic_ns());
}

void UdpLink::wake_sleepers() { node_->wake_sleepers(); }

void UdpLink::shut_down() {
  if (node_->abandoned()) return;
  std::lock_guard lock(node_->mutex_);
  detached_ = true;
  // PAIR udp_link.alive: no up-call follows
  words::store_release(alive_, false);
  pending_.clear();
  transfers_ = 0;
  if (connection_ != nullptr) {
    connection_->detach_all();
    node_->endpoint_.close(*connection_, 0, monotonic_ns());
    node_->after_call();
  }
  node_->announce();
}

void UdpLink::abandon_after_fork() {
  // PAIR udp_link.alive: the child has one thread
  words::store_release(alive_, false);
  node_->abandon_after_fork();
}

// --- what it shows of its path -------------------------------------------------------------------

PathValues UdpLink::path() const {
  PathValues v;
  if (node_->abandoned()) return v;
  std::lock_guard lock(node_->mutex_);
  if (connection_ == nullptr) return v;
  const ConnectionCounters& c = connection_->counters();
  const SocketAddress& peer = connection_->address();
  std::memcpy(v.ip, peer.ip.data(), sizeof v.ip);
  v.port = peer.port;
  v.pid = peer_.pid;
  v.packets = static_cast<std::uint64_t>(node_->io_->path_to(peer));
  v.round_trip_ns = connection_->rtt().smoothed();
  v.least_round_trip_ns = connection_->rtt().least();
  v.packet_bytes = connection_->mtu().current();
  v.window_bytes = connection_->congestion().window();
  v.packets_sent = c.packets_sent;
  v.packets_received = c.packets_received;
  v.packets_lost = c.lost - c.spurious;
  v.timeouts = c.timeouts;
  return v;
}

std::uint64_t UdpLink::packets() const {
  if (node_->abandoned()) return 0;
  std::lock_guard lock(node_->mutex_);
  if (connection_ == nullptr) return 0;
  return connection_->counters().packets_sent + connection_->counters().packets_received;
}

std::string UdpLink::remote_address() const {
  if (node_->abandoned()) return {};
  std::lock_guard lock(node_->mutex_);
  return connection_ == nullptr ? std::string() : to_string(connection_->address());
}

}  // namespace clan::udp
