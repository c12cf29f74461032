#include "support/plain_link.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <thread>

#include "clan/detail/clock.h"
#include "support/pattern.h"

namespace clan::test {

using nic::AccessKind;
using nic::RemoteHandle;
using nic::Transfer;
using nic::TransferResult;
using Type = PlainPacket::Type;

namespace {
constexpr auto kAnswerTimeout = std::chrono::seconds(10);
constexpr Type kNothing{0};  ///< stands for a packet that made no sense
}  // namespace

// --- the network
// -----------------------------------------------------------------------------------

class PlainNetwork::Pump {
 public:
  explicit Pump(const PlainOptions& options) : options_(options), random_(options.seed) {}

  const PlainOptions& options() const { return options_; }

  void start() {
    thread_ = std::thread([this] { run(); });
  }

  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  bool on_pump_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

  /// A new link: two directions, their numbers n (a -> b) and n + 1 (b -> a).
  std::size_t add_directions() {
    std::lock_guard lock(mutex_);
    directions_.resize(directions_.size() + 2);
    return directions_.size() - 2;
  }

  void set_receiver(std::size_t direction, std::weak_ptr<PlainLink> to) {
    std::lock_guard lock(mutex_);
    directions_[direction].to = std::move(to);
  }

  void send(std::size_t direction, PlainPacket&& packet) {
    std::lock_guard lock(mutex_);
    Direction& d = directions_[direction];
    if (d.down) return;
    packet.sequence = d.next_sequence++;
    const std::uint64_t delay =
        options_.delay_us == 0 ? 0 : random_.below(options_.delay_us) * 1000;
    std::uint64_t due = monotonic_ns() + delay;
    if (options_.reorder_window <= 1 && !d.queue.empty())
      due = std::max(due, d.queue.back().due_ns);
    d.queue.push_back({due, std::move(packet)});
    changed_.notify_one();
  }

  void pause(bool on) {
    std::lock_guard lock(mutex_);
    paused_ = on;
    changed_.notify_all();
  }

  void settle() {
    std::unique_lock lock(mutex_);
    settled_.wait(lock, [this] { return !busy_ && nothing_queued(); });
  }

  void cut() {
    std::unique_lock lock(mutex_);
    for (Direction& d : directions_) {
      d.queue.clear();
      d.cut = !d.down;
      d.down = true;
    }
    changed_.notify_all();
    if (on_pump_thread()) return;
    settled_.wait(lock, [this] {
      return !busy_ && std::none_of(directions_.begin(), directions_.end(),
                                    [](const Direction& d) { return d.cut; });
    });
  }

  PlainCounters counters() const {
    std::lock_guard lock(counter_mutex_);
    return counters_;
  }
  void count(std::uint64_t PlainCounters::*which) {
    std::lock_guard lock(counter_mutex_);
    ++(counters_.*which);
  }

 private:
  struct Queued {
    std::uint64_t due_ns;
    PlainPacket packet;
  };
  struct Direction {
    std::weak_ptr<PlainLink> to;
    std::deque<Queued> queue;
    std::uint64_t next_sequence = 0;
    bool down = false;
    bool cut = false;  ///< the receiver has not been woken yet
  };

  bool nothing_queued() const {
    return std::all_of(directions_.begin(), directions_.end(),
                       [](const Direction& d) { return d.queue.empty() && !d.cut; });
  }

  // The index of a packet of `d` that may go now, or the queue's size; lowers `wake` to when to
  // look again.
  std::size_t choose(const Direction& d, std::uint64_t now, std::uint64_t* wake) {
    const std::size_t window = std::min<std::size_t>(d.queue.size(), options_.reorder_window);
    std::size_t eligible = 0;
    std::size_t chosen = d.queue.size();
    for (std::size_t i = 0; i < window; ++i) {
      if (d.queue[i].due_ns > now) {
        *wake = std::min(*wake, d.queue[i].due_ns);
      } else if (random_.below(++eligible) == 0) {
        chosen = i;
      }
    }
    return chosen;
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (std::size_t turn = 0; !stopping_; ++turn) {
      std::uint64_t wake = kNoDeadline;
      bool progress = false;
      for (std::size_t i = 0; i < directions_.size() && !progress; ++i) {
        const std::size_t n = (turn + i) % directions_.size();
        progress = step(n, &wake, lock);
      }
      if (progress) continue;
      settled_.notify_all();
      if (wake == kNoDeadline) {
        changed_.wait(lock);
      } else {
        const std::uint64_t now = monotonic_ns();
        if (wake > now) changed_.wait_for(lock, std::chrono::nanoseconds(wake - now));
      }
    }
  }

