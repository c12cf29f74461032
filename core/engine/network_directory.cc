// Network: how services of this host are found from others, and the directory that one process of
// the user holds for all.
#include <poll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/fd.h"
#include "clan/clock.h"
#include "clan/log.h"
#include "engine/context_core.h"
#include "engine/network.h"

namespace clan::engine {
namespace {

constexpr long kAskUs = 200'000;  ///< the driver thread waits so long for a process of this host
constexpr std::size_t kMostWatchers = 1024;
constexpr std::uint64_t kNoAnswerFor = 2 * udp::kSecond;  ///< a process is not asked again so soon
constexpr std::size_t kMostSilent = 64;                   ///< services of such processes
constexpr unsigned kMostJoins = 8;     ///< of the directory, one soon after the other
constexpr unsigned kFirstWaitMs = 20;  ///< before the second, and twice as long before each next

std::string own_name(const std::string& service) {
  return "clan/" + std::to_string(::geteuid()) + "/udp/" + service;
}
std::string holder_name(std::uint16_t port) {
  return "clan/" + std::to_string(::geteuid()) + "/udp-directory/" + std::to_string(port);
}

// An abstract name is whose takes it first, and anybody may connect to it.
bool is_of_our_user(int socket) {
  auto peer = peer_credentials(socket);
  return peer.ok() && peer->uid == ::geteuid();
}

// A client waits in the kernel until we have a descriptor for it, and keeps the listener ready.
void wait_for_descriptors() {
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) ::usleep(10'000);
}

// At which port the process of this host that offers the service is; 0: nobody does. `silent`: it
// has not answered in time.
std::uint16_t ask_port(const std::string& service, bool* silent) {
  auto socket = connect_abstract(own_name(service), 0);
  if (!socket || !is_of_our_user(socket->get())) return 0;
  pollfd ready{socket->get(), POLLIN, 0};
  std::uint16_t port = 0;
  *silent = ::poll(&ready, 1, kAskUs / 1000) == 0;
  if (*silent) return 0;
  return ::recv(socket->get(), &port, sizeof port, MSG_DONTWAIT) == sizeof port ? port : 0;
}

}  // namespace

/// Answers each client that connects with our node's port.
class Network::Teller final : public Pollable {
 public:
  Teller(Fd listener, std::uint16_t port) : listener_(std::move(listener)), port_(port) {}
  int fd() const { return listener_.get(); }
  void on_ready(std::uint32_t) override {
    Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (client) {
      (void)::send(client.get(), &port_, sizeof port_, MSG_NOSIGNAL);
    } else {
      wait_for_descriptors();
    }
  }
  void abandon_after_fork() override { listener_.reset(); }

 private:
  Fd listener_;
  std::uint16_t port_;
};

/// At the holder: keeps the others' sockets, so that they see it end. At the others: sees it.
class Network::HolderWatch final : public Pollable {
 public:
  HolderWatch(Network* network, Fd socket, bool holds)
      : network_(network), socket_(std::move(socket)), holds_(holds) {}
  int fd() const { return socket_.get(); }
  void on_ready(std::uint32_t) override {
    if (!holds_) {
      network_->context_.reactor().remove(socket_.get());
      network_->holder_ended(monotonic_ns() - since_);
      return;
    }
    std::erase_if(watchers_, [](const Fd& fd) {
      char byte;
      return ::recv(fd.get(), &byte, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN;
    });
    Fd client(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client) return wait_for_descriptors();
    if (watchers_.size() < kMostWatchers && is_of_our_user(client.get()))
      watchers_.push_back(std::move(client));
  }
  void abandon_after_fork() override {
    watchers_.clear();
    socket_.reset();
  }

 private:
  Network* const network_;
  Fd socket_;
  const bool holds_;
  const std::uint64_t since_ = monotonic_ns();
  std::vector<Fd> watchers_;
};

/// Joins the directory again a little later.
class Network::Rejoin final : public Pollable {
 public:
  Rejoin(Network* network, Fd timer) : network_(network), timer_(std::move(timer)) {}
  int fd() const { return timer_.get(); }
  void on_ready(std::uint32_t) override {
    network_->context_.reactor().remove(timer_.get());
    network_->join_directory();
  }
  void abandon_after_fork() override { timer_.reset(); }

