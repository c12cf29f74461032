#include "engine/context_core.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>

#include "clan/log.h"
#include "base/random.h"
#include "engine/aperture_names.h"
#include "engine/connection.h"
#include "engine/event_queue_core.h"
#include "engine/network.h"
#include "engine/rdma_driver.h"

namespace clan::engine {
namespace {

// --- fork ----------------------------------------------------------------------------------------

struct ForkRegistry {
  std::mutex mutex;
  std::vector<ContextCore*> contexts;
};

// Never destroyed: threads of the application may outlive static destructors.
ForkRegistry& fork_registry() {
  static ForkRegistry* registry = new ForkRegistry;
  return *registry;
}

// The child must find the tables whole, so no other thread may be changing them at the fork.
void before_fork() {
  fork_registry().mutex.lock();
  for (ContextCore* context : fork_registry().contexts) context->lock_for_fork();
}
void after_fork_in_parent() {
  for (ContextCore* context : fork_registry().contexts) context->unlock_after_fork();
  fork_registry().mutex.unlock();
}
void after_fork_in_child() {
  for (ContextCore* context : fork_registry().contexts) {
    context->unlock_after_fork();
    context->abandon_after_fork();
  }
  fork_registry().contexts.clear();
  fork_registry().mutex.unlock();
}

void watch_forks(ContextCore* context) {
  static const int installed = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  (void)installed;
  std::lock_guard lock(fork_registry().mutex);
  fork_registry().contexts.push_back(context);
}

void unwatch_forks(ContextCore* context) {
  std::lock_guard lock(fork_registry().mutex);
  std::erase(fork_registry().contexts, context);
}

// --- rendezvous ------------------------------------------------------------------------------------

std::string service_name(uid_t uid, const std::string& service) {
  return "clan/" + std::to_string(uid) + "/" + service;
}

Error service_name_too_long() {
  return Error{ENAMETOOLONG, "the service name is too long (91 bytes always fit)"};
}

std::string node_name(uid_t uid, NodeId node) {
  char hex[17];
  std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(node.value));
  return "clan/" + std::to_string(uid) + "/node/" + hex;
}

// A listening rendezvous socket under the reactor.
class Rendezvous final : public Pollable {
 public:
  Rendezvous(ContextCore& context, Fd listener, std::uint32_t endpoint)
      : context_(context), listener_(std::move(listener)), endpoint_(endpoint) {}
  int fd() const { return listener_.get(); }
  void on_ready(std::uint32_t) override {
    Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (client) {
      context_.on_client(std::move(client), endpoint_);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      ::usleep(10'000);  // the client waits in the kernel until we have a descriptor for it
    }
  }
  void abandon_after_fork() override { listener_.reset(); }

 private:
  ContextCore& context_;
  Fd listener_;
  std::uint32_t endpoint_;
};

// An accepted client whose hello has not arrived yet. One that never speaks costs one descriptor and
// goes when it closes.
class Greeting final : public Pollable {
 public:
  Greeting(ContextCore& context, Reactor& reactor, Fd socket, std::uint32_t endpoint)
      : context_(context), reactor_(reactor), socket_(std::move(socket)), endpoint_(endpoint) {}
  int fd() const { return socket_.get(); }
  void on_ready(std::uint32_t) override {
    if (!socket_) return;
    reactor_.remove(socket_.get());
    context_.on_client(std::move(socket_), endpoint_);
  }
  void abandon_after_fork() override { socket_.reset(); }

 private:
  ContextCore& context_;
  Reactor& reactor_;
  Fd socket_;
  std::uint32_t endpoint_;
};

// A peer rang our doorbell because it had no descriptor for the queue yet.
class Doorbell final : public Pollable {
 public:
  Doorbell(ContextCore& context, int fd) : context_(context), fd_(fd) {}
  void on_ready(std::uint32_t) override {
    drain_eventfd(fd_);
    context_.ring_all();
  }

