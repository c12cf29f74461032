#include "engine/context/context_core.h"

#include <unistd.h>

#include <algorithm>
#include <bit>

#include "base/random.h"
#include "clan/detail/log.h"
#include "engine/aperture/aperture_core.h"
#include "engine/connection/connection.h"
#include "engine/context/network.h"
#include "engine/event/event_queue_core.h"
#include "engine/rdma/rdma_driver.h"

namespace clan::engine {

// --- life ----------------------------------------------------------------------------------------

ContextCore::ContextCore(const ContextOptions& options)
    : options_(options), node_{random_u64()}, uid_(::geteuid()), links_(node_, packets_) {}

Result<std::shared_ptr<ContextCore>> ContextCore::create(const ContextOptions& options) {
  if (!std::has_single_bit(options.ring_bytes) || options.ring_bytes < 1024 ||
      options.ring_bytes > kMostRingBytes) {
    return Error{EINVAL, "ContextOptions::ring_bytes must be a power of two from 1024 to 64 MiB"};
  }
  if (options.oob_queue == 0 || options.backlog == 0) {
    return Error{EINVAL, "ContextOptions::oob_queue and backlog must be at least 1"};
  }
  std::shared_ptr<ContextCore> core(new ContextCore(options));
  if (auto s = core->initialise(); !s) return s.error();
  watch_forks(core.get());
  return core;
}

Status ContextCore::initialise() {
  auto doorbell = create_eventfd();
  if (!doorbell) return doorbell.error();
  doorbell_ = std::move(*doorbell);
  Error why;
  own_lane_ = lane(uid_, &why);
  if (own_lane_ == nullptr) return why;
  if (!options_.network.enabled) return {};
  if (auto s = listen_as_node(); !s) return s;  // before peers learn its number (add_far_link)
  auto network = Network::start(*this, options_.network);
  if (!network) return network.error();
  network_ = std::move(*network);
  packets_.set_source(&network_->node());
  return {};
}

ContextCore::~ContextCore() {
  shut_down();
  unwatch_forks(this);
}

void ContextCore::shut_down() {
  // order: one thread shuts down; usable() of others is a look
  if (!usable_.exchange(false, std::memory_order_acq_rel)) return;
  const auto links = links_.all();
  for (const auto& link : links) link->shut_down();
  reactor_.stop();
  if (network_) network_->shut_down();
  // The driver is gone; tell everyone that waits for a peer.
  for (const auto& link : links) on_link_down(link);
  services_.clear();
  queues_.for_each([](EventQueueCore& queue) { queue.wake_all(); });
}

// The child must find the tables whole, so no other thread may be changing them at the fork.
void ContextCore::lock_for_fork() {
  mutex_.lock();
  links_.lock_for_fork();
  services_.lock_for_fork();
  endpoints_.lock_for_fork();
  queues_.lock_for_fork();
  reactor_.lock_for_fork();
}

void ContextCore::unlock_after_fork() {
  reactor_.unlock_after_fork();
  queues_.unlock_after_fork();
  endpoints_.unlock_after_fork();
  services_.unlock_after_fork();
  links_.unlock_after_fork();
  mutex_.unlock();
}

void ContextCore::abandon_after_fork() {
  usable_.store(false, std::memory_order_relaxed);  // relaxed: the child has one thread
  reactor_.abandon_after_fork();
  doorbell_.reset();
  if (network_) network_->abandon_after_fork();
  links_.abandon_after_fork();
  endpoints_.abandon_after_fork();
  // A sleeping connection of the parent is not ours to wake; ours answer "unusable".
}

// --- lanes ---------------------------------------------------------------------------------------

bool ContextCore::allowed(uid_t uid) const {
  return uid == uid_ || std::find(options_.allow_uids.begin(), options_.allow_uids.end(), uid) !=
                            options_.allow_uids.end();
}

nic::Nic* ContextCore::lane(uid_t uid, Error* why) {
  if (!allowed(uid)) return nullptr;
  std::lock_guard lock(mutex_);
  if (auto it = lanes_.find(uid); it != lanes_.end()) return it->second.get();
  auto nic = lanes_.size() < EventQueueCore::kMaxLanes
                 ? nic::Nic::create(node_, uid)
                 : Error{ENOSPC, "a context has no peers of more users than 64"};
  if (!nic) {
    CLAN_WARN("%s", nic.error().message().c_str());
    if (why != nullptr) *why = nic.error();
    return nullptr;
  }
  (*nic)->set_ringer(this);
  nic::Nic* result = nic->get();
  lanes_.emplace(uid, std::move(*nic));
  queues_.for_each([&](EventQueueCore& queue) { queue.add_lane(result->image()); });
  return result;
}

std::vector<nic::NicImage> ContextCore::lane_images() {
  std::lock_guard lock(mutex_);
  std::vector<nic::NicImage> images;
  for (const auto& [uid, nic] : lanes_) images.push_back(nic->image());
  return images;
}

ContextCounters ContextCore::snapshot() {
  ContextCounters c;
  auto get = [](const std::atomic<std::uint64_t>& a) { return a.load(std::memory_order_relaxed); };
  c.connections_opened = get(counters_.connections_opened);
  c.connections_reset = get(counters_.connections_reset);
  c.hostile_peers = get(counters_.hostile_peers);
  c.oob_discarded = get(counters_.oob_discarded);
  c.sleeps = get(counters_.sleeps);
  c.wakeups = get(counters_.wakeups);
  c.links = links_.settled();
  std::lock_guard lock(mutex_);
  for (const auto& [uid, nic] : lanes_) {
    c.apertures += nic->live_apertures();
    c.tripwires += nic->live_tripwires();
  }
  return c;
}

// --- endpoints -----------------------------------------------------------------------------------

Result<std::uint32_t> ContextCore::add_endpoint(std::weak_ptr<OobSink> sink) {
  if (!usable()) return unusable_error();
  return endpoints_.add(std::move(sink));
}

// --- what arrives --------------------------------------------------------------------------------

void ContextCore::on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) {
  if (message.type == kOobLookUp) return answer_look_up(*this, *link, message);
  if (const auto sink = endpoints_.find(message.to)) {
    sink->on_oob(link, message);
  } else if (message.type == kOobConnect) {
    Connection::refuse(*link, message, ECONNREFUSED);
  } else {
    count(counters_.oob_discarded);
  }
}

