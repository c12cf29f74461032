#include "engine/connection.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/futex.h"
#include "clan/log.h"

namespace clan::engine {
namespace {

template <typename T>
void put_payload(OobMessage& message, const T& value) {
  static_assert(sizeof(T) <= kOobPayload);
  message.length = sizeof value;
  std::memcpy(message.payload.data(), &value, sizeof value);
}

template <typename T>
bool get_payload(const OobMessage& message, T* value) {
  if (message.length != sizeof *value) return false;
  std::memcpy(value, message.payload.data(), sizeof *value);
  return true;
}

// What a refused connect() tells its caller.
Error refusal(int err) {
  switch (err) {
    case ECONNREFUSED:
      return {err, "the peer refused the connection: its listener is gone, or its backlog full (try again)"};
    case ECONNRESET:
      return {err, "the peer went away while it was asked to connect"};
    case EPROTOTYPE:
      return {err, "a stream and a message endpoint do not connect: use what the service is made of"};
    case EACCES:
      return {err, "the peer's policy refuses this user id (see ContextOptions::allow_uids)"};
    case EMFILE:
    case ENOBUFS:
      return {err, "the peer has too many open files: raise its limit (ulimit -n) and try again"};
    default:
      return {err, "the peer refused the connection"};
  }
}

}  // namespace

Connection::Connection(std::shared_ptr<ContextCore> context, std::shared_ptr<nic::Link> link,
                       nic::Nic& nic)
    : context_(std::move(context)),
      link_(std::move(link)),
      nic_(nic),
      read_waiter_(context_->options().wait),
      write_waiter_(context_->options().wait) {}

// --- set-up ----------------------------------------------------------------------------------------

Status Connection::prepare() {
  const std::uint64_t ring_bytes = context_->options().ring_bytes;
  arena_ = context_->arena(link_.get());
  auto region = arena_->allocate(kRegionRing + ring_bytes);
  if (!region) return region.error();
  region_ = *region;
  in_geometry_.lines = ring_bytes / kCacheLine;
  in_ring_ = region_.data() + kRegionRing;
  auto cookie = nic_.export_aperture(
      {region_.data(), kRegionRing + ring_bytes, Rights::kReadWrite, region_.block});
  if (!cookie) return cookie.error();
  region_cookie_ = *cookie;
  auto ring = nic_.add_tripwire({cookie->aperture, kRegionRing, ring_bytes, shm::kTripOnWrite,
                                 shm::kMaxEventQueues, 0});
  if (!ring) return ring.error();
  ring_tripwire_ = *ring;
  auto credit = nic_.add_tripwire({cookie->aperture, 0, kRegionRing, shm::kTripOnWrite,
                                   shm::kMaxEventQueues, 0});
  if (!credit) return credit.error();
  credit_tripwire_ = *credit;
  auto endpoint = context_->add_endpoint(weak_from_this());
  if (!endpoint) return endpoint.error();
  endpoint_ = *endpoint;
  return link_->grant(region_cookie_);
}

ConnectRecord Connection::describe(ConnectionKind kind, const Address& from) {
  ConnectRecord record;
  record.region = region_cookie_;
  record.ring_lines = static_cast<std::uint32_t>(in_geometry_.lines);
  record.kind = kind;
  record.from = from;
  record.can_copy = link_->capabilities().direct_copy ? 1 : 0;
  return record;
}

Status Connection::open_remote(const ConnectRecord& record) {
  if (!std::has_single_bit(record.ring_lines) || record.ring_lines < shm::kMinRingLines ||
      record.region.length != kRegionRing + std::uint64_t{record.ring_lines} * kCacheLine) {
    return Error{EPROTO, "the peer offers a ring of an impossible size"};
  }
  auto handle = link_->import(record.region, false);
  if (!handle && handle.error().err == EAGAIN) {  // it was sent before; we could not take it
    return Error{ENOBUFS, "the peer's memory is not mapped here: too many open files, or no address space"};
  }
  if (!handle) return handle.error();
  remote_ = *handle;
  remote_imported_ = true;
  out_geometry_.lines = record.ring_lines;
  peer_can_copy_ = record.can_copy == 1;
  if (remote_.mapped == nullptr) staging_.resize(out_geometry_.max_payload() + kCacheLine);
  return {};
}

Result<std::shared_ptr<Connection>> Connection::ask(std::shared_ptr<ContextCore> context,
                                                    std::shared_ptr<nic::Link> link,
                                                    std::uint32_t remote_endpoint, ConnectionKind kind,
                                                    Address from) {
  nic::Nic* nic = context->lane(link->remote_uid());
  if (nic == nullptr) return Error{EACCES, "policy forbids this user id"};
  std::shared_ptr<Connection> c(new Connection(context, link, *nic));
  if (auto s = c->prepare(); !s) return s.error();
  c->remote_endpoint_ = remote_endpoint;
  OobMessage message;
  message.to = remote_endpoint;
  message.from = c->endpoint_;
  message.type = kOobConnect;
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
    if (refused.err == ECONNREFUSED) context_->forget_service(*link_, endpoint);
    CLAN_INFO("process %d: %s", static_cast<int>(link_->remote_pid()), refused.message().c_str());
    return refused;
  }
  CLAN_DEBUG("connected to process %d", static_cast<int>(link_->remote_pid()));
  count(context_->counters().connections_opened);
  return {};
}

