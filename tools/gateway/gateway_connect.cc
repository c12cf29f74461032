#include <clan/af_clan.h>
#include <clan/detail/clock.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "gateway.h"

namespace clan::gateway {

std::string Gateway::header_of(const Connection& connection) const {
  const ProxyVersion version = connection.route->rule().sends_proxy;
  if (version == ProxyVersion::kNone) return "";
  if (connection.is_check()) return local_proxy_header(version);
  if (connection.said) return proxy_header(version, *connection.said, connection.tlvs);
  return proxy_header(version, {connection.peer, Address::local_of(connection.client.fd())});
}

/// Tries targets until one is connected, or about to be.
void Gateway::connect(Connection& connection) {
  connection.stage = Connection::Stage::kConnecting;
  for (;;) {
    Route& route = *connection.route;
    if (!connection.is_check()) connection.target = route.choose(connection.tried, now_ms_);
    Target* target = connection.target;
    if (target == nullptr) {
      count(page_->refused_target);
      return reset(connection, "no target");
    }
    connection.tried |= route.bit_of(*target);
    connection.address = target->address;
    connection.addresses_left = target->name.addresses.size();
    if (target->name.service.empty()) {
      if (connect_socket(connection)) return;
    } else if (natives_) {
      const std::uint64_t limit_ms = route.rule().connect_ms;
      set_deadline(connection, 0);  // there will be an answer
      return natives_->connect(target->name.service, connection.id,
                               limit_ms == 0 ? kNoDeadline : (now_ms_ + limit_ms) * 1'000'000);
    } else {
      say(fmt::format("event=failed target={} why=\"{}\"", target->name.text, why_no_natives_));
    }
    count(page_->failed_connects);
    route.failed(*target, now_ms_);
    if (connection.is_check()) return forget(connection, "");
  }
}

/// Tries the addresses of the target that are left. False: all have refused at once. The connection
/// may be gone when this returns true.
bool Gateway::connect_socket(Connection& connection) {
  for (; connection.addresses_left > 0; --connection.addresses_left) {
    set_deadline(connection, connection.route->rule().connect_ms);
    if (connect_address(connection)) return true;
    connection.address = (connection.address + 1) % connection.target->name.addresses.size();
  }
  return false;
}

bool Gateway::connect_address(Connection& connection) {
  const Address& to = connection.target->name.addresses[connection.address];
  Socket& server = connection.server;
  server = Socket(socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int err = server ? 0 : errno;
  const bool clan_is_absent = err == EAFNOSUPPORT && to.family() == AF_CLAN;
  // No fault of the target, unlike a family of addresses that this kernel does not have.
  if (err == EMFILE || err == ENFILE || err == ENOBUFS || err == ENOMEM) {
    accept_at_ms_ = now_ms_ + kAcceptAgainMs;
    count(page_->accept_errors);
    connection.is_check() ? forget(connection, "") : reset(connection, std::strerror(errno));
    return true;
  }
  const int on = 1;
  (void)setsockopt(server.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  (void)setsockopt(server.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  if (server && ::connect(server.fd(), to.raw(), to.size()) == 0) {
    connected(connection);
    return true;
  }
  if (server && errno == EINPROGRESS) {
    // On one host it is connected by now, most likely.
    if (Address::peer_of(server.fd()).size() > 0)
      connected(connection);
    else
      server.watch(set_.fd(), EPOLLOUT, tag_of(connection.id, kServer));
    return true;
  }
  say(fmt::format("event=failed target={} why=\"{}\"", connection.target->name.text,
                  clan_is_absent ? "start the gateway by `clan gateway`"
                                 : std::strerror(err != 0 ? err : errno)));
  server.close();
  return false;
}

/// What was under way has come to an end, well or not.
void Gateway::finish_connect(Connection& connection) {
  int err = 0;
  socklen_t size = sizeof err;
  (void)getsockopt(connection.server.fd(), SOL_SOCKET, SO_ERROR, &err, &size);
  err != 0 ? failed(connection, std::strerror(err)) : connected(connection);
}

void Gateway::connected(Connection& connection) {
  Target& target = *connection.target;
  if (connection.is_check()) {
    const std::string sent = header_of(connection) + connection.route->rule().check_send;
    connection.out.held.clear();
    if (connection.stream)
      (void)NativeEnd(*connection.stream).send(bytes_of(sent));
    else
      (void)connection.server.send(bytes_of(sent));
    connection.stage = Connection::Stage::kChecking;
    set_deadline(connection, connection.route->rule().connect_ms);
    connection.server.watch(set_.fd(), EPOLLIN, tag_of(connection.id, kServer));
    return check(connection);
  }
  connection.in.held.insert(0, header_of(connection));
  connection.route->worked(target);
  target.address = connection.address;
  ++target.connections;
  count(target.row->connections);
  count(target.row->served);
  connection.stage = Connection::Stage::kRelaying;
  set_deadline(connection, connection.route->rule().idle_ms);
  relay(connection, true, false);
}

/// Compares what has come of the answer to a check.
void Gateway::check(Connection& connection) {
  const std::string& expected = connection.route->rule().check_expect;
  std::string& answer = connection.out.held;
  while (answer.size() < expected.size()) {
    const auto room = std::span(buffer_).first(expected.size() - answer.size());
    const ssize_t n =
        connection.stream ? NativeEnd(*connection.stream).recv(room) : connection.server.recv(room);
    if (n == kNotNow) return;
    if (n <= 0) return failed(connection, "it has not answered the check");
    answer.append(reinterpret_cast<const char*>(room.data()), static_cast<std::size_t>(n));
    if (expected.compare(0, answer.size(), answer) != 0)
      return failed(connection, "it has answered the check otherwise");
  }
  connection.route->worked(*connection.target);
  connection.target->address = connection.address;
  forget(connection, "");
}

void Gateway::failed(Connection& connection, const char* why) {
  Target& target = *connection.target;
  say(fmt::format("event=failed target={} why=\"{}\"", target.name.text, why));
  connection.server.close();
  if (connection.addresses_left > 1) {
    connection.stage = Connection::Stage::kConnecting;
    --connection.addresses_left;
    connection.address = (connection.address + 1) % target.name.addresses.size();
    if (connect_socket(connection)) return;
  }
  count(page_->failed_connects);
  connection.route->failed(target, now_ms_);
  if (connection.is_check()) return forget(connection, "");
  connect(connection);
}

void Gateway::start_checks() {
  for (const auto& listener : listeners_) {
    Route& route = *listener->route;
    if (route.rule().check_ms == 0 || now_ms_ < route.next_check) continue;
    route.next_check = now_ms_ + route.rule().check_ms;
    for (Target& target : route.targets()) {
      if (std::exchange(target.checking, true)) continue;
      Connection& check = add(listener->route);
      check.target = &target;
      connect(check);
    }
  }
}

}  // namespace clan::gateway
