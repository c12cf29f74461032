// ContextCore's links: made when a client comes or this process dials, until their peer is gone.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "clan/detail/log.h"
#include "engine/context/context_core.h"
#include "engine/event/event_queue_core.h"

namespace clan::engine {
namespace {

// A peer rang our doorbell because it had no descriptor for the queue yet.
class Doorbell final : public Pollable {
 public:
  Doorbell(QueueTable& queues, int fd) : queues_(queues), fd_(fd) {}
  void on_ready(std::uint32_t) override {
    drain_eventfd(fd_);
    queues_.for_each([](EventQueueCore& queue) { queue.ring(); });
  }

 private:
  QueueTable& queues_;
  int fd_;
};

// Whether a process of this host listens as that node. Yes, if it cannot be asked.
bool answers_here(const ContextCore& context, NodeId node) {
  const auto answers = [&](uid_t uid) {
    const auto socket = connect_abstract(node_name(uid, node), 0);
    return socket.ok() || socket.error().err != ECONNREFUSED;
  };
  const auto& allowed = context.options().allow_uids;
  return node == context.node() || answers(context.owner(-1)) ||
         std::any_of(allowed.begin(), allowed.end(), answers);
}

}  // namespace

void ContextCore::add_link(std::shared_ptr<nic::Link> link) {
  CLAN_INFO("linked with process %d of user %u over %s", static_cast<int>(link->remote_pid()),
            static_cast<unsigned>(link->remote_uid()), link->capabilities().name);
  links_.add(std::move(link));
}

// A process of this host that comes by loopback is believed, as over shared memory: it counts as
// our user. A context listens as a node before others learn its number, so a number that nobody
// answers to now belongs to no node of this host.
void ContextCore::add_far_link(std::shared_ptr<nic::Link> link) {
  const std::string address = link->remote_address();
  const NodeId node = link->remote_node();
  if (address.empty()) return add_link(std::move(link));  // it has gone already
  const bool by_loopback = address.starts_with("127.0.0.1:") || address.starts_with("[::1]:");
  const bool here = !by_loopback && answers_here(*this, node);
  if (!links_.believe(*link, node, address, here)) {
    CLAN_INFO(
        "the peer at %s says that it is a node that is known elsewhere: it is reached by the names "
        "of its services only",
        address.c_str());
  }
  add_link(std::move(link));
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
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return (void)reactor_.once(
        std::move(socket), [this, endpoint](Fd spoken) { on_client(std::move(spoken), endpoint); });
  auto peer = link::answer(
      std::move(socket), node_, doorbell_.get(), [this](uid_t uid) { return lane(uid); }, endpoint);
  if (!peer) {
    if (peer.error().err == EPROTO) count(counters_.hostile_peers);
    CLAN_INFO("a process that asked for a link was refused: %s", peer.error().message().c_str());
    return;
  }
  auto link = begin_link(std::move(*peer), true);
  if (!link) CLAN_WARN("%s", link.error().message().c_str());
}

// The link is in the table before its first message can arrive. `accepted`: the peer has dialled.
Result<std::shared_ptr<nic::Link>> ContextCore::begin_link(link::ShmPeer peer, bool accepted) {
  nic::Nic* nic = lane(peer.credentials.uid);
  auto link =
      std::make_shared<link::ShmLink>(std::move(peer), *nic, *this, reactor_,
                                      link::ShmLink::Options{options_.direct_copy, accepted});
  add_link(link);
  // relaxed: the first adds it
  if (!doorbell_watched_.exchange(true, std::memory_order_relaxed)) {
    auto s = reactor_.add(doorbell_.get(), std::make_shared<Doorbell>(queues_, doorbell_.get()));
    if (!s) CLAN_WARN("%s", s.error().message().c_str());
  }
  if (auto s = link->start(); !s) {
    links_.remove(link);
    return s.error();
  }
  if (!accepted) link->confirm();
  // Until the peer has these descriptors it rings the doorbell instead.
  for (auto [queue, fd] : queues_.fds()) link->announce_queue_fd(queue, fd);
  return std::static_pointer_cast<nic::Link>(link);
}

void ContextCore::on_link_down(const std::shared_ptr<nic::Link>& link) {
  for (const auto& sink : endpoints_.all()) sink->on_link_down(link);
  if (links_.remove(link)) {  // said once, by the thread that finds it
    CLAN_INFO("the link with process %d is down", static_cast<int>(link->remote_pid()));
  }
  // It may have left something half done.
  queues_.for_each([](EventQueueCore& queue) { queue.rescan(); });
}

}  // namespace clan::engine