 private:
  Network* const network_;
  Fd timer_;
};

// --- services ------------------------------------------------------------------------------------

int Network::find_service(const std::string& service, bool directory, udp::Greeting* answer) {
  if (context_.services().find(service, &answer->endpoint)) {
    if (directory) answer->port = port();
    return 0;
  }
  if (!directory) return ECONNREFUSED;
  // A question makes the driver thread wait for a process that is stopped: once in a while.
  const std::uint64_t now = monotonic_ns();
  const auto it = silent_.find(service);
  if (it != silent_.end() && now - it->second < kNoAnswerFor) return ECONNREFUSED;
  bool silent = false;
  answer->port = ask_port(service, &silent);
  if (silent_.size() >= kMostSilent) silent_.clear();
  if (silent) silent_[service] = monotonic_ns();
  return answer->port == 0 ? ECONNREFUSED : 0;
}

std::shared_ptr<Pollable> Network::tell_port_of(const std::string& service) {
  auto listener = listen_abstract(own_name(service));
  if (!listener) {
    CLAN_WARN("other hosts find the service \"%s\" at port %u only: %s", service.c_str(), port(),
              listener.error().message().c_str());
    return nullptr;
  }
  auto teller = std::make_shared<Teller>(std::move(*listener), port());
  if (!context_.reactor().add(teller->fd(), teller)) return nullptr;
  return teller;
}

void Network::forget(const std::shared_ptr<Pollable>& teller) {
  context_.reactor().remove(static_cast<Teller&>(*teller).fd());
}

// --- the directory -------------------------------------------------------------------------------

// The port is bound before the name is, so a client that finds neither looks again a little
// later.
void Network::join_directory() {
  ++joins_;
  if (hold_directory() || watch_holder()) return;
  join_later();
}

// The holder has ended, `after_ns` since we found it. Where that is at once, again and again, it
// is no holder, or one that has no room for us.
void Network::holder_ended(std::uint64_t after_ns) {
  if (after_ns > udp::kSecond) joins_ = 0;
  if (joins_ < 2) return join_directory();
  join_later();
}

void Network::join_later() {
  Fd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  const std::uint64_t wait_ms = std::uint64_t{kFirstWaitMs} << joins_;
  itimerspec when{};
  when.it_value.tv_sec = static_cast<time_t>(wait_ms / 1000);
  when.it_value.tv_nsec = static_cast<long>(wait_ms % 1000 * 1'000'000);
  if (joins_ < kMostJoins && timer && ::timerfd_settime(timer.get(), 0, &when, nullptr) == 0) {
    auto rejoin = std::make_shared<Rejoin>(this, std::move(timer));
    if (context_.reactor().add(rejoin->fd(), rejoin).ok()) return;
  }
  CLAN_INFO("UDP port %u is in use by somebody else: other hosts have to name our port %u",
            options_.directory_port, port());
}

bool Network::hold_directory() {
  udp::SocketAddress local =
      options_.address.empty() ? udp::SocketAddress{} : node_->local_address();
  local.port = options_.directory_port;
  auto directory = make_node(local, true);
  if (!directory) return false;
  auto name = listen_abstract(holder_name(options_.directory_port));
  if (name) {
    auto watch = std::make_shared<HolderWatch>(this, std::move(*name), true);
    if (context_.reactor().add(watch->fd(), watch)) holder_ = std::move(watch);
  }
  std::lock_guard lock(mutex_);
  directory_ = std::move(*directory);
  return true;
}

bool Network::watch_holder() {
  auto socket = connect_abstract(holder_name(options_.directory_port), 0);
  if (!socket || !is_of_our_user(socket->get())) return false;
  auto watch = std::make_shared<HolderWatch>(this, std::move(*socket), false);
  return context_.reactor().add(watch->fd(), watch).ok();
}

}  // namespace clan::engine