  bool step(std::size_t n, std::uint64_t* wake, std::unique_lock<std::mutex>& lock) {
    Direction& d = directions_[n];
    if (d.cut) {
      auto to = d.to.lock();
      busy_ = true;
      lock.unlock();
      if (to) to->go_down();
      to.reset();
      lock.lock();
      busy_ = false;
      directions_[n].cut = false;
      return true;
    }
    if (paused_) return false;
    const std::size_t index = choose(d, monotonic_ns(), wake);
    if (index == d.queue.size()) return false;
    PlainPacket packet = std::move(d.queue[index].packet);
    d.queue.erase(d.queue.begin() + static_cast<std::ptrdiff_t>(index));
    if (packet.type == Type::kDown) d.down = true;
    auto to = d.to.lock();
    busy_ = true;
    lock.unlock();
    if (to) {
      count(&PlainCounters::delivered);
      to->deliver(std::move(packet));
    }
    to.reset();
    lock.lock();
    busy_ = false;
    return true;
  }

  const PlainOptions options_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable settled_;
  std::deque<Direction> directions_;  // a deque: references stay valid
  Random random_;
  bool paused_ = false;
  bool stopping_ = false;
  bool busy_ = false;
  mutable std::mutex counter_mutex_;
  PlainCounters counters_;
};

PlainNetwork::PlainNetwork(const PlainOptions& options) : pump_(std::make_shared<Pump>(options)) {
  pump_->start();
}

PlainNetwork::~PlainNetwork() {
  pump_->cut();
  pump_->stop();
}

std::pair<std::shared_ptr<PlainLink>, std::shared_ptr<PlainLink>> PlainNetwork::join(
    engine::ContextCore& a, engine::ContextCore& b) {
  const std::size_t n = pump_->add_directions();
  auto at_a = std::make_shared<PlainLink>(pump_, n, b.node(), a);
  auto at_b = std::make_shared<PlainLink>(pump_, n + 1, a.node(), b);
  pump_->set_receiver(n, at_b);
  pump_->set_receiver(n + 1, at_a);
  a.add_link(at_a);
  b.add_link(at_b);
  return {at_a, at_b};
}

void PlainNetwork::pause() { pump_->pause(true); }
void PlainNetwork::resume() { pump_->pause(false); }
void PlainNetwork::settle() { pump_->settle(); }
void PlainNetwork::cut() { pump_->cut(); }
PlainCounters PlainNetwork::counters() const { return pump_->counters(); }

// --- the link: sending
// -----------------------------------------------------------------------------

PlainLink::PlainLink(std::shared_ptr<PlainNetwork::Pump> pump, std::size_t direction, NodeId remote,
                     engine::ContextCore& context)
    : pump_(std::move(pump)),
      direction_(direction),
      remote_(remote),
      nic_(context.own_lane()),
      sink_(context),
      owner_(context.weak_from_this()) {}

PlainLink::~PlainLink() = default;

nic::LinkCapabilities PlainLink::capabilities() const {
  nic::LinkCapabilities c;
  c.translates = true;
  c.name = "plain";
  return c;
}

uid_t PlainLink::remote_uid() const { return ::geteuid(); }
pid_t PlainLink::remote_pid() const { return ::getpid(); }

PlainPacket PlainLink::access_packet(Type type, const RemoteHandle& handle, std::uint64_t offset) {
  PlainPacket p;
  p.type = type;
  p.aperture = handle.aperture;
  p.generation = handle.generation_wanted;
  p.key_image = handle.key_image;
  p.offset = offset;
  return p;
}

// What this end knows already. Under mutex_.
int PlainLink::refusal(const RemoteHandle& handle, std::uint64_t offset, std::uint64_t length,
                       Rights right) {
  if (!alive()) return ECONNRESET;
  if (offset > handle.length || length > handle.length - offset) return ERANGE;
  if (!includes(handle.rights, right)) return EACCES;
  auto it = imported_.find({handle.aperture, handle.generation_wanted});
  return it == imported_.end() ? 0 : it->second.refused;
}

Status PlainLink::check(const RemoteHandle& handle) {
  std::lock_guard lock(mutex_);
  int err = refusal(handle, 0, 0, Rights::kNone);
  return err == 0 ? Status() : Error{err, "the aperture has been revoked"};
}

void PlainLink::send_refused(std::uint32_t aperture, std::uint32_t generation, int err) {
  PlainPacket p;
  p.type = Type::kRefused;
  p.aperture = aperture;
  p.generation = generation;
  p.err = err;
  pump_->send(direction_, std::move(p));
}

void PlainLink::announce_revoked(std::uint32_t aperture, std::uint32_t generation) {
  send_refused(aperture, generation, ESTALE);
}

void PlainLink::send_pieces(const RemoteHandle& handle, std::uint64_t offset,
                            std::span<const std::byte> bytes, bool ordered, std::uint64_t request) {
  const std::size_t most = pump_->options().packet_bytes;
  do {
    const std::size_t n = std::min(bytes.size(), most);
    PlainPacket p = access_packet(Type::kPut, handle, offset);
    p.ordered = ordered;
    p.bytes.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    bytes = bytes.subspan(n);
    offset += n;
    if (bytes.empty()) p.request = request;  // only the last one is answered
    pump_->send(direction_, std::move(p));
  } while (!bytes.empty());
}

Status PlainLink::put(const RemoteHandle& handle, std::uint64_t offset,
                      std::span<const std::byte> bytes, nic::PutOrder order) {
  std::lock_guard lock(mutex_);
  if (int err = refusal(handle, offset, bytes.size(), Rights::kWrite); err != 0) {
    return Error{err, "write to a remote aperture"};
  }
  if (!bytes.empty()) send_pieces(handle, offset, bytes, order == nic::PutOrder::kAfterEarlier, 0);
  return {};
}

// The first word leaves behind the rest.
Status PlainLink::publish(const RemoteHandle& handle, std::uint64_t offset,
                          std::span<const std::byte> bytes,
                          const std::shared_ptr<nic::PinnedPayload>&) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  Status s;
  if (bytes.size() > kWord)
    s = put(handle, offset + kWord, bytes.subspan(kWord), nic::PutOrder::kAny);
  if (s) s = put(handle, offset, bytes.first(kWord), nic::PutOrder::kAfterEarlier);
  return s;
}

