#include <fmt/format.h>
#include <sys/epoll.h>

#include "gateway.h"

namespace clan::gateway {
namespace {

constexpr std::size_t kBudget = 256 * 1024;  // bytes of a direction in a turn, so that all have one

}  // namespace

/// Goes on with the directions in which something may have become possible.
void Gateway::relay(Connection& connection, bool in, bool out) {
  if (connection.stage != Connection::Stage::kRelaying) return;
  Flow to_target = Flow::kWaits, to_client = Flow::kWaits;
  const std::uint64_t before = connection.in.bytes + connection.out.bytes;
  const auto go = [&](auto& server) {
    if (in) to_target = pass(connection.client, server, connection.in, buffer_, kBudget);
    if (out || to_target == Flow::kBroken)
      to_client = pass(server, connection.client, connection.out, buffer_, kBudget);
    // What has come before an end went is passed on as far as that is possible now.
    if (to_client == Flow::kBroken && !in)
      (void)pass(connection.client, server, connection.in, buffer_, kBudget);
  };
  if (connection.stream) {
    NativeEnd server(*connection.stream);
    go(server);
  } else {
    go(connection.server);
  }
  if (to_target == Flow::kBroken || to_client == Flow::kBroken) return reset(connection, "reset");
  if (connection.in.closed && connection.out.closed) return finish(connection, "closed");
  if (to_target == Flow::kMore || to_client == Flow::kMore) more_.push_back(connection.id);
  const std::uint64_t idle_ms = connection.route->rule().idle_ms;
  if (idle_ms > 0 && connection.in.bytes + connection.out.bytes > before)
    set_deadline(connection, idle_ms);
  watch(connection);
}

/// Watches for what can be used: bytes that there is room for, and room that there are bytes for.
void Gateway::watch(Connection& connection) {
  const auto events = [](const Direction& from, const Direction& to) {
    return (from.ended || from.blocked ? 0u : EPOLLIN) | (to.blocked ? EPOLLOUT : 0u);
  };
  connection.client.watch(set_.fd(), events(connection.in, connection.out),
                          tag_of(connection.id, kClient));
  connection.server.watch(set_.fd(), events(connection.out, connection.in),
                          tag_of(connection.id, kServer));
}

/// Both have said that they are done.
void Gateway::finish(Connection& connection, const char* reason) {
  if (connection.stream) connection.stream->close();
  connection.client.close();
  connection.server.close();
  count(page_->ended);
  forget(connection, reason);
}

void Gateway::reset(Connection& connection, const char* reason) {
  if (connection.stream) connection.stream->abort();
  connection.client.reset();
  connection.server.reset();
  count(page_->reset);
  forget(connection, reason);
}

/// The last that is done with a connection, and with a check.
void Gateway::forget(Connection& connection, const char* reason) {
  Route& route = *connection.route;
  if (connection.stream) --natives_->streams;
  if (connection.peer.size() == 0) {
    connection.target->checking = false;
  } else {
    route.leave();
    if (connection.source) route.leave_source(*connection.source);
    // relaxed: counts, read at any time.
    page_->connections.fetch_sub(1, std::memory_order_relaxed);
    count(page_->bytes_in, connection.in.bytes);
    count(page_->bytes_out, connection.out.bytes);
    if (connection.stage == Connection::Stage::kRelaying) {
      --connection.target->connections;
      connection.target->row->connections.fetch_sub(1, std::memory_order_relaxed);
    }
    if (route.rule().logs) {
      say(fmt::format("client={} listen={} target={} in={} out={} seconds={:.3f} reason=\"{}\"",
                      connection.from().text(), route.rule().listen_text,
                      connection.target != nullptr ? connection.target->name.text : "-",
                      connection.in.bytes, connection.out.bytes,
                      static_cast<double>(now_ms_ - connection.began_ms) / 1e3, reason));
    }
  }
  connections_.erase(connection.id);
}

}  // namespace clan::gateway