 private:
  ContextCore& context_;
  int fd_;
};

constexpr std::uint64_t kArenaBytes = 32u << 20;

}  // namespace

// --- RegionArena -----------------------------------------------------------------------------------

Result<RegionArena::Region> RegionArena::allocate(std::uint64_t bytes) {
  bytes = round_to_pages(bytes);
  std::lock_guard lock(mutex_);
  auto fits = std::find_if(free_.begin(), free_.end(), [&](const Region& r) { return r.bytes == bytes; });
  if (fits != free_.end()) {
    Region region = *fits;
    free_.erase(fits);
    return region;
  }
  if (!block_ || block_->size() - used_ < bytes) {
    auto block = nic::MemoryBlock::create(std::max(kArenaBytes, bytes));
    if (!block) return block.error();
    block_ = std::move(*block);
    used_ = 0;
  }
  Region region{block_, used_, bytes};
  used_ += bytes;
  return region;
}

void RegionArena::free(const Region& region) {
  // Frees the pages of the memfd, so that the next user finds zeros and idle memory is given back.
  if (::madvise(region.data(), region.bytes, MADV_REMOVE) != 0) {
    std::memset(region.data(), 0, region.bytes);
  }
  std::lock_guard lock(mutex_);
  free_.push_back(region);
}

// --- life ------------------------------------------------------------------------------------------

ContextCore::ContextCore(const ContextOptions& options)
    : options_(options), node_{random_u64()}, uid_(::geteuid()) {}

Result<std::shared_ptr<ContextCore>> ContextCore::create(const ContextOptions& options) {
  if (!std::has_single_bit(options.ring_bytes) || options.ring_bytes < 1024 ||
      options.ring_bytes > (64u << 20)) {
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
  own_lane_ = lane(uid_);
  if (own_lane_ == nullptr) return Error{ENOMEM, "no shared memory for the NIC (memfd_create)"};
  if (!options_.network.enabled) return {};
  auto network = Network::start(*this, options_.network);
  if (!network) return network.error();
  network_ = std::move(*network);
  return {};
}

ContextCore::~ContextCore() {
  shut_down();
  unwatch_forks(this);
}

void ContextCore::shut_down() {
  if (!usable_.exchange(false)) return;
  std::vector<std::shared_ptr<nic::Link>> links;
  {
    std::lock_guard lock(mutex_);
    links = links_;
  }
  for (const auto& link : links) link->shut_down();
  reactor_.stop();
  if (network_) network_->shut_down();
  // The driver is gone; tell everyone that waits for a peer.
  for (const auto& link : links) on_link_down(link);
  std::lock_guard lock(mutex_);
  services_.clear();
  for (EventQueueCore* queue : queues_) {
    if (queue != nullptr) queue->wake_all();
  }
}

void ContextCore::abandon_after_fork() {
  usable_.store(false);
  reactor_.abandon_after_fork();
  doorbell_.reset();
  if (network_) network_->abandon_after_fork();
  for (const auto& link : links_) link->abandon_after_fork();
  // A sleeping connection of the parent is not ours to wake; ours answer "unusable".
}

// --- lanes -----------------------------------------------------------------------------------------

bool ContextCore::allowed(uid_t uid) const {
  return uid == uid_ || std::find(options_.allow_uids.begin(), options_.allow_uids.end(), uid) !=
                            options_.allow_uids.end();
}

nic::Nic* ContextCore::lane(uid_t uid) {
  if (!allowed(uid)) return nullptr;
  std::lock_guard lock(mutex_);
  if (auto it = lanes_.find(uid); it != lanes_.end()) return it->second.get();
  auto nic = nic::Nic::create(node_, uid);
  if (!nic) {
    CLAN_WARN("%s", nic.error().message().c_str());
    return nullptr;
  }
  (*nic)->set_ringer(this);
  nic::Nic* result = nic->get();
  lanes_.emplace(uid, std::move(*nic));
  for (EventQueueCore* queue : queues_) {  // under the lock: they unregister before they go
    if (queue != nullptr) queue->add_lane(result->image());
  }
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
  std::lock_guard lock(mutex_);
  c.links = static_cast<std::uint64_t>(
      std::count_if(links_.begin(), links_.end(), [](const auto& l) { return l->alive() && l->settled(); }));
  for (const auto& [uid, nic] : lanes_) {
    c.apertures += nic->live_apertures();
    c.tripwires += nic->live_tripwires();
  }
  return c;
}

// --- links -----------------------------------------------------------------------------------------

// A peer says itself which node it is, the kernel says whose it is: no user can pass for another one's node. On
// other hosts, whoever holds the pre-shared key is taken for our own user, whatever number it has there.
std::shared_ptr<nic::Link> ContextCore::find_link(NodeId node, uid_t uid) {
  std::lock_guard lock(mutex_);
  for (const auto& link : links_) {
    if (link->remote_node() == node && link->alive() && link->settled() &&
        (link->remote_uid() == uid || !link->capabilities().mapped)) {
      return link;
    }
  }
  return nullptr;
}

void ContextCore::add_link(std::shared_ptr<nic::Link> link) {
  std::lock_guard lock(mutex_);
  if (!link->capabilities().mapped) packet_links_.store(true, std::memory_order_relaxed);
  CLAN_INFO("linked with process %d of user %u over %s", static_cast<int>(link->remote_pid()),
            static_cast<unsigned>(link->remote_uid()), link->capabilities().name);
  links_.push_back(std::move(link));
}

namespace {
std::uint32_t generation_of(const nic::Nic& nic, std::uint32_t aperture) {
  // relaxed: ours
  return static_cast<std::uint32_t>(
      nic.image().tables->apertures[aperture].generation.load(std::memory_order_relaxed));
}
}  // namespace

Status ContextCore::revoke(nic::Nic& nic, std::uint32_t aperture) {
  const std::uint32_t generation = generation_of(nic, aperture);
  Status s = nic.revoke(aperture, [&](std::uint32_t slot) { return peer_alive(nic, slot); });
  if (s) announce_revoked(nic, aperture, generation);
  return s;
}

void ContextCore::retire(nic::Nic& nic, std::uint32_t aperture) {
  const std::uint32_t generation = generation_of(nic, aperture);
  nic.retire(aperture);
  announce_revoked(nic, aperture, generation);
}

void ContextCore::announce_revoked(const nic::Nic& nic, std::uint32_t aperture,
                                   std::uint32_t generation) {
  // relaxed: a peer that a link brought later has no handle of this aperture
  if (!packet_links_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(mutex_);
  for (const auto& link : links_) {
    if (link->remote_uid() == nic.peers_uid()) link->announce_revoked(aperture, generation);
  }
}

bool ContextCore::peer_alive(const nic::Nic& nic, std::uint32_t slot) {
  std::lock_guard lock(mutex_);
  for (const auto& link : links_) {
    if (link->holds_slot(nic, slot)) return link->alive();
  }
  return false;
}

void ContextCore::fetch_slowly() {
  if (network_) network_->progress();
}

void ContextCore::before_sleep() {
  if (network_) network_->before_sleep();
}

void ContextCore::after_sleep() {
  if (network_) network_->after_sleep();
}

int ContextCore::sleep_on(int fd, std::uint64_t deadline_ns) {
  return network_->sleep_on(fd, deadline_ns);
}

void ContextCore::leave_packets_to_driver() {
  if (has_packets()) network_->keep_watching();
}

bool ContextCore::help_slowly() {
  own_lane_->image().signals->help_wanted.store(0, std::memory_order_seq_cst);
  // At most one link is helped per call, without the lock: a copy takes its time.
  std::shared_ptr<nic::Link> wants;
  {
    std::lock_guard lock(mutex_);
    for (const auto& link : links_) {
      if (!link->wants_help()) continue;
      if (wants) {  // more than one: come back for the others
        own_lane_->image().signals->help_wanted.store(1, std::memory_order_seq_cst);
        break;
      }
      wants = link;
    }
  }
  return wants && wants->help();
}

void ContextCore::watch_doorbell() {
  if (doorbell_watched_.exchange(true)) return;
  auto s = reactor_.add(doorbell_.get(), std::make_shared<Doorbell>(*this, doorbell_.get()));
  if (!s) CLAN_WARN("%s", s.error().message().c_str());
}

std::shared_ptr<RegionArena> ContextCore::arena(const nic::Link* link) {
  std::lock_guard lock(mutex_);
  auto& arena = arenas_[link];
  if (!arena) arena = std::make_shared<RegionArena>();
  return arena;
}

Result<std::shared_ptr<nic::Link>> ContextCore::dial(const std::string& name, uid_t owner,
                                                     std::uint64_t deadline_ns,
                                                     std::uint32_t* endpoint) {
  if (!usable()) return unusable_error();
  auto peer = link::dial(name, owner, node_, doorbell_.get(), [this](uid_t uid) { return lane(uid); },
                         deadline_ns, endpoint);
  if (!peer) return peer.error();
  return link_with(std::move(*peer));
}

// A peer has answered our hello.
Result<std::shared_ptr<nic::Link>> ContextCore::link_with(link::ShmPeer peer) {
  // Somebody else may have linked us with that node in the meantime, or under another name.
  // (A link with ourselves has its other end in the same table, so we always keep the one just made.)
  if (auto known = peer.node == node_ ? nullptr : find_link(peer.node, peer.credentials.uid)) {
    end_dial(peer);
    return known;
  }
  nic::Nic* nic = lane(peer.credentials.uid);
  auto link = std::make_shared<link::ShmLink>(std::move(peer), *nic, *this, reactor_,
                                              link::ShmLink::Options{options_.direct_copy});
  if (auto s = begin(link); !s) return s.error();
  link->confirm();
  announce_queue_fds(*link);
  return std::static_pointer_cast<nic::Link>(link);
}

void ContextCore::end_dial(const link::ShmPeer& peer) {
  lane(peer.credentials.uid)->remove_peer_slot(peer.peer_slot);
}

std::shared_ptr<nic::Link> ContextCore::known_link(const std::string& service, uid_t uid,
                                                   std::uint32_t* endpoint) {
  std::lock_guard lock(mutex_);
  auto it = known_services_.find(service_name(uid, service));
  if (it == known_services_.end()) return nullptr;
  auto link = it->second.link.lock();
  if (!link || !link->alive()) return nullptr;
  *endpoint = it->second.endpoint;
  return link;
}

Result<link::ShmPeer> ContextCore::begin_dial(const std::string& service, uid_t uid) {
  auto peer = link::begin_dial(service_name(uid, service), uid, node_, doorbell_.get(),
                               [this](uid_t peers) { return lane(peers); });
  if (!peer && peer.error().err == ENAMETOOLONG) return service_name_too_long();
  return peer;
}

Result<std::shared_ptr<nic::Link>> ContextCore::dialled(link::ShmPeer peer, const std::string& service,
                                                        std::uint32_t endpoint) {
  const uid_t uid = peer.credentials.uid;
  auto link = link_with(std::move(peer));
  if (!link) return link;
  std::lock_guard lock(mutex_);
  known_services_[service_name(uid, service)] = {*link, endpoint};
  return link;
}

Result<std::shared_ptr<nic::Link>> ContextCore::link_to_service(const std::string& service, uid_t uid,
                                                               std::uint64_t deadline_ns,
                                                               std::uint32_t* endpoint,
                                                               bool* remembered) {
  if (auto link = known_link(service, uid, endpoint)) {
    if (remembered != nullptr) *remembered = true;
    return link;
  }
  const std::string name = service_name(uid, service);
  auto link = Network::is_remote(service) ? link_to_host(service, uid, deadline_ns, endpoint)
                                          : dial(name, uid, deadline_ns, endpoint);
  if (!link) {
    CLAN_INFO("no link to service \"%s\" of user %u: %s", service.c_str(), static_cast<unsigned>(uid),
              link.error().message().c_str());
    if (link.error().err == ENAMETOOLONG) return service_name_too_long();
    return link;
  }
  std::lock_guard lock(mutex_);
  known_services_[name] = {*link, *endpoint};
  return link;
}

Result<std::shared_ptr<nic::Link>> ContextCore::link_to_host(const std::string& service, uid_t uid,
                                                             std::uint64_t deadline_ns,
                                                             std::uint32_t* endpoint) {
  if (!usable()) return unusable_error();
  if (!network_) {
    return Error{EHOSTUNREACH, "a service of another host needs ContextOptions::network enabled"};
  }
  auto link = network_->link_to(service, deadline_ns, endpoint);
  if (!link) return link;
  // Another service of that node may have been asked for before.
  if (auto known = find_link((*link)->remote_node(), uid); known && !known->capabilities().mapped) {
    (*link)->shut_down();
    return known;
  }
  add_link(*link);
  return link;
}

bool ContextCore::find_service(const std::string& service, std::uint32_t* endpoint) {
  std::lock_guard lock(mutex_);
  auto it = services_.find(service);
  if (it == services_.end()) return false;
  *endpoint = it->second.endpoint;
  return true;
}

bool ContextCore::forget_service(const nic::Link& link, std::uint32_t endpoint) {
  std::lock_guard lock(mutex_);
  return std::erase_if(known_services_, [&](const auto& known) {
           return known.second.endpoint == endpoint && known.second.link.lock().get() == &link;
         }) > 0;
}

Result<std::shared_ptr<nic::Link>> ContextCore::link_to_node(NodeId node, uid_t uid,
                                                            std::uint64_t deadline_ns) {
  if (auto known = find_link(node, uid)) return known;
  std::uint32_t endpoint = 0;
  auto link = dial(node_name(uid, node), uid, deadline_ns, &endpoint);
  if (!link) {
    CLAN_INFO("no link to a node of user %u: %s", static_cast<unsigned>(uid),
              link.error().message().c_str());
    if (link.error().err == ECONNREFUSED) {
      return Error{ECONNREFUSED, "no process answers at this address: the one that gave it has ended"};
    }
  }
  if (link.ok() && (*link)->remote_node() != node) {
    return Error{ECONNREFUSED, "another node answers under that address"};
  }
  return link;
}

void ContextCore::on_client(Fd socket, std::uint32_t endpoint) {
  auto client = peer_credentials(socket.get());
  if (!client || !allowed(client->uid)) {
    CLAN_INFO("a process of user %d was refused: policy does not allow this user",
              client ? static_cast<int>(client->uid) : -1);
    link::refuse(socket.get(), node_, EACCES);
    return;
  }
  // The hello may not have arrived yet; answer() must not wait for it.
  char probe;
  ssize_t n = ::recv(socket.get(), &probe, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    int fd = socket.get();
    auto greeting = std::make_shared<Greeting>(*this, reactor_, std::move(socket), endpoint);
    (void)reactor_.add(fd, std::move(greeting));
    return;
  }
  auto peer = link::answer(std::move(socket), node_, doorbell_.get(),
                           [this](uid_t uid) { return lane(uid); }, endpoint);
  if (!peer) {
    if (peer.error().err == EPROTO) count(counters_.hostile_peers);
    CLAN_INFO("a process that asked for a link was refused: %s", peer.error().message().c_str());
    return;
  }
  nic::Nic* nic = lane(peer->credentials.uid);
  auto link = std::make_shared<link::ShmLink>(std::move(*peer), *nic, *this, reactor_,
                                              link::ShmLink::Options{options_.direct_copy, true});
  if (auto s = begin(link); !s) {
    CLAN_WARN("%s", s.error().message().c_str());
    return;
  }
  announce_queue_fds(*link);
}

// In the table before its first message can arrive; out of it again when none ever will.
Status ContextCore::begin(const std::shared_ptr<link::ShmLink>& link) {
  add_link(link);
  watch_doorbell();
  auto s = link->start();
  if (!s) {
    std::lock_guard lock(mutex_);
    std::erase(links_, link);
  }
  return s;
}

void ContextCore::on_link_down(const std::shared_ptr<nic::Link>& link) {
  for (const auto& sink : sinks()) sink->on_link_down(link);
  std::lock_guard lock(mutex_);
  if (std::erase(links_, link) > 0) {  // said once, by whoever finds it
    CLAN_INFO("the link with process %d is down", static_cast<int>(link->remote_pid()));
  }
  arenas_.erase(link.get());  // what the dead peer has mapped is never given to another one
  for (EventQueueCore* queue : queues_) {
    if (queue != nullptr) queue->rescan();
  }
}

// --- endpoints and services -----------------------------------------------------------------------

std::vector<std::shared_ptr<OobSink>> ContextCore::sinks() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<OobSink>> alive;
  for (const auto& [id, weak] : endpoints_) {
    if (auto sink = weak.lock()) alive.push_back(std::move(sink));
  }
  return alive;
}

Result<std::uint32_t> ContextCore::add_endpoint(std::weak_ptr<OobSink> sink) {
  if (!usable()) return unusable_error();
  std::lock_guard lock(mutex_);
  std::uint32_t id = next_endpoint_++;
  if (id == 0) return Error{ENOSPC, "2^32 endpoints have been used"};
  endpoints_[id] = std::move(sink);
  return id;
}

void ContextCore::remove_endpoint(std::uint32_t endpoint) {
  std::shared_ptr<OobSink> gone;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  endpoints_.erase(endpoint);
  if (auto it = kept_.find(endpoint); it != kept_.end()) {
    gone = std::move(it->second);
    kept_.erase(it);
  }
}

void ContextCore::keep_endpoint(std::uint32_t endpoint, std::shared_ptr<OobSink> sink) {
  std::lock_guard lock(mutex_);
  endpoints_[endpoint] = sink;
  kept_[endpoint] = std::move(sink);
}

void ContextCore::on_misbehaviour(const std::shared_ptr<nic::Link>&) { count(counters_.hostile_peers); }

Status ContextCore::add_service(const std::string& service, std::uint32_t endpoint) {
  if (!usable()) return unusable_error();
  if (service.empty() || service.find('\0') != std::string::npos) {
    return Error{EINVAL, "a service name must not be empty or contain a zero byte"};
  }
  if (Network::is_remote(service)) {
    return Error{EINVAL, "a service name must not begin with \"udp:\", which is for those of other hosts"};
  }
  auto listener = listen_abstract(service_name(uid_, service));
  if (!listener && listener.error().err == EADDRINUSE) {
    return Error{EADDRINUSE,
                 "another listener or endpoint offers this service already: end it (`ss -xlp` shows whose it "
                 "is) or take another name"};
  }
  if (!listener && listener.error().err == ENAMETOOLONG) return service_name_too_long();
  if (!listener) return listener.error();
  CLAN_DEBUG("service \"%s\" is offered", service.c_str());
  auto rendezvous = std::make_shared<Rendezvous>(*this, std::move(*listener), endpoint);
  if (auto s = reactor_.add(rendezvous->fd(), rendezvous); !s) return s;
  auto teller = network_ ? network_->tell_port_of(service) : nullptr;
  std::lock_guard lock(mutex_);
  services_[service] = {rendezvous, rendezvous->fd(), endpoint, std::move(teller)};
  return {};
}

void ContextCore::remove_service(const std::string& service) {
  Service gone;
  std::unique_lock lock(mutex_);
  auto it = services_.find(service);
  if (it == services_.end()) return;
  gone = std::move(it->second);
  services_.erase(it);
  lock.unlock();
  reactor_.remove(gone.fd);
  if (network_ && gone.teller) network_->forget(gone.teller);
  // The driver may be in a call of it; the name is free when that has returned.
  while (!reactor_.on_reactor_thread() && gone.listener.use_count() > 1) ::usleep(20);
}

Status ContextCore::listen_as_node() {
  {
    std::lock_guard lock(mutex_);
    if (listens_as_node_) return {};
  }
  auto listener = listen_abstract(node_name(uid_, node_));
  if (!listener) {
    // Another thread of ours was faster: the name is ours, nobody else knows the node's number.
    std::lock_guard lock(mutex_);
    return listens_as_node_ ? Status() : listener.error();
  }
  auto rendezvous = std::make_shared<Rendezvous>(*this, std::move(*listener), 0);
  if (auto s = reactor_.add(rendezvous->fd(), rendezvous); !s) return s;
  std::lock_guard lock(mutex_);
  listens_as_node_ = true;
  services_["node/" + std::to_string(node_.value)] = {rendezvous, rendezvous->fd(), 0, nullptr};
  return {};
}

void ContextCore::on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) {
  if (message.type == kOobLookUp) {
    answer_look_up(*this, *link, message);
    return;
  }
  std::shared_ptr<OobSink> sink;
  {
    std::lock_guard lock(mutex_);
    if (auto it = endpoints_.find(message.to); it != endpoints_.end()) sink = it->second.lock();
  }
  if (sink) {
    sink->on_oob(link, message);
  } else if (message.type == kOobConnect) {
    Connection::refuse(*link, message, ECONNREFUSED);
  } else {
    count(counters_.oob_discarded);
  }
}

// --- RDMA ------------------------------------------------------------------------------------------

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

// --- event queues ----------------------------------------------------------------------------------

Result<std::uint32_t> ContextCore::add_queue(EventQueueCore* queue) {
  if (!usable()) return unusable_error();
  std::lock_guard lock(mutex_);
  auto free = std::find(queues_.begin(), queues_.end(), nullptr);
  if (free == queues_.end()) {
    if (queues_.size() == shm::kMaxEventQueues) {
      return Error{ENOSPC, "4096 event queues exist in this context already"};
    }
    queues_.push_back(nullptr);
    free = queues_.end() - 1;
  }
  const auto index = static_cast<std::uint32_t>(free - queues_.begin());
  queue->set_index(index);
  *free = queue;
  return index;
}

void ContextCore::remove_queue(std::uint32_t queue) {
  std::lock_guard lock(mutex_);
  queues_[queue] = nullptr;
}

Result<int> ContextCore::queue_fd(std::uint32_t queue) {
  if (!usable()) return unusable_error();
  std::vector<std::shared_ptr<nic::Link>> links;
  int eventfd;
  {
    std::lock_guard lock(mutex_);
    if (queue_fds_.size() <= queue) queue_fds_.resize(queue + 1);
    Fd& fd = queue_fds_[queue];
    if (fd) return fd.get();
    auto made = create_eventfd();
    if (!made) return made.error();
    fd = std::move(*made);
    eventfd = fd.get();
    links = links_;
  }
  for (const auto& link : links) link->announce_queue_fd(queue, eventfd);
  return eventfd;
}

// A new peer learns the descriptors that exist. Until it has them it rings the doorbell instead.
void ContextCore::announce_queue_fds(nic::Link& link) {
  std::vector<std::pair<std::uint32_t, int>> fds;
  {
    std::lock_guard lock(mutex_);
    for (std::uint32_t i = 0; i < queue_fds_.size(); ++i) {
      if (queue_fds_[i]) fds.emplace_back(i, queue_fds_[i].get());
    }
  }
  for (auto [queue, fd] : fds) link.announce_queue_fd(queue, fd);
}

void ContextCore::ring(std::uint32_t queue) {
  std::lock_guard lock(mutex_);
  if (queue < queues_.size() && queues_[queue] != nullptr) queues_[queue]->ring();
}

void ContextCore::ring_all() {
  std::lock_guard lock(mutex_);
  for (EventQueueCore* queue : queues_) {
    if (queue != nullptr) queue->ring();
  }
}

}  // namespace clan::engine

namespace clan {

Context::Context(std::shared_ptr<engine::ContextCore> core) : core_(std::move(core)) {}
Context::Context(Context&&) noexcept = default;
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