Result<PlainLink::Pending> PlainLink::wait_for(std::uint64_t request,
                                               std::unique_lock<std::mutex>& lock) {
  answered_.wait_for(lock, kAnswerTimeout, [&] { return pending_[request].done || !alive(); });
  Pending p = pending_[request];
  pending_.erase(request);
  if (p.done) return p;
  if (!alive()) return Error{ECONNRESET, "the link went down"};
  return Error{ETIMEDOUT, "the peer did not answer within 10 s"};
}

Status PlainLink::get(const RemoteHandle& handle, std::uint64_t offset,
                      std::span<std::byte> bytes) {
  if (pump_->on_pump_thread()) return Error{EDEADLK, "the driver thread cannot wait for itself"};
  std::unique_lock lock(mutex_);
  if (int err = refusal(handle, offset, bytes.size(), Rights::kRead); err != 0) {
    return Error{err, "read from a remote aperture"};
  }
  const std::uint64_t request = next_request_++;
  pending_[request] = {Pending::Kind::kGet, 0, bytes.data(), bytes.size(), bytes.size(), false, 0};
  PlainPacket p = access_packet(Type::kRead, handle, offset);
  p.length = bytes.size();
  p.request = request;
  pump_->send(direction_, std::move(p));
  auto answer = wait_for(request, lock);
  if (!answer) return answer.error();
  if (answer->err != 0) return Error{answer->err, "read from a remote aperture"};
  return {};
}

Status PlainLink::after_access(const RemoteHandle&, std::uint64_t, std::uint64_t, AccessKind) {
  return Error{EOPNOTSUPP, "nothing is mapped over this link"};
}

TransferResult PlainLink::transfer(const Transfer& t) {
  std::lock_guard lock(mutex_);
  const bool write = t.op == RdmaOp::kWrite;
  if (int err =
          refusal(*t.remote, t.remote_offset, t.length, write ? Rights::kWrite : Rights::kRead);
      err != 0) {
    return {TransferResult::Kind::kError, err};
  }
  if (transfers_ >= pump_->options().max_transfers) return {TransferResult::Kind::kBusy, EAGAIN};
  const std::uint64_t request = next_request_++;
  pending_[request] = {Pending::Kind::kTransfer,
                       t.token,
                       write ? nullptr : t.local,
                       t.length,
                       write ? 0 : t.length,
                       false,
                       0};
  ++transfers_;
  if (write) {
    send_pieces(*t.remote, t.remote_offset, {t.local, static_cast<std::size_t>(t.length)}, false,
                request);
  } else {
    PlainPacket p = access_packet(Type::kRead, *t.remote, t.remote_offset);
    p.length = t.length;
    p.request = request;
    pump_->send(direction_, std::move(p));
  }
  return {TransferResult::Kind::kPending, 0};
}

