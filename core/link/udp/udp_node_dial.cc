// How two nodes begin a link: one dials a service, the other looks it up and answers.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "clan/clock.h"
#include "link/udp/udp_link.h"
#include "link/udp/udp_node.h"

namespace clan::udp {
namespace {

constexpr int kMostRedirections = 2;
constexpr const char* kNoAnswer =
    "no answer from that host: nobody is there, a firewall drops UDP to that port, or it has "
    "another key or "
    "version of the protocol";
constexpr const char* kNobody =
    "no CLAN program has that UDP port open on that host: start one there with its network on, or "
    "name its port";

}  // namespace

Result<UdpNode::Dialled> UdpNode::dial(const SocketAddress& to, const std::string& service,
                                       std::uint64_t deadline_ns) {
  if (on_driver_thread()) return Error{EDEADLK, "the driver thread cannot wait for itself"};
  SocketAddress at = to;
  for (int i = 0; i <= kMostRedirections; ++i) {
    auto found = dial_once(at, service, deadline_ns);
    if (!found || found->peer.port == 0) return found;
    at.port = found->peer.port;  // another process of that host has it
    found->link->shut_down();
  }
  return Error{ELOOP, "that host sends us from one port to another"};
}

Result<UdpNode::Dialled> UdpNode::dial_once(const SocketAddress& to, const std::string& service,
                                            std::uint64_t deadline_ns) {
  Greeting ours;
  ours.node = owner_.node.value;
  ours.uid = owner_.uid;
  ours.pid = static_cast<std::uint32_t>(::getpid());
  ours.service = service;
  std::array<std::byte, kMostGreeting> greeting;
  const std::size_t n = write_greeting(greeting, ours);
  if (n == 0)
    return Error{ENAMETOOLONG, "the name of a service on another host has at most 255 bytes"};
  std::unique_lock lock(mutex_);
  if (shut_down_) return Error{ESHUTDOWN, "the context has been shut down"};
  Dialling dialling;
  Connection* c = endpoint_.connect(to, std::span(greeting).first(n), monotonic_ns());
  if (c == nullptr) return Error{EIO, "OpenSSL has failed"};
  dialling_[c] = &dialling;
  after_call();
  while (!dialling.done) {
    const std::uint64_t now = monotonic_ns();
    if (now >= deadline_ns) {
      dialling_.erase(c);
      endpoint_.close(*c, ETIMEDOUT, now);
      return Error{ETIMEDOUT, kNoAnswer};
    }
    changed_.wait_for(lock, std::chrono::nanoseconds(std::min(deadline_ns - now, kSecond)));
  }
  if (dialling.err == 0) return std::move(dialling.found);
  switch (dialling.err) {
    case ETIMEDOUT: return Error{ETIMEDOUT, kNoAnswer};
    case ECONNREFUSED:
      return Error{ECONNREFUSED,
                   service.empty() ? kNobody : "nobody offers this service on that host"};
    case EPROTO: return Error{EPROTO, "that host has another security mode, or another version"};
    default: return Error{dialling.err, "that host refused the link"};
  }
}

std::shared_ptr<UdpLink> UdpNode::make_link(Connection& c, const Greeting& peer) {
  auto link = std::make_shared<UdpLink>(shared_from_this(), c, peer);
  c.user = link.get();
  links_[&c] = link;
  return link;
}

int UdpNode::on_request(const SocketAddress&, std::span<const std::byte> greeting,
                        std::span<std::byte> answer, std::size_t* answer_bytes) {
  Greeting client, ours;
  if (shut_down_) return ESHUTDOWN;
  if (!read_greeting(greeting, &client)) return EPROTO;
  ours.node = owner_.node.value;
  ours.uid = owner_.uid;
  ours.pid = static_cast<std::uint32_t>(::getpid());
  if (!client.service.empty()) {
    if (const int err = owner_.find_service(client.service, &ours); err != 0) return err;
  }
  std::array<std::byte, kMostGreeting> bytes;
  *answer_bytes = write_greeting(bytes, ours);
  std::copy_n(bytes.begin(), *answer_bytes, answer.begin());
  return 0;
}

void UdpNode::on_established(Connection& c, std::span<const std::byte> greeting) {
  Greeting peer;
  if (!read_greeting(greeting, &peer)) {
    endpoint_.close(c, EPROTO, monotonic_ns());
    return;
  }
  auto it = dialling_.find(&c);
  if (it == dialling_.end()) {
    owner_.on_link(make_link(c, peer));
    return;
  }
  it->second->found = {make_link(c, peer), peer};
  it->second->done = true;
  dialling_.erase(it);
  announce();
}

}  // namespace clan::udp