Result<std::shared_ptr<Connection>> Connection::connect(std::shared_ptr<ContextCore> context,
                                                        std::shared_ptr<nic::Link> link,
                                                        std::uint32_t remote_endpoint, ConnectionKind kind,
                                                        Address from, std::uint64_t deadline_ns) {
  auto asked = ask(context, std::move(link), remote_endpoint, kind, from);
  if (!asked) return asked;
  const std::shared_ptr<Connection>& c = *asked;
  std::unique_lock lock(c->mutex_);
  const std::uint64_t give_up = std::min(deadline_ns, monotonic_ns() + kAcceptTimeoutNs);
  while (!c->answer_known_) {
    const std::uint64_t now = monotonic_ns();
    if (now >= give_up) {
      lock.unlock();
      c->close();
      return Error{ETIMEDOUT, "the peer did not answer the connection request"};
    }
    c->answered_.wait_for(lock, std::chrono::nanoseconds(give_up - now));
  }
  lock.unlock();
  if (auto s = c->answer({}); !s) return s.error();
  return asked;
}

Result<std::shared_ptr<Connection>> Connection::connect_service(std::shared_ptr<ContextCore> context,
                                                                const std::string& service, uid_t uid,
                                                                ConnectionKind kind, Address from,
                                                                std::uint64_t deadline_ns,
                                                                Address* found) {
  for (bool again = false;; again = true) {
    bool remembered = false;
    std::uint32_t endpoint = 0;
    auto link = context->link_to_service(service, uid, deadline_ns, &endpoint, &remembered);
    if (!link) return link.error();
    if (found != nullptr) *found = {(*link)->remote_node(), endpoint, static_cast<std::uint32_t>(uid)};
    auto c = connect(context, *link, endpoint, kind, from, deadline_ns);
    if (c.ok() || again || !remembered) return c;
    // A name that we asked for long ago: its owner may have died, or offer another endpoint now.
    if (c.error().err != ECONNREFUSED && c.error().err != ECONNRESET) return c;
    context->forget_service(**link, endpoint);
  }
}

Result<std::shared_ptr<Connection>> Connection::accept(std::shared_ptr<ContextCore> context,
                                                       std::shared_ptr<nic::Link> link,
                                                       const OobMessage& message,
                                                       ConnectionKind kind) {
  ConnectRecord record;
  if (!get_payload(message, &record)) return Error{EPROTO, "malformed connection request"};
  if (record.kind != kind) return Error{EPROTOTYPE, "a stream and a message endpoint do not connect"};
  nic::Nic* nic = context->lane(link->remote_uid());
  if (nic == nullptr) return Error{EACCES, "policy forbids this user id"};
  std::shared_ptr<Connection> c(new Connection(context, link, *nic));
  c->remote_endpoint_ = message.from;
  c->remote_address_ = record.from;
  if (auto s = c->prepare(); !s) return s.error();
  if (auto s = c->open_remote(record); !s) return s.error();
  c->answer_known_ = true;
  OobMessage answer;
  answer.to = message.from;
  answer.from = c->endpoint_;
  answer.type = kOobAccept;
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
  OobMessage answer;
  answer.to = message.from;
  answer.type = kOobRefuse;
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
  if (message.type == kOobReset) {
    peer_left(ECONNRESET, false);
    return;
  }
  std::unique_lock lock(mutex_);
  if (answer_known_) return;
  if (message.type == kOobAccept) {
    ConnectRecord record;
    answer_err_ = EPROTO;
    if (get_payload(message, &record)) {
      remote_endpoint_ = message.from;
      Status opened = open_remote(record);
      answer_err_ = opened ? 0 : opened.error().err;
    }
    answer_known_ = true;
  } else if (message.type == kOobRefuse) {
    answer_err_ = ECONNREFUSED;
    get_payload(message, &answer_err_);
    if (answer_err_ <= 0) answer_err_ = ECONNREFUSED;
    answer_known_ = true;
    exposed_ = false;  // it keeps nothing of ours
  }
  answered_.notify_all();
  lock.unlock();
  tell_asker();
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
    if (!answer_known_) {
      answer_known_ = true;
      answer_err_ = ECONNREFUSED;
      answered_.notify_all();
    }
  }
  peer_left(ECONNRESET, true);
  tell_asker();
}

