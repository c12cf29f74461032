// Network: how other hosts find services of this one, and the directory that one process holds for
// all of its user, and for other users' TCP connections, whose owner the kernel names.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <vector>

#include "base/fd.h"
#include "base/socket_owner.h"
#include "clan/detail/clock.h"
#include "clan/detail/log.h"
#include "clan/face/connection_name.h"
#include "engine/context/context_core.h"
#include "engine/context/network.h"

namespace clan::engine {
namespace {

constexpr int kAskMs = 200;      ///< the driver thread waits so long for a process of this host
constexpr int kAskOtherMs = 20;  ///< of another user, or while one is silent
constexpr std::size_t kMostWatchers = 1024;
constexpr std::size_t kMostOthers = 256;                  ///< of other users
constexpr std::uint64_t kNoAnswerFor = 2 * udp::kSecond;  ///< a process is not asked again so soon
constexpr std::size_t kMostSilent = 64;                   ///< services of such processes
constexpr unsigned kMostJoins = 8;     ///< of the directory, one soon after the other
constexpr unsigned kFirstWaitMs = 20;  ///< before the second, and twice as long before each next

std::string teller_name(uid_t user, const std::string& service) {
  return "clan/" + std::to_string(user) + "/udp/" + service;
}
std::string holder_name(uid_t user, std::uint16_t port) {
  return "clan/" + std::to_string(user) + "/udp-directory/" + std::to_string(port);
}

// An abstract name is whose takes it first, and anybody may connect to it.
bool is_user(uid_t user, int socket) {
  auto peer = peer_credentials(socket);
  return peer.ok() && peer->uid == user;
}

// The port of the user's process that offers the service; 0: none. `silent`: no answer in time.
std::uint16_t ask_port(uid_t user, const std::string& service, int wait_ms, bool* silent) {
  auto socket = connect_abstract(teller_name(user, service), 0);
  if (!socket || !is_user(user, socket->get())) return 0;
  pollfd ready{socket->get(), POLLIN, 0};
  std::uint16_t port = 0;
  *silent = ::poll(&ready, 1, wait_ms) == 0;
  if (*silent) return 0;
  return ::recv(socket->get(), &port, sizeof port, MSG_DONTWAIT) == sizeof port ? port : 0;
}

// The other user that has the connection whose end at this host is asked for.
std::optional<uid_t> other_owner_of(const std::string& service) {
  ConnectionName name;
  if (!name.read(service)) return std::nullopt;
  const auto owner = tcp_owner({name.server, name.server_port}, {name.client, name.client_port});
  return owner && *owner != ::geteuid() ? owner : std::nullopt;
}

// Sockets of those that watch us hold the directory, so that they see it end.
struct Watchers {
  std::vector<Fd> ours, others;