void PlainLink::cancel(std::uint64_t token) {
  std::lock_guard lock(mutex_);
  for (auto it = pending_.begin(); it != pending_.end(); ++it) {
    if (it->second.kind != Pending::Kind::kTransfer || it->second.token != token) continue;
    pending_.erase(it);
    --transfers_;
    return;
  }
}

Result<RemoteHandle> PlainLink::import(const RdmaCookie& cookie, bool may_wait) {
  if (!alive()) return Error{ECONNRESET, "the peer is gone"};
  if (cookie.node != remote_) return Error{ESTALE, "RDMA cookie of another node"};
  RemoteHandle handle;
  handle.length = cookie.length;
  handle.aperture = cookie.aperture;
  handle.generation_wanted = cookie.generation;
  handle.rights = cookie.rights;
  handle.key_image = nic::key_image(cookie);
  if (may_wait && pump_->on_pump_thread()) {
    return Error{EDEADLK, "the driver thread cannot wait for itself"};
  }
  std::unique_lock lock(mutex_);
  // Known before the answer comes: a revocation may be close behind it.
  ++imported_[{handle.aperture, handle.generation_wanted}].references;
  if (!may_wait) return handle;  // the owner checks every packet anyway
  const std::uint64_t request = next_request_++;
  pending_[request].kind = Pending::Kind::kImport;
  PlainPacket p;
  p.type = Type::kImport;
  p.cookie = cookie;
  p.request = request;
  pump_->send(direction_, std::move(p));
  auto answer = wait_for(request, lock);
  lock.unlock();
  if (answer.ok() && answer->err == 0) return handle;
  release(handle);
  if (!answer) return answer.error();
  return Error{answer->err, "the owner of the aperture refused the import"};
}

void PlainLink::release(const RemoteHandle& handle) {
  std::lock_guard lock(mutex_);
  auto it = imported_.find({handle.aperture, handle.generation_wanted});
  if (it != imported_.end() && --it->second.references <= 0) imported_.erase(it);
}

Status PlainLink::send_oob(const OobMessage& message) {
  if (!alive()) return Error{ECONNRESET, "the peer is gone"};
  PlainPacket p;
  p.type = Type::kOob;
  p.oob = message;
  p.oob.length = std::min<std::uint32_t>(message.length, kOobPayload);
  pump_->send(direction_, std::move(p));
  return {};
}

void PlainLink::forge(PlainPacket packet) { pump_->send(direction_, std::move(packet)); }

void PlainLink::shut_down() {
  PlainPacket p;
  p.type = Type::kDown;
  pump_->send(direction_, std::move(p));
  std::unique_lock delivery(delivery_, std::defer_lock);
  if (!pump_->on_pump_thread()) delivery.lock();
  detached_ = true;  // no up-call from now on, and nothing touches the Nic
  std::lock_guard lock(mutex_);
  alive_.store(false, std::memory_order_release);
  pending_.clear();
  transfers_ = 0;
  answered_.notify_all();
}

// --- the link: receiving, pump thread
// --------------------------------------------------------------

namespace {

// Ordered words are what consumers poll: the store publishes all that was placed before it.
void copy_in(std::byte* to, const std::byte* from, std::size_t bytes, bool ordered) {
  const auto aligned = [](const std::byte* p) {
    return reinterpret_cast<std::uintptr_t>(p) % 8 == 0;
  };
  if (!ordered && bytes != 8) {
    std::memcpy(to, from, bytes);
    return;
  }
  while (bytes > 0) {
    if (aligned(to) && bytes >= 8) {
      std::uint64_t word;
      std::memcpy(&word, from, 8);
      // Pairs with the thread that polls the word, e.g. ring.head and ring.credit.
      std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(to))
          .store(word, std::memory_order_release);
      to += 8, from += 8, bytes -= 8;
    } else {
      *to++ = *from++;
      --bytes;
    }
  }
}