// --- tear-down -------------------------------------------------------------------------------------

void Connection::peer_left(int reason, bool done) {
  bool news = false;
  std::shared_ptr<ClosedConnection> remains;
  {
    std::lock_guard lock(mutex_);
    news = !peer_gone_.load(std::memory_order_relaxed);
    if (news) {
      reset_reason_.store(reason, std::memory_order_relaxed);
      // PAIR connection.peer_gone: what the peer wrote before is visible to peer_gone() and peek()
      peer_gone_.store(true, std::memory_order_release);
      // Once we have closed, nobody is left to be surprised by its end.
      if (reason != 0 && !closed_.load(std::memory_order_relaxed)) {
        count(context_->counters().connections_reset);
      }
    }
    if (done) {
      peer_done_ = true;
      remains = remains_;
      if (!answer_known_) {
        answer_known_ = true;
        answer_err_ = ECONNRESET;
        answered_.notify_all();
      }
    }
  }
  if (news && !closed_.load(std::memory_order_relaxed)) {
    if (reason == ECONNRESET) {
      CLAN_INFO("process %d died or gave up a connection with us", static_cast<int>(link_->remote_pid()));
    } else if (reason == 0) {
      CLAN_DEBUG("process %d closed a connection with us", static_cast<int>(link_->remote_pid()));
    }
  }
  if (news) wake_local();
  if (remains) remains->release();
}

// Fires our own tripwires as if the peer had written: sleepers look again, event queues hear of it.
void Connection::wake_local() {
  for (std::uint32_t t : {ring_tripwire_, credit_tripwire_}) {
    if (t == shm::kNoTripwire) continue;
    auto& signal = nic_.image().signals->tripwires[t];
    signal.fired.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(signal.fired);
    link_->wake_sleepers();
  }
  std::shared_ptr<EventQueueCore> queue, also;
  std::uint32_t event, also_event;
  {
    std::lock_guard lock(mutex_);
    queue = queue_;
    event = event_;
    also = also_queue_;
    also_event = also_event_;
  }
  if (queue) queue->post(event);
  if (also) also->post(also_event);
}

void Connection::also_notify(std::shared_ptr<EventQueueCore> queue, std::uint32_t event) {
  std::lock_guard lock(mutex_);
  also_queue_ = std::move(queue);
  also_event_ = event;
}

namespace {

void tell(nic::Link& link, std::uint32_t type, std::uint32_t to, std::uint32_t from, int reason) {
  OobMessage message;
  message.to = to;
  message.from = from;
  message.type = type;
  if (reason != 0) put_payload(message, reason);
  (void)link.send_oob(message);
}

}  // namespace

void Connection::close() {
  if (!context_->usable()) return;  // the parent's, or ended with its context
  {
    std::lock_guard lock(mutex_);
    if (closed_.exchange(true)) return;
  }
  unbind();
  if (region_.bytes == 0) return;
  // From here on the driver thread may find `remains` under our endpoint.
  auto remains = std::make_shared<ClosedConnection>(
      *context_, link_, nic_, arena_, region_,
      region_cookie_.length != 0 ? region_cookie_.aperture : shm::kMaxApertures, endpoint_);
  if (endpoint_ != 0) context_->keep_endpoint(endpoint_, remains);
  bool done, answered;
  {
    std::lock_guard lock(mutex_);
    remains_ = remains;
    done = peer_done_ || !exposed_;
    answered = answer_known_ && exposed_;
  }
  if (answered) {
    const int reason = reset_reason();
    tell(*link_, kOobClose, remote_endpoint_, endpoint_,
         reason == EPROTO || reason == ECONNABORTED ? ECONNRESET : 0);
  }
  if (remote_imported_) link_->release(remote_);
  if (done || !link_->alive()) remains->release();
}

Connection::~Connection() { close(); }