void ContextCore::on_misbehaviour(const std::shared_ptr<nic::Link>&) {
  count(counters_.hostile_peers);
}

// --- RDMA ----------------------------------------------------------------------------------------

Result<RdmaDriver*> ContextCore::rdma() {
  if (!usable()) return unusable_error();
  std::lock_guard lock(rdma_mutex_);
  if (!rdma_) {
    auto driver = RdmaDriver::create(*this);
    if (!driver) return driver.error();
    rdma_ = std::move(*driver);
  }
  return rdma_.get();
}

void ContextCore::on_transfer_done(std::uint64_t token, int err, std::uint64_t bytes) {
  RdmaDriver* driver;
  {
    std::lock_guard lock(rdma_mutex_);
    driver = rdma_.get();
  }
  if (driver != nullptr) driver->complete(token, err, bytes);
}

// --- event queues --------------------------------------------------------------------------------

Result<int> ContextCore::queue_fd(std::uint32_t queue) {
  if (!usable()) return unusable_error();
  auto fd = queues_.fd(queue);
  if (!fd) return fd.error();
  if (!fd->made) return fd->fd;
  for (const auto& link : links_.all()) link->announce_queue_fd(queue, fd->fd);
  return fd->fd;
}

}  // namespace clan::engine

namespace clan {

Context& Context::operator=(Context&& other) noexcept {
  if (this != &other) {
    if (core_) core_->shut_down();
    core_ = std::move(other.core_);
  }
  return *this;
}
Context::~Context() {
  if (core_) core_->shut_down();
}

Result<Context> Context::create(const ContextOptions& options) {
  auto core = engine::ContextCore::create(options);
  if (!core) return core.error();
  return Context(std::move(*core));
}

NodeId Context::node() const { return core_->node(); }
const ContextOptions& Context::options() const { return core_->options(); }
ContextCounters Context::counters() const { return core_->snapshot(); }
std::uint16_t Context::network_port() const {
  return core_->network() == nullptr ? 0 : core_->network()->port();
}

}  // namespace clan
