#include <clan/af_clan.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "../service_manager.h"
#include "gateway.h"

namespace clan::gateway {
namespace {

constexpr int kMostAccepts = 64;  // in a turn

void set_option(int fd, int level, int name, int value) {
  (void)setsockopt(fd, level, name, &value, sizeof value);
}

/// What accepted sockets have from their listener.
void set_options(int fd, const Rule& rule) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  if (rule.keep_alive_s > 0)
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(rule.keep_alive_s));
}

/// A socket that listens there; without one, errno says why.
Socket listen_at(const Address& address, std::uint32_t backlog) {
  Socket socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return {};
  set_option(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family() == AF_INET6) set_option(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  const bool listens = bind(socket.fd(), address.raw(), address.size()) == 0 &&
                       listen(socket.fd(), static_cast<int>(backlog)) == 0;
  return listens ? std::move(socket) : Socket();
}

}  // namespace

/// Finds or makes the listener of a rule. The empty string, or why there is none.
std::string Gateway::open(const Rule& rule, std::vector<Socket>& inherited, Listener& listener) {
  listener.address = rule.listen;
  listener.route = std::make_shared<Route>(rule, *page_, std::make_shared<Counts>());
  for (Socket& socket : inherited) {
    if (!socket || !Address::local_of(socket.fd()).same_place(rule.listen)) continue;
    listener.socket = std::move(socket);
    (void)listen(listener.socket.fd(), static_cast<int>(rule.backlog));
    return "";
  }
  listener.socket = listen_at(rule.listen, rule.backlog);
  if (!listener.socket && errno == EAFNOSUPPORT && rule.listen.is_any())  // no IPv6 here
    listener.socket =
        listen_at(Address::of_ip({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}, rule.listen.port()),
                  rule.backlog);
  if (listener.socket) return "";
  if (rule.listen.family() == AF_CLAN && errno == EAFNOSUPPORT)
    return fmt::format("{}: start it by `clan gateway`, or under `clan run`", rule.listen_text);
  return fmt::format("{}: {}", rule.listen_text, std::strerror(errno));
}

/// Has these rules from now on, or changes nothing and says why.
std::string Gateway::apply(const std::vector<Rule>& rules, std::vector<Socket> inherited) {
  std::vector<std::unique_ptr<Listener>> listeners;
  for (const Rule& rule : rules) {
    const auto same = [&](const auto& old) { return old->address.same_place(rule.listen); };
    const auto old = std::find_if(listeners_.begin(), listeners_.end(), same);
    auto& listener = listeners.emplace_back(std::make_unique<Listener>());
    if (old != listeners_.end()) {
      listener->address = rule.listen;
      listener->route = std::make_shared<Route>(rule, *page_, (*old)->route->counts());
    } else if (std::string error = open(rule, inherited, *listener); !error.empty()) {
      return error;
    }
  }
  for (auto& listener : listeners) {  // nothing can fail any more
    for (auto& old : listeners_) {
      if (!listener->socket && old->address.same_place(listener->address))
        listener->socket = std::move(old->socket);
    }
    set_options(listener->socket.fd(), listener->route->rule());
    for (const Target& target : listener->route->targets()) {
      if (target.name.service.empty() || natives_) continue;
      auto natives = Natives::create(set_.fd(), tag_of(Other::kNatives));
      if (natives)
        natives_ = std::move(*natives);
      else
        why_no_natives_ = natives.error().message();
    }
  }
  listeners_ = std::move(listeners);
  watch_listeners();
  return "";
}

void Gateway::read_file_again() {
  tool::notify("RELOADING=1");
  const Config config = config_.file.empty() ? config_ : read_file(config_.file);
  std::string error = config.error;
  if (draining_) error = "it drains";
  if (error.empty()) error = apply(config.rules, {});
  count(error.empty() ? page_->reloads : page_->failed_reloads);
  say(error.empty() ? fmt::format("event=reload rules={}", config.rules.size())
                    : fmt::format("event=reload-failed why=\"{}\"", error));
  tool::notify("READY=1");
}