void ClosedConnection::release() {
  if (released_.exchange(true)) return;
  if (aperture_ != shm::kMaxApertures) nic_.retire(aperture_);
  arena_->free(region_);
  if (endpoint_ != 0) context_.remove_endpoint(endpoint_);
}

void ClosedConnection::on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) {
  if (link != link_) return;
  if (message.type == kOobAccept) {
    tell(*link, kOobClose, message.from, endpoint_, 0);  // too late: nobody waits for it any more
  } else if (message.type == kOobClose || message.type == kOobRefuse) {
    release();
  }
}

void ClosedConnection::on_link_down(const std::shared_ptr<nic::Link>& link) {
  if (link == link_) release();
}

void Connection::reset_hostile(const char* what) {
  if (peer_gone()) return;
  count(context_->counters().hostile_peers);
  CLAN_WARN("connection with process %d reset: %s", static_cast<int>(link_->remote_pid()), what);
  peer_left(EPROTO, false);
}

void Connection::abort() {
  if (!context_->usable()) return;
  peer_left(ECONNABORTED, false);
  // Not kClose: another thread may be in the middle of a record, so the peer must keep its region.
  tell(*link_, kOobReset, remote_endpoint_, endpoint_, 0);
}

int Connection::broken() {
  reset_hostile("impossible record in its ring");
  return -1;
}

// --- producer --------------------------------------------------------------------------------------

std::uint64_t Connection::load_credit() {
  auto& word = *reinterpret_cast<std::atomic<std::uint64_t>*>(region_.data());
  // PAIR ring.credit: the peer has finished reading the lines before it
  return word.load(std::memory_order_acquire);
}

std::byte* Connection::reserve(std::uint64_t payload) {
  const int rc = shm::ring_reserve(out_geometry_, producer_, payload, [this] { return load_credit(); }, &slot_);
  if (rc <= 0) [[unlikely]] {
    no_room(rc);
    return nullptr;
  }
  return mapped() ? shm::payload_at(out_geometry_, remote_.mapped + kRegionRing, slot_) : staging_.data();
}

void Connection::no_room(int rc) {
  if (rc < 0) reset_hostile("impossible credit");
  want_room_.store(true, std::memory_order_relaxed);  // relaxed: see bind_shared
}

bool Connection::writable(std::uint64_t payload) {
  shm::RingProducer probe = producer_;
  shm::RingSlot slot;
  int rc = shm::ring_reserve(out_geometry_, probe, payload, [this] { return load_credit(); }, &slot);
  return rc != 0;  // a broken ring is "writable": the attempt finds out
}

void Connection::put_ordered(std::uint64_t offset, std::uint64_t word) {
  (void)link_->put(remote_, offset, std::as_bytes(std::span(&word, 1)), nic::PutOrder::kAfterEarlier);
}

void Connection::notify_armed(std::uint64_t offset, std::uint64_t length) {
  (void)link_->after_access(remote_, offset, length, nic::AccessKind::kWrite);
}

void Connection::commit(std::uint64_t payload, RecordType type) {
  if (!may_write()) return;
  slot_.lines = shm::lines_for(payload);  // the caller may have needed less than it reserved
  const auto head = head_of(payload, type);
  if (mapped()) {
    publish(slot_, head);
    return;
  }
  const std::uint64_t at = kRegionRing + out_geometry_.index(slot_.position) * kCacheLine;
  // The same stores as packets: the payload in any order, then terminator, head and skip in order.
  link_->begin_batch();
  if (payload > 0) {
    (void)link_->put(remote_, at + shm::kRingHeadBytes, std::span(staging_).first(payload),
                     nic::PutOrder::kAny);
  }
  shm::ring_publish_by(out_geometry_, slot_, head, [this](std::uint64_t index, std::uint64_t word) {
    put_ordered(kRegionRing + index * kCacheLine, word);
  });
  link_->end_batch();
  shm::ring_advance(out_geometry_, producer_, slot_);
}

Status Connection::wait_writable(std::uint64_t payload, std::uint64_t deadline_ns) {
  return wait_control([this, payload] { return peer_gone() || writable(payload); }, deadline_ns);
}

Status Connection::finish(std::uint64_t deadline_ns) {
  if (!context_->usable()) return unusable_error();
  if (fin_sent_ || peer_gone()) return {};
  while (reserve(0) == nullptr) {
    if (peer_gone()) return {};
    if (auto s = wait_writable(0, deadline_ns); !s) return s;
  }
  commit(0, RecordType::kFin);
  fin_sent_ = true;
  return {};
}

