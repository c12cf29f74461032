#include "address.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include <clan/clock.h>
#include <clan/log.h>

#include "connection.h"
#include "tcp_ports.h"

namespace clan::orb {
namespace {

/// What a server may take to answer, before the call goes by TCP; of a shorter deadline, half. A hundred clients at once
/// on a machine with ten times as much to do as it can take two seconds.
constexpr std::int64_t kConnectMs = 5000;

std::int64_t time_to_connect(const omni_time_t& deadline) {
  if (!deadline) return kConnectMs;
  omni_time_t now;
  omni_thread::get_time(now);
  if (deadline <= now) return 0;
  const omni_time_t left = deadline - now;
  const std::int64_t ms = static_cast<std::int64_t>(left.s) * 1000 + left.ns / 1'000'000;
  return std::clamp<std::int64_t>(ms / 2, 1, kConnectMs);
}

}  // namespace

omni::giopAddress* Address::duplicate(const char* host) const {
  Name other = name_;
  if (!other.host.empty()) other.host = host;
  return new Address(other);
}

omni::giopActiveConnection* Address::Connect(const omni_time_t& deadline, _CORBA_ULong,
                                             _CORBA_Boolean& timed_out) const {
  const std::int64_t ms = time_to_connect(deadline);
  if (ms == 0) {
    timed_out = 1;
    return nullptr;
  }
  if (name_.number == 0) return nullptr;
  std::string service = service_name(name_.word);
  uid_t uid = name_.uid;
  if (name_.word.empty()) {
    const auto socket = find_listening_socket(name_.host, name_.number);
    if (!socket) return nullptr;
    service = port_service_name(socket->port, socket->inode);
    uid = socket->uid;
  }
  auto node = Node::get();
  if (!node) return nullptr;
  auto stream = Stream::connect((*node)->context(), service, ms, uid);
  if (!stream) {
    // Nobody has promised that there is CLAN behind a port.
    const bool expected = name_.word.empty() && stream.error().err == ECONNREFUSED;
    CLAN_LOG_AT(expected ? LogLevel::kDebug : LogLevel::kInfo, "%s: %s; trying the object's other addresses",
                text_.c_str(), stream.error().message().c_str());
    return nullptr;
  }
  auto channel = std::make_shared<Channel>(*node, std::move(*stream), true);
  CLAN_INFO("CORBA calls to process %d go by CLAN (%s)", static_cast<int>(channel->peer().pid), text_.c_str());
  return new ActiveConnection(*node, std::move(channel), passing_address(), text_);
}

}  // namespace clan::orb