// A single word is read as one, like a load over a mapped link.
void copy_out(std::vector<std::byte>& to, const std::byte* from, std::size_t bytes) {
  if (bytes != 8 || reinterpret_cast<std::uintptr_t>(from) % 8 != 0) {
    to.assign(from, from + bytes);
    return;
  }
  auto* word = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(from));
  const std::uint64_t value = std::atomic_ref<std::uint64_t>(*word).load(std::memory_order_acquire);
  to.resize(8);
  std::memcpy(to.data(), &value, 8);
}

bool same_aperture(const PlainPacket& a, const PlainPacket& b) {
  return a.aperture == b.aperture && a.generation == b.generation;
}

}  // namespace

bool PlainLink::well_formed(const PlainPacket& p) const {
  if (p.type < Type::kPut || p.type > Type::kDown) return false;
  if (p.type == Type::kOob && p.oob.length > kOobPayload) return false;
  if (p.type == Type::kRead && p.length > (std::uint64_t{1} << 30)) return false;
  if (p.bytes.size() > pump_->options().packet_bytes) return false;
  return true;
}

nic::Nic::Landing PlainLink::land(const PlainPacket& p, std::uint64_t length, Rights right,
                                  int* err) {
  *err = 0;
  auto landing = nic_.resolve(p.aperture, p.generation, p.offset, length, right);
  if (!landing) {
    *err = ESTALE;
  } else if (nic_.image().tables->apertures[p.aperture].key_image.load(std::memory_order_relaxed) !=
             p.key_image) {
    *err = EACCES;
    landing = {};
  }
  if (*err != 0) pump_->count(&PlainCounters::refused);
  return landing;
}

// Puts the bytes where they belong, except where a packet sent later has put its own already.
void PlainLink::place(PlainPacket& p) {
  auto landing = land(p, p.bytes.size(), Rights::kWrite, &p.err);
  if (!landing) return;
  p.placed = true;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
  const std::uint64_t end = p.offset + p.bytes.size();
  for (auto it = waiting_.upper_bound(p.sequence); it != waiting_.end(); ++it) {
    const PlainPacket& later = it->second;
    if (later.type != Type::kPut || !later.placed || !same_aperture(p, later)) continue;
    const std::uint64_t from = std::max(p.offset, later.offset);
    const std::uint64_t to = std::min(end, later.offset + later.bytes.size());
    if (from < to) taken.emplace_back(from, to);
  }
  if (!taken.empty()) pump_->count(&PlainCounters::trimmed);
  std::sort(taken.begin(), taken.end());
  std::uint64_t at = p.offset;
  auto copy_until = [&](std::uint64_t stop) {
    if (stop <= at) return;
    copy_in(landing.get() + (at - p.offset), p.bytes.data() + (at - p.offset), stop - at,
            p.ordered);
  };
  for (auto [from, to] : taken) {
    copy_until(from);
    at = std::max(at, to);
  }
  copy_until(end);
}

