#include "address.h"

#include <clan/detail/clock.h>
#include <clan/detail/log.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

#include "connection.h"
#include "tcp_ports.h"

namespace clan::orb {
namespace {

/// What a server may take to answer, before the call goes by TCP; of a shorter deadline, half. A
/// hundred clients at once on a machine with ten times as much to do as it can take two seconds.
constexpr std::int64_t kConnectMs = 5000;

/// The same of another host, which answers or does not: it may have another key, or a wall before
/// it.
constexpr std::int64_t kConnectHostMs = 2000;
/// a host that has not answered is not asked again
constexpr std::uint64_t kSilenceNs = 30'000'000'000;
constexpr std::size_t kMostSilent = 1024;

std::int64_t time_to_connect(const omni_time_t& deadline, std::int64_t most) {
  const std::int64_t left = milliseconds_left(deadline);
  return left > 0 ? std::clamp<std::int64_t>(left / 2, 1, most) : left == 0 ? 0 : most;
}

/// Links that have not answered, and until when they are left alone.
struct Silence {
  std::mutex mutex;
  std::map<std::string, std::uint64_t> until_ns;

  bool holds(const std::string& link) {
    std::lock_guard lock(mutex);
    const auto found = until_ns.find(link);
    return found != until_ns.end() && monotonic_ns() < found->second;
  }
  void begin(const std::string& link) {
    std::lock_guard lock(mutex);
    if (until_ns.size() >= kMostSilent) until_ns.clear();
    until_ns[link] = monotonic_ns() + kSilenceNs;
  }
};
Silence& silence() {
  static Silence* const silence = new Silence;
  return *silence;
}

/// Nothing is logged: for a port nobody has promised that there is CLAN behind it.
Result<Stream> connect_to(Context& context, const Name& name, std::int64_t ms) {
  if (!name.link.empty()) {  // a holder of the key counts as this user
    return Stream::connect(context, "udp:" + name.link + "/" + service_name(name.word), ms, -1);
  }
  if (!name.word.empty()) return Stream::connect(context, service_name(name.word), ms, name.uid);
  const auto socket = find_listening_socket(name.host, name.number);
  if (!socket) return Error{ECONNREFUSED, "nobody listens at the TCP port"};
  return Stream::connect(context, port_service_name(socket->port, socket->inode), ms, socket->uid);
}

}  // namespace

bool rules_allow(omni::transportRules& rules, const std::string& host) {
  CORBA::StringSeq actions;
  CORBA::ULong priority;
  if (!rules.match((std::string(kPrefix) + host + ":1").c_str(), actions, priority)) return false;
  for (CORBA::ULong i = 0; i < actions.length() && std::strcmp(actions[i], "none") != 0; ++i) {
    if (std::strcmp(actions[i], "clan") == 0) return true;
  }
  return false;
}

omni::giopAddress* Address::duplicate(const char* host) const {
  Name other = name_;
  if (!other.host.empty()) other.host = host;
  return new Address(other);
}

omni::giopActiveConnection* Address::Connect(const omni_time_t& deadline, _CORBA_ULong,
                                             _CORBA_Boolean& timed_out) const {
  const bool remote = !name_.link.empty();
  if (remote && silence().holds(name_.link)) return nullptr;
  const std::int64_t ms = time_to_connect(deadline, remote ? kConnectHostMs : kConnectMs);
  if (ms == 0) {
    timed_out = 1;
    return nullptr;
  }
  if (name_.number == 0) return nullptr;
  auto node = Node::get();
  if (!node) return nullptr;
  auto stream = connect_to((*node)->context(), name_, ms);
  const bool gone = !stream && stream.error().err == ECONNREFUSED;
  if (gone && by_port_) {
    if (auto other = connect_to((*node)->context(), *by_port_, ms); other.ok())
      stream = std::move(other);
  }
  if (!stream) {
    if (remote && stream.error().err == ETIMEDOUT) silence().begin(name_.link);
    const bool expected = gone && name_.word.empty();
    CLAN_LOG_AT(expected ? LogLevel::kDebug : LogLevel::kInfo,
                "%s: %s; trying the object's other addresses", text_.c_str(),
                stream.error().message().c_str());
    return nullptr;
  }
  auto channel = std::make_shared<Channel>(*node, std::move(*stream), true);
  CLAN_INFO("CORBA calls to process %d go by CLAN, %s (%s)", static_cast<int>(channel->peer().pid),
            channel->peer().path, text_.c_str());
  return new ActiveConnection(*node, std::move(channel), passing_address(), text_);
}

}  // namespace clan::orb