// --- consumer --------------------------------------------------------------------------------------

int Connection::nothing_there() {
  if (!mapped()) link_->progress();
  if (shm::ring_should_publish_empty(consumer_)) publish_credit();
  return 0;
}

void Connection::consume(const shm::RingRecord& record) {
  consumer_.advance(record.lines);
  if (shm::ring_should_publish(in_geometry_, consumer_)) publish_credit();
}

void Connection::publish_credit() {
  if (!may_write()) return;
  consumer_.published = consumer_.head;
  if (remote_.mapped == nullptr) {
    put_ordered(0, consumer_.head);
    return;
  }
  auto& word = *reinterpret_cast<std::atomic<std::uint64_t>*>(remote_.mapped);
  // PAIR ring.credit: we have finished reading the lines before it
  word.store(consumer_.head, std::memory_order_release);
  notify(0, sizeof(std::uint64_t));
}

void Connection::answer_offer(int word, std::uint32_t bit) {
  if (remote_.mapped == nullptr) {
    reset_hostile("an offer over a link that does not map memory");
    return;
  }
  auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(remote_.mapped + kRegionOffers);
  // PAIR offer.answer: our copy of the message is complete
  words[word].fetch_or(std::uint64_t{1} << bit, std::memory_order_seq_cst);
  notify(kRegionOffers, 2 * sizeof(std::uint64_t));
}

void Connection::nudge() {
  if (may_write()) notify(kRegionOffers, 2 * sizeof(std::uint64_t));
}

Status Connection::wait_readable(std::uint64_t deadline_ns) {
  return wait_for(read_waiter_, ring_tripwire_, [this] { return read_ready(); }, deadline_ns,
                  "nothing arrived in time");
}

// --- events ----------------------------------------------------------------------------------------

Status Connection::bind(std::shared_ptr<EventQueueCore> queue, EventKind kind, std::uint64_t tag) {
  auto event = queue->add(kind, tag);
  if (!event) return event.error();
  Status s = bind_shared(queue, *event);
  if (!s) {
    queue->remove(*event);
    return s;
  }
  std::lock_guard lock(mutex_);
  owns_event_ = true;
  return {};
}

Status Connection::bind_shared(std::shared_ptr<EventQueueCore> queue, std::uint32_t event) {
  if (!may_write()) return unusable_error();
  unbind();
  auto tripwire = add_event_tripwire(queue->index(), event);
  if (!tripwire) return tripwire.error();
  {
    std::lock_guard lock(mutex_);
    event_tripwire_ = *tripwire;
    queue_ = queue;
    event_ = event;
    owns_event_ = false;
  }
  nic_.arm(*tripwire);
  // What came before the tripwire was armed. (A sender that registers is not sending meanwhile.)
  const bool room = want_room_.exchange(false, std::memory_order_relaxed) && writable(1);
  if (room || read_ready()) queue->post(event);
  return {};
}

Result<std::uint32_t> Connection::add_event_tripwire(std::uint32_t queue, std::uint32_t event) {
  // Persistent and over the whole region: records, credit and answers alike.
  return nic_.add_tripwire({region_cookie_.aperture, 0, region_cookie_.length,
                            shm::kTripOnWrite | shm::kTripPersistent, queue, event});
}

void Connection::pause_events() {
  if (event_tripwire_ != shm::kNoTripwire) nic_.disarm(event_tripwire_);
}

bool Connection::resume_events() {
  std::shared_ptr<EventQueueCore> queue;
  std::uint32_t event = 0;
  {
    std::lock_guard lock(mutex_);
    queue = queue_;
    event = event_;
  }
  if (!queue) return read_ready();
  nic_.arm(event_tripwire_);
  const bool readable_now = read_ready();
  // Room may have come while nobody listened; an event is a hint.
  // relaxed: see bind_shared
  if (want_room_.exchange(false, std::memory_order_relaxed) || readable_now) queue->post(event);
  return readable_now;
}

void Connection::unbind() {
  if (!context_->usable()) return;
  std::shared_ptr<EventQueueCore> queue;
  std::uint32_t event = 0;
  bool owned = false;
  {
    std::lock_guard lock(mutex_);
    if (!queue_) return;
    queue = std::move(queue_);
    queue_.reset();
    event = event_;
    owned = owns_event_;
  }
  nic_.remove_tripwire(event_tripwire_);
  event_tripwire_ = shm::kNoTripwire;
  if (owned) queue->remove(event);
}

}  // namespace clan::engine