void PlainLink::deliver(PlainPacket&& packet) {
  auto owner = owner_.lock();
  std::lock_guard delivery(delivery_);
  if (!owner || detached_ || !alive()) return;
  const std::uint64_t sequence = packet.sequence;
  if (!well_formed(packet)) {
    pump_->count(&PlainCounters::malformed);
    // Its number must not hold up the others.
    if (sequence >= next_) waiting_[sequence].type = kNothing;
  } else {
    if (packet.sequence != next_) pump_->count(&PlainCounters::overtaking);
    const bool put = packet.type == Type::kPut;
    packet.placed = false;
    packet.err = put ? 0 : packet.err;
    if (put && !packet.ordered) {
      place(packet);
      if (packet.sequence != next_) pump_->count(&PlainCounters::placed_early);
    } else if (packet.sequence != next_) {
      pump_->count(&PlainCounters::held_back);
    }
    waiting_[sequence] = std::move(packet);
  }
  while (!waiting_.empty() && waiting_.begin()->first == next_) {
    PlainPacket released = std::move(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
    ++next_;
    release(released);
    if (detached_ || !alive()) return;
  }
}

void PlainLink::release(PlainPacket& p) {
  switch (p.type) {
    case Type::kPut: release_put(p); break;
    case Type::kRefused: {
      std::lock_guard lock(mutex_);
      auto it = imported_.find({p.aperture, p.generation});
      if (it != imported_.end()) it->second.refused = p.err != 0 ? p.err : ESTALE;
      break;
    }
    case Type::kRead: serve_read(p); break;
    case Type::kReadData: release_read_data(p); break;
    case Type::kPutDone:
    case Type::kReadRefused:
    case Type::kImportDone: finish(p.request, p.err); break;
    case Type::kImport: {
      PlainPacket reply;
      reply.type = Type::kImportDone;
      reply.request = p.request;
      auto grant = nic_.check_cookie(p.cookie);
      reply.err = grant ? 0 : grant.error().err;
      pump_->send(direction_, std::move(reply));
      break;
    }
    case Type::kOob: sink_.on_oob(shared_from_this(), p.oob); break;
    case Type::kDown: {
      std::unique_lock lock(mutex_);
      alive_.store(false, std::memory_order_release);
      std::vector<std::uint64_t> tokens;
      for (const auto& [request, pending] : pending_) {
        if (pending.kind == Pending::Kind::kTransfer) tokens.push_back(pending.token);
      }
      std::erase_if(pending_,
                    [](const auto& p2) { return p2.second.kind == Pending::Kind::kTransfer; });
      transfers_ = 0;
      answered_.notify_all();
      lock.unlock();
      for (std::uint64_t token : tokens) sink_.on_transfer_done(token, ECONNRESET, 0);
      sink_.on_link_down(shared_from_this());
      break;
    }
  }
}

void PlainLink::release_put(PlainPacket& p) {
  if (!p.placed && p.err == 0) place(p);
  // Still there? Then every earlier packet has found the aperture there as well.
  if (p.err == 0) land(p, p.bytes.size(), Rights::kWrite, &p.err);
  if (p.err == 0) {
    nic::match_for_packets(nic_.image(), p.aperture, p.offset, p.bytes.size(), AccessKind::kWrite);
  } else {
    send_refused(p.aperture, p.generation, p.err);
  }
  if (p.request == 0) return;
  PlainPacket done;
  done.type = Type::kPutDone;
  done.request = p.request;
  done.err = p.err;
  pump_->send(direction_, std::move(done));
}

void PlainLink::serve_read(const PlainPacket& p) {
  int err = 0;
  std::vector<PlainPacket> replies;
  {
    auto landing = land(p, p.length, Rights::kRead, &err);
    std::uint64_t at = 0;
    do {
      PlainPacket reply;
      reply.type = err == 0 ? Type::kReadData : Type::kReadRefused;
      reply.request = p.request;
      reply.err = err;
      reply.offset = at;
      if (err == 0) {
        const std::uint64_t n =
            std::min<std::uint64_t>(p.length - at, pump_->options().packet_bytes);
        copy_out(reply.bytes, landing.get() + at, n);
        at += n;
      }
      replies.push_back(std::move(reply));
    } while (err == 0 && at < p.length);
  }
  if (err == 0)
    nic::match_for_packets(nic_.image(), p.aperture, p.offset, p.length, AccessKind::kRead);
  for (PlainPacket& reply : replies) pump_->send(direction_, std::move(reply));
}

void PlainLink::release_read_data(const PlainPacket& p) {
  std::unique_lock lock(mutex_);
  auto it = pending_.find(p.request);
  if (it == pending_.end()) return;  // cancelled
  Pending& pending = it->second;
  if (pending.done || p.bytes.size() > pending.missing || p.offset > pending.length ||
      p.bytes.size() > pending.length - p.offset) {
    pump_->count(&PlainCounters::malformed);
    return;
  }
  if (!p.bytes.empty()) std::memcpy(pending.local + p.offset, p.bytes.data(), p.bytes.size());
  pending.missing -= p.bytes.size();
  if (pending.missing > 0) return;
  lock.unlock();
  finish(p.request, 0);
}

void PlainLink::finish(std::uint64_t request, int err) {
  std::unique_lock lock(mutex_);
  auto it = pending_.find(request);
  if (it == pending_.end() || it->second.done) return;
  if (it->second.kind != Pending::Kind::kTransfer) {
    it->second.done = true;
    it->second.err = err;
    answered_.notify_all();
    return;
  }
  const Pending done = it->second;
  pending_.erase(it);
  --transfers_;
  lock.unlock();
  sink_.on_transfer_done(done.token, err, err == 0 ? done.length : 0);
}

void PlainLink::go_down() {
  auto owner = owner_.lock();
  std::lock_guard delivery(delivery_);
  if (!owner || detached_ || !alive()) return;
  waiting_.clear();
  PlainPacket down;
  down.type = Type::kDown;
  release(down);
}

}  // namespace clan::test