void Gateway::start_successor() {
  if (draining_ || successor_.pid > 0) return;
  std::vector<int> fds;
  for (const auto& listener : listeners_) fds.push_back(listener->socket.fd());
  successor_ = Successor::start(arguments_, fds);
  if (successor_.pid < 0) {
    count_failed_start();
    return say(fmt::format("event=reload-failed why=\"{}\"", std::strerror(errno)));
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag_of(Other::kSuccessor);
  (void)epoll_ctl(set_.fd(), EPOLL_CTL_ADD, successor_.ready, &event);
}

void Gateway::count_failed_start() {
  count(page_->failed_reloads);
  page_->failed_starts.fetch_add(1, std::memory_order_relaxed);  // relaxed: read at any time
}

void Gateway::hear_successor() {
  char byte;
  const bool ready = read(successor_.ready, &byte, 1) == 1;
  close(successor_.ready);
  if (ready) {
    count(page_->reloads);
    page_->replaced.store(1, std::memory_order_relaxed);  // relaxed: read at any time
    tool::notify(fmt::format("MAINPID={}", successor_.pid));
    say(fmt::format("event=replaced by={} connections={}", successor_.pid, connections_.size()));
    return drain();
  }
  waitpid(successor_.pid, nullptr, 0);
  successor_ = {};
  count_failed_start();
  say("event=reload-failed why=\"the new program has ended\"");
}

/// Takes no more connections, and ends when there are none, or when the time is over.
void Gateway::drain() {
  if (draining_) return;
  draining_ = true;
  page_->draining.store(1, std::memory_order_relaxed);  // relaxed: read at any time
  end_at_ms_ = config_.drain_ms == 0 ? ~0ull : now_ms_ + config_.drain_ms;
  listeners_.clear();
}

/// There is room for a connection. Those that there is none for wait in the backlog.
bool Gateway::takes(const Listener& listener) const {
  return now_ms_ >= accept_at_ms_ && connections_.size() < most_connections_ &&
         !listener.route->full();
}

void Gateway::watch_listeners() {
  for (const auto& listener : listeners_) {
    const auto fd = static_cast<std::uint64_t>(listener->socket.fd());
    listener->socket.watch(set_.fd(), takes(*listener) ? EPOLLIN : 0u, tag_of(fd, kListener));
  }
}

void Gateway::accept_from(Listener& listener) {
  for (int i = 0; i < kMostAccepts && takes(listener); ++i) {
    sockaddr_storage raw{};
    socklen_t size = sizeof raw;
    const int fd = accept4(listener.socket.fd(), reinterpret_cast<sockaddr*>(&raw), &size,
                           SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      enter(listener, fd, Address(raw, size));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      count(page_->accept_errors);
      accept_at_ms_ = now_ms_ + kAcceptAgainMs;
    }
    if (errno != ECONNABORTED && errno != EINTR) return;
  }
}

void Gateway::enter(Listener& listener, int fd, const Address& peer) {
  const Rule& rule = listener.route->rule();
  Connection& connection = add(listener.route);
  count(page_->accepted);
  count(page_->connections);
  connection.route->enter();
  connection.client = Socket(fd);
  connection.peer = peer;
  if (!rule.accepts_proxy) return admit(connection);
  const auto sends_header = [&](const Network& network) { return network.contains(peer.ip()); };
  if (std::none_of(rule.proxies.begin(), rule.proxies.end(), sends_header)) {
    count(page_->refused_source);
    return reset(connection, "not of accept-proxy");
  }
  connection.stage = Connection::Stage::kHeader;
  set_deadline(connection, rule.header_ms);
  connection.client.watch(set_.fd(), EPOLLIN, tag_of(connection.id, kClient));
  read_header(connection);
}

/// The address of its client is known.
void Gateway::admit(Connection& connection) {
  const Ip source = connection.from().ip();
  if (!connection.route->enter_source(source)) {
    count(page_->refused_source);
    return reset(connection, "max-per-source");
  }
  connection.source = source;
  connect(connection);
}

void Gateway::read_header(Connection& connection) {
  std::string& held = connection.in.held;
  std::array<std::byte, kMostProxyHeader> room;
  const ssize_t n = connection.client.recv(std::span(room).first(room.size() - held.size()));
  if (n == kNotNow) return;
  if (n > 0) held.append(reinterpret_cast<const char*>(room.data()), static_cast<std::size_t>(n));
  const ProxyHeader header = read_proxy_header(held);
  if (n <= 0 || header.state == ProxyHeader::State::kWrong) {
    count(page_->refused_header);
    return reset(connection, n <= 0 ? "no header" : header.wrong);
  }
  if (header.state == ProxyHeader::State::kMore) return;
  held.erase(0, header.bytes);
  connection.in.bytes = held.size();
  connection.said = header.addresses;
  connection.tlvs = header.tlvs;
  connection.client.watch(set_.fd(), 0, tag_of(connection.id, kClient));
  admit(connection);
}

}  // namespace clan::gateway