  void take(Fd client) {
    for (auto* list : {&ours, &others}) {
      std::erase_if(*list, [](const Fd& fd) {
        char byte;
        return ::recv(fd.get(), &byte, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN;
      });
    }
    const bool is_ours = is_user(::geteuid(), client.get());
    auto& list = is_ours ? ours : others;
    if (list.size() < (is_ours ? kMostWatchers : kMostOthers)) list.push_back(std::move(client));
  }
};

}  // namespace

// --- services ------------------------------------------------------------------------------------

int Network::find_service(const std::string& service, bool directory, udp::Greeting* answer) {
  if (const auto offered = context_.services().find(service)) {
    answer->endpoint = offered->endpoint;
    if (directory) answer->port = port();
    return 0;
  }
  if (!directory) return ECONNREFUSED;
  answer->port = ask_user(::geteuid(), service, service, kAskMs);
  if (answer->port != 0) return 0;
  if (const auto other = other_owner_of(service))
    answer->port = ask_user(*other, service, "user " + std::to_string(*other), kAskOtherMs);
  return answer->port == 0 ? ECONNREFUSED : 0;
}

// A stopped process makes the driver thread wait: so once in a while for each `about`, and only a
// moment while another is silent, as one process may have many names.
std::uint16_t Network::ask_user(uid_t user, const std::string& service, const std::string& about,
                                int wait_ms) {
  const std::uint64_t now = monotonic_ns();
  std::erase_if(silent_, [now](const auto& one) { return now - one.second >= kNoAnswerFor; });
  if (silent_.contains(about)) return 0;
  if (!silent_.empty()) wait_ms = kAskOtherMs;
  bool silent = false;
  const std::uint16_t found = ask_port(user, service, wait_ms, &silent);
  if (silent_.size() >= kMostSilent) silent_.clear();
  if (silent) silent_[about] = monotonic_ns();
  return found;
}

// Each client that connects has our node's port for an answer.
std::shared_ptr<Acceptor> Network::tell_port_of(const std::string& service) {
  auto listener = listen_abstract(teller_name(::geteuid(), service));
  if (!listener) {
    CLAN_WARN("other hosts find the service \"%s\" at port %u only: %s", service.c_str(), port(),
              listener.error().message().c_str());
    return nullptr;
  }
  auto teller = std::make_shared<Acceptor>(std::move(*listener), [port = port()](Fd client) {
    (void)::send(client.get(), &port, sizeof port, MSG_NOSIGNAL);
  });
  if (!context_.reactor().add(teller->fd(), teller)) return nullptr;
  return teller;
}

// --- the directory -------------------------------------------------------------------------------

// The port is bound before the name, so a client that finds neither checks again a little later.
void Network::join_directory() {
  ++joins_;
  if (hold_directory() || watch_holder()) return;
  join_later();
}

// The holder ended `after_ns`. If that is soon, again and again, it is none or has no room for us.
void Network::holder_ended(std::uint64_t after_ns) {
  if (after_ns > udp::kSecond) joins_ = 0;
  if (joins_ < 2) return join_directory();
  join_later();
}

void Network::join_later() {
  const std::uint64_t wait_ns = std::uint64_t{kFirstWaitMs * 1'000'000} << joins_;
  if (joins_ < kMostJoins &&
      context_.reactor().call_at(monotonic_ns() + wait_ns, [this] { join_directory(); }))
    return;
  const auto owner = udp_port_owner(options_.directory_port);
  CLAN_INFO(
      "UDP port %u is in use by user %s, of whom no CLAN program answers: other hosts do not find "
      "this one; CLAN_NETWORK_PORT names another port at both ends",
      options_.directory_port, owner ? std::to_string(*owner).c_str() : "(unknown)");
}

bool Network::hold_directory() {
  udp::SocketAddress local =
      options_.address.empty() ? udp::SocketAddress{} : node_->local_address();
  local.port = options_.directory_port;
  auto directory = make_node(local, true);
  if (!directory) return false;
  auto name = listen_abstract(holder_name(::geteuid(), options_.directory_port));
  if (name) {
    auto holder = std::make_shared<Acceptor>(std::move(*name),
                                             [watchers = std::make_shared<Watchers>()](Fd client) {
                                               watchers->take(std::move(client));
                                             });
    if (context_.reactor().add(holder->fd(), holder)) holder_ = std::move(holder);
  }
  std::lock_guard lock(mutex_);
  directory_ = std::move(*directory);
  return true;
}

// The holder's name contains the port owner's user id, so nobody else can pretend to hold it.
bool Network::watch_holder() {
  const auto found = udp_port_owner(options_.directory_port);
  const uid_t owner = found ? *found : ::geteuid();
  auto socket = connect_abstract(holder_name(owner, options_.directory_port), 0);
  if (!socket || !is_user(owner, socket->get())) return false;
  const auto watched = context_.reactor().once(
      std::move(*socket),
      [this, since = monotonic_ns()](Fd) { holder_ended(monotonic_ns() - since); });
  if (!watched) return false;
  if (owner != ::geteuid()) {
    CLAN_INFO(
        "UDP port %u belongs to user %u, whose program sends other hosts on to our connections if "
        "they have its key",
        options_.directory_port, owner);
  }
  return true;
}

}  // namespace clan::engine

namespace clan {

std::optional<unsigned> user_of_udp_port(std::uint16_t port) { return udp_port_owner(port); }

}  // namespace clan
