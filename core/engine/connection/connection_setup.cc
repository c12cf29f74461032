// Connection: set-up, on both sides.
#include <algorithm>
#include <bit>
#include <cerrno>

#include "base/wait_call.h"
#include "clan/detail/log.h"
#include "engine/connection/connection.h"

namespace clan::engine {
namespace {

// What a refused connect() tells its caller.
Error refusal(int err) {
  switch (err) {
    case ECONNREFUSED:
      return {
          err,
          "the peer refused the connection: its listener is gone, or its backlog full (try again)"};
    case ECONNRESET: return {err, "the peer went away while it was asked to connect"};
    case EPROTOTYPE:
      return {err,
              "a stream and a message endpoint do not connect: use what the service is made of"};
    case EACCES:
      return {err, "the peer's policy refuses this user id (see ContextOptions::allow_uids)"};
    case EMFILE:
    case ENOBUFS:
      return {err, "the peer has too many open files: raise its limit (ulimit -n) and try again"};
    default: return {err, "the peer refused the connection"};
  }
}

// A lost packet blocks what is behind it for a round trip, and credit takes another: between hosts
// a ring has to hold several round trips.
std::uint64_t ring_bytes_for(ContextCore& context, const nic::Link& link) {
  constexpr std::uint64_t kFarTimes = 4;
  const std::uint64_t bytes = context.options().ring_bytes;
  const bool far = !link.capabilities().mapped && context.network() != nullptr;
  return far ? std::min(bytes * kFarTimes, kMostRingBytes) : bytes;
}

}  // namespace

std::shared_ptr<Connection> Connection::make(std::shared_ptr<ContextCore> context,
                                             std::shared_ptr<nic::Link> link, nic::Nic& nic) {
  std::shared_ptr<Connection> made(new Connection(std::move(context), std::move(link), nic));
  Connection* const connection = made.get();
  return {connection, [made = std::move(made)](Connection* c) mutable {
            c->close();
            made.reset();
          }};
}

Status Connection::prepare() {
  const std::uint64_t ring_bytes = ring_bytes_for(*context_, *link_);
  arena_ = context_->links().arena(link_.get());
  auto region = arena_->allocate(kRegionRing + ring_bytes);
  if (!region) return region.error();
  region_ = *region;
  in_ring_.lines = ring_bytes / kCacheLine;
  in_memory_ = region_.data() + kRegionRing;
  auto cookie = nic_.export_aperture(
      {region_.data(), kRegionRing + ring_bytes, Rights::kReadWrite, region_.block});
  if (!cookie) return cookie.error();
  region_cookie_ = *cookie;
  auto ring = nic_.add_tripwire(
      {cookie->aperture, kRegionRing, ring_bytes, shm::kTripOnWrite, shm::kMaxEventQueues, 0});
  if (!ring) return ring.error();
  ring_tripwire_ = *ring;
  auto credit = nic_.add_tripwire(
      {cookie->aperture, 0, kRegionRing, shm::kTripOnWrite, shm::kMaxEventQueues, 0});
  if (!credit) return credit.error();
  credit_tripwire_ = *credit;
  auto endpoint = context_->add_endpoint(weak_from_this());
  if (!endpoint) return endpoint.error();
  endpoint_ = *endpoint;
  return link_->grant(region_cookie_);
}

ConnectRecord Connection::describe(ConnectionKind kind, const Address& from) {
  return {.region = region_cookie_,
          .ring_lines = static_cast<std::uint32_t>(in_ring_.lines),
          .kind = kind,
          .from = from,
          .can_copy = link_->capabilities().direct_copy ? 1u : 0u};
}

Status Connection::open_remote(const ConnectRecord& record) {
  if (record.ring_version != shm::kRingVersion) {
    return Error{EPROTO, "the peer runs another version of CLAN: install the same on both sides"};
  }
  if (!std::has_single_bit(record.ring_lines) || record.ring_lines < shm::kMinRingLines ||
      record.ring_lines > kMostRingBytes / kCacheLine ||
      record.region.length != kRegionRing + std::uint64_t{record.ring_lines} * kCacheLine) {
    return Error{EPROTO, "the peer offers a ring of an impossible size"};
  }
  auto handle = link_->import(record.region, false);
  if (!handle && handle.error().err == EAGAIN) {  // it was sent before; we could not take it
    return Error{ENOBUFS,
                 "the peer's memory is not mapped here: too many open files, or no address space"};
  }
  if (!handle) return handle.error();
  remote_ = *handle;
  remote_imported_ = true;
  // We store into it, by atomic operations, too: no page fault, and no word across two lines.
  if (!includes(handle->rights, Rights::kWrite) ||
      reinterpret_cast<std::uintptr_t>(handle->mapped) % kCacheLine != 0) {
    return Error{EPROTO, "the peer offers a ring that cannot be written"};
  }
  out_ring_.lines = record.ring_lines;
  peer_can_copy_ = record.can_copy == 1;
  // Not touched before it is used, nor further than that.
  if (remote_.mapped == nullptr) add_staging();
  return {};
}

Result<std::shared_ptr<Connection>> Connection::ask(std::shared_ptr<ContextCore> context,
                                                    std::shared_ptr<nic::Link> link,
                                                    std::uint32_t remote_endpoint,
                                                    ConnectionKind kind, Address from) {
  nic::Nic* nic = context->lane(link->remote_uid());
  if (nic == nullptr) return Error{EACCES, "policy forbids this user id"};
  auto c = make(context, link, *nic);
  if (auto s = c->prepare(); !s) return s.error();
  c->remote_endpoint_ = remote_endpoint;
  c->remote_address_ = {link->remote_node(), remote_endpoint,
                        static_cast<std::uint32_t>(link->remote_uid())};
  OobMessage message{.to = remote_endpoint, .from = c->endpoint_, .type = kOobConnect};
  put_payload(message, c->describe(kind, from));
  c->exposed_ = true;
  if (auto s = link->send_oob(message); !s) {
    c->exposed_ = false;
    return s.error();
  }
  return c;
}

Status Connection::answer(std::weak_ptr<AnswerSink> asker) {
  std::unique_lock lock(mutex_);
  if (!answer_known_) {
    asker_ = std::move(asker);
    return Error{EAGAIN, "the peer has not answered yet"};
  }
  const int err = answer_err_;
  lock.unlock();
  if (err != 0) {
    const Error refused = refusal(err);
    const std::uint32_t endpoint = remote_endpoint_;
    close();
    if (refused.err == ECONNREFUSED) context_->links().forget(*link_, endpoint);
    CLAN_INFO("process %d: %s", static_cast<int>(link_->remote_pid()), refused.message().c_str());
    return refused;
  }
  CLAN_DEBUG("connected to process %d", static_cast<int>(link_->remote_pid()));
  count(context_->counters().connections_opened);
  return {};
}

Result<std::shared_ptr<Connection>> Connection::connect(std::shared_ptr<ContextCore> context,
                                                        std::shared_ptr<nic::Link> link,
                                                        std::uint32_t remote_endpoint,
                                                        ConnectionKind kind, Address from,
                                                        std::uint64_t deadline_ns) {
  auto asked = ask(context, std::move(link), remote_endpoint, kind, from);
  if (!asked) return asked;
  const std::shared_ptr<Connection>& c = *asked;
  std::unique_lock lock(c->mutex_);
  const std::uint64_t give_up = std::min(deadline_ns, monotonic_ns() + kAcceptTimeoutNs);
  const bool answered =
      sys::wait_until(c->answered_, lock, give_up, [&] { return c->answer_known_; });
  lock.unlock();
  if (!answered) {
    c->close();
    return Error{ETIMEDOUT, "the peer did not answer the connection request"};
  }
  if (auto s = c->answer({}); !s) return s.error();
  return asked;
}

Result<std::shared_ptr<Connection>> Connection::connect_service(
    std::shared_ptr<ContextCore> context, const std::string& service, uid_t uid,
    ConnectionKind kind, Address from, std::uint64_t deadline_ns) {
  for (bool again = false;; again = true) {
    std::uint32_t endpoint = 0;
    const bool remembered =
        context->links().known(service_name(uid, service), &endpoint) != nullptr;
    auto link = context->link_to_service(service, uid, deadline_ns, &endpoint);
    if (!link) return link.error();
    auto c = connect(context, *link, endpoint, kind, from, deadline_ns);
    if (c.ok() || again || !remembered) return c;
    // A name that we asked for long ago: its owner may have died, or offer another endpoint now.
    if (c.error().err != ECONNREFUSED && c.error().err != ECONNRESET) return c;
    context->links().forget(**link, endpoint);
  }
}

Result<std::shared_ptr<Connection>> Connection::accept(std::shared_ptr<ContextCore> context,
                                                       std::shared_ptr<nic::Link> link,
                                                       const OobMessage& message,
                                                       ConnectionKind kind) {
  ConnectRecord record;
  if (!get_payload(message, &record)) return Error{EPROTO, "malformed connection request"};
  if (record.kind != kind)
    return Error{EPROTOTYPE, "a stream and a message endpoint do not connect"};
  nic::Nic* nic = context->lane(link->remote_uid());
  if (nic == nullptr) return Error{EACCES, "policy forbids this user id"};
  auto c = make(context, link, *nic);
  c->remote_endpoint_ = message.from;
  // Which of its endpoints it is, it says itself; which node, and whose, the link knows.
  c->remote_address_ = {link->remote_node(), record.from.endpoint,
                        static_cast<std::uint32_t>(link->remote_uid())};
  if (auto s = c->prepare(); !s) return s.error();
  if (auto s = c->open_remote(record); !s) return s.error();
  c->answer_known_ = true;
  OobMessage answer{.to = message.from, .from = c->endpoint_, .type = kOobAccept};
  put_payload(answer, c->describe(record.kind, {}));
  if (auto s = link->send_oob(answer); !s) return s.error();
  CLAN_DEBUG("connection of process %d accepted", static_cast<int>(link->remote_pid()));
  c->exposed_ = true;
  count(context->counters().connections_opened);
  return c;
}

void Connection::refuse(nic::Link& link, const OobMessage& message, int err) {
  CLAN_INFO("connection of process %d refused: %s", static_cast<int>(link.remote_pid()),
            std::strerror(err));
  OobMessage answer{.to = message.from, .type = kOobRefuse};
  put_payload(answer, err);
  (void)link.send_oob(answer);
}

void Connection::on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) {
  if (link != link_) return;  // another peer guessed our endpoint number
  if (message.type == kOobClose) {
    int reason = 0;
    get_payload(message, &reason);
    peer_left(reason != 0 ? ECONNRESET : 0, true);
    tell_asker();
    return;
  }
  if (message.type == kOobReset) return peer_left(ECONNRESET, false);
  if (message.type == kOobAsk) return;
  std::unique_lock lock(mutex_);
  if (closed_here_) {  // too late: nobody waits for the answer any more
    lock.unlock();
    if (message.type == kOobAccept) tell_end(kOobClose, message.from, 0);
    if (message.type == kOobRefuse) peer_left(ECONNREFUSED, true);
    return;
  }
  if (answer_known_) return;
  if (message.type == kOobAccept) {
    ConnectRecord record;
    int err = EPROTO;
    if (get_payload(message, &record)) {
      remote_endpoint_ = message.from;
      Status opened = open_remote(record);
      err = opened ? 0 : opened.error().err;
    }
    take_answer(err);
  } else if (message.type == kOobRefuse) {
    int err = 0;
    get_payload(message, &err);
    exposed_ = false;  // it keeps none of our memory
    take_answer(err > 0 ? err : ECONNREFUSED);
  }
  lock.unlock();
  tell_asker();
}

// Under the mutex; the first answer counts.
void Connection::take_answer(int err) {
  if (std::exchange(answer_known_, true)) return;
  answer_err_ = err;
  answered_.notify_all();
}

void Connection::tell_asker() {
  std::shared_ptr<AnswerSink> asker;
  {
    std::lock_guard lock(mutex_);
    if (!answer_known_) return;
    asker = asker_.lock();
    asker_.reset();
  }
  if (asker) asker->on_answer();
}

void Connection::on_link_down(const std::shared_ptr<nic::Link>& link) {
  if (link != link_) return;
  {
    std::lock_guard lock(mutex_);
    take_answer(ECONNREFUSED);
  }
  peer_left(ECONNRESET, true);
  tell_asker();
}

}  // namespace clan::engine
