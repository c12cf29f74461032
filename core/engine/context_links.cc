// ContextCore's links: made when a client comes or this process dials, known until their peer is
// gone.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/futex.h"
#include "base/wait_call.h"
#include "clan/event_queue.h"
#include "clan/log.h"
#include "engine/context_core.h"
#include "engine/network.h"

namespace clan::engine {
namespace {

// A peer rang our doorbell because it had no descriptor for the queue yet.
class Doorbell final : public Pollable {
 public:
  Doorbell(QueueTable& queues, int fd) : queues_(queues), fd_(fd) {}
  void on_ready(std::uint32_t) override {
    drain_eventfd(fd_);
    queues_.ring_all();
  }

 private:
  QueueTable& queues_;
  int fd_;
};

}  // namespace

// A peer says itself which node it is, the kernel says whose it is: no user can pass for another
// one's node. On other hosts, a process that holds the pre-shared key is taken for our own user,
// whatever number it has there, and nobody says which node it is but itself: so a link of this host
// goes first, no other host has our own node, and the rest is up to FarNodes.
std::shared_ptr<nic::Link> ContextCore::find_link(NodeId node, uid_t uid) {
  std::lock_guard lock(mutex_);
  const auto find = [&](bool mapped) -> std::shared_ptr<nic::Link> {
    for (const auto& link : links_) {
      if (link->remote_node() == node && link->alive() && link->settled() &&
          link->capabilities().mapped == mapped &&
          (mapped ? link->remote_uid() == uid : far_nodes_.believed(link.get()))) {
        return link;
      }
    }
    return nullptr;
  };
  if (auto link = find(true)) return link;
  return node == node_ ? nullptr : find(false);
}

void ContextCore::add_link(std::shared_ptr<nic::Link> link) {
  std::lock_guard lock(mutex_);
  if (link->capabilities().mapped) {
    far_nodes_.is_here(link->remote_node());
  } else {
    packet_links_.store(true, std::memory_order_relaxed);
  }
  CLAN_INFO("linked with process %d of user %u over %s", static_cast<int>(link->remote_pid()),
            static_cast<unsigned>(link->remote_uid()), link->capabilities().name);
  links_.push_back(std::move(link));
}

// Whether a process of this host listens as that node. Whatever stands in the way of asking it,
// somebody is there.
bool ContextCore::answers_here(NodeId node) {
  const auto answers = [&](uid_t uid) {
    const auto socket = connect_abstract(node_name(uid, node), 0);
    return socket.ok() || socket.error().err != ECONNREFUSED;
  };
  return node == node_ || answers(uid_) ||
         std::any_of(options_.allow_uids.begin(), options_.allow_uids.end(), answers);
}

// A process of this host that comes by the loopback address is taken at its word, as it is by
// shared memory: it counts as our own user. A context listens as a node before others hear of its
// number, so a number that nobody answers to now is none of this host's.
void ContextCore::add_far_link(std::shared_ptr<nic::Link> link) {
  const std::string address = link->remote_address();
  const NodeId node = link->remote_node();
  if (address.empty()) return add_link(std::move(link));  // it has gone already
  const bool by_loopback = address.starts_with("127.0.0.1:") || address.starts_with("[::1]:");
  const bool here = !by_loopback && answers_here(node);
  bool believed;
  {
    std::lock_guard lock(mutex_);
    if (here) far_nodes_.is_here(node);
    believed = far_nodes_.add(link.get(), node, address);
  }
  if (!believed) {
    CLAN_INFO(
        "the peer at %s says that it is a node that is known elsewhere: it is reached by the names "
        "of its services only",
        address.c_str());
  }
  add_link(std::move(link));
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
  if (network_) network_->fetch();
}

static_assert(EventQueue::kMostFds == udp::Sleep::kMostFds);
int ContextCore::sleep_on(std::span<pollfd> fds, std::uint64_t deadline_ns) {
  if (!has_packets()) return sys::poll_until(fds, deadline_ns);
  return network_->sleep(
      {.fds = fds, .deadline_ns = deadline_ns, .locks = udp::Sleep::Locks::kNone});
}

int ContextCore::sleep_on(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                          std::uint64_t deadline_ns) {
  if (!has_packets()) return futex_wait(word, seen, deadline_ns);
  return network_->sleep({.word = &word,
                          .seen = seen,
                          .deadline_ns = deadline_ns,
                          .locks = udp::Sleep::Locks::kNone});
}

void ContextCore::wake_sleeper() {
  if (has_packets()) network_->wake_sleepers();
}

void ContextCore::leave_packets_to_driver() {
  if (has_packets()) network_->keep_watching();
}

bool ContextCore::help_slowly() {
  // PAIR job.help: cleared before the look at the links, so that a job announced later sets it
  // again
  own_lane_->image().signals->help_wanted.store(0, std::memory_order_seq_cst);
  // At most one link is helped per call, without the lock: a copy takes its time.
  std::shared_ptr<nic::Link> wants;
  {
    std::lock_guard lock(mutex_);
    for (const auto& link : links_) {
      if (!link->wants_help()) continue;
      if (wants) {  // more than one: come back for the others
        // PAIR job.help: as above
        own_lane_->image().signals->help_wanted.store(1, std::memory_order_seq_cst);
        break;
      }
      wants = link;
    }
  }
  return wants && wants->help();
}

void ContextCore::watch_doorbell() {
  // relaxed: the first adds it
  if (doorbell_watched_.exchange(true, std::memory_order_relaxed)) return;
  auto s = reactor_.add(doorbell_.get(), std::make_shared<Doorbell>(queues_, doorbell_.get()));
  if (!s) CLAN_WARN("%s", s.error().message().c_str());
}

std::shared_ptr<RegionArena> ContextCore::arena(const nic::Link* link) {
  std::lock_guard lock(mutex_);
  auto& arena = arenas_[link];
  if (!arena) arena = std::make_shared<RegionArena>();
  return arena;
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
    Greeting::await(*this, reactor_, std::move(socket), endpoint);
    return;
  }
  auto peer = link::answer(
      std::move(socket), node_, doorbell_.get(), [this](uid_t uid) { return lane(uid); }, endpoint);
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
  for (const auto& sink : endpoints_.all()) sink->on_link_down(link);
  std::unique_lock lock(mutex_);
  if (std::erase(links_, link) > 0) {  // said once, by whoever finds it
    CLAN_INFO("the link with process %d is down", static_cast<int>(link->remote_pid()));
  }
  far_nodes_.remove(link.get());
  arenas_.erase(link.get());  // what the dead peer has mapped is never given to another one
  lock.unlock();
  queues_.rescan_all();
}

// A new peer learns the descriptors that exist. Until it has them it rings the doorbell instead.
void ContextCore::announce_queue_fds(nic::Link& link) {
  for (auto [queue, fd] : queues_.fds()) link.announce_queue_fd(queue, fd);
}

}  // namespace clan::engine
