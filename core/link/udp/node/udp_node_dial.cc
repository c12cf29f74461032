// How two nodes begin a link: one dials a service, the other looks it up and answers.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/wait_call.h"
#include "clan/detail/clock.h"
#include "link/udp/node/path_stats_page.h"
#include "link/udp/node/udp_link.h"
#include "link/udp/node/udp_node.h"

namespace clan::udp {
namespace {

constexpr int kMostRedirections = 2;
constexpr const char* kNoAnswer =
    "no answer from that host: nobody is there, a firewall drops UDP to that port, or it has "
    "another version of the protocol";
constexpr const char* kNoAnswerBehind =
    "that host's directory answers, and the process that it names does not: a firewall drops UDP "
    "to the port of that process, an ephemeral one";
constexpr const char* kOtherKey =
    "a CLAN program has that UDP port and does not take our key: it is another user's, or has "
    "another key. CLAN_NETWORK_PORT at both ends gives each user of a host a port";
constexpr const char* kOtherKeyBehind =
    "that host's directory takes our key, and the process that it names has another one";
constexpr const char* kNobody =
    "no CLAN program has that UDP port open on that host: start one there with its network on, or "
    "name its port";
constexpr const char* kNotOffered = "nobody offers this service on that host";

/// `redirections`: how often another port was named. `speaks`: it asked for a cookie, before keys.
Error failure(int err, const std::string& service, int redirections, bool speaks = false) {
  switch (err) {
    case ETIMEDOUT:
      if (speaks) return {ETIMEDOUT, redirections > 0 ? kOtherKeyBehind : kOtherKey};
      return {ETIMEDOUT, redirections > 0 ? kNoAnswerBehind : kNoAnswer};
    case ECONNREFUSED: return {ECONNREFUSED, service.empty() ? kNobody : kNotOffered};
    case EPROTO: return {EPROTO, "that host has another security mode, or another version"};
    case ELOOP: return {ELOOP, "that host sends us from one port to another"};
    default: return {err, "that host refused the link"};
  }
}

}  // namespace

Result<Dialled> UdpNode::dial(const SocketAddress& to, const std::string& service,
                              std::uint64_t deadline_ns) {
  if (on_driver_thread()) return Error{EDEADLK, "the driver thread cannot wait for itself"};
  struct Answer {
    std::optional<Result<Dialled>> found;
    bool wanted = true;
  };
  auto answer = std::make_shared<Answer>();  // under the mutex
  const auto begun = begin_dial(to, service, [this, answer](Result<Dialled> found) {
    std::lock_guard lock(mutex_);
    if (!answer->wanted && found) found->link->shut_down();
    if (answer->wanted) answer->found = std::move(found);
    changed_.notify_all();
  });
  if (!begun) return begun.error();
  Dialling& dialling = **begun;
  std::unique_lock lock(mutex_);
  (void)sys::wait_until(changed_, lock, deadline_ns,
                        [&] { return answer->found.has_value() || shut_down_; });
  answer->wanted = false;
  if (answer->found) return std::move(*answer->found);
  if (shut_down_) return Error{ESHUTDOWN, "the context has been shut down"};
  const bool speaks =
      dialling.connection != nullptr && Endpoint::has_answered(*dialling.connection);
  give_up(dialling);
  return failure(ETIMEDOUT, service, dialling.redirections, speaks);
}

Greeting UdpNode::own_greeting() const {
  Greeting ours;
  ours.node = owner_.node.value;
  ours.uid = owner_.uid;
  ours.pid = static_cast<std::uint32_t>(::getpid());
  return ours;
}

// Under the mutex: the host is asked, at the port that we know by now.
Status UdpNode::ask(std::shared_ptr<Dialling> dialling) {
  Greeting ours = own_greeting();
  ours.service = dialling->service;
  std::array<std::byte, kMostGreeting> greeting;
  const std::size_t n = write_greeting(greeting, ours);
  if (n == 0)
    return Error{ENAMETOOLONG, "the name of a service on another host has at most 255 bytes"};
  if (shut_down_) return Error{ESHUTDOWN, "the context has been shut down"};
  Connection* c = endpoint_.connect(dialling->to, std::span(greeting).first(n), monotonic_ns());
  if (c == nullptr) return Error{EIO, "OpenSSL has failed"};
  dialling->connection = c;
  dialling_[c] = std::move(dialling);
  after_call();
  return {};
}

Result<std::shared_ptr<Dialling>> UdpNode::begin_dial(const SocketAddress& to,
                                                      const std::string& service,
                                                      std::function<void(Result<Dialled>)> ended) {
  auto dialling = std::make_shared<Dialling>();
  dialling->to = to;
  dialling->service = service;
  dialling->ended = std::move(ended);
  std::lock_guard lock(mutex_);
  if (auto s = ask(dialling); !s) return s.error();
  return dialling;
}

void UdpNode::give_up(Dialling& dialling) {
  if (abandoned()) return;
  std::unique_lock lock(mutex_);
  const auto ended = std::exchange(dialling.ended, nullptr);
  if (Connection* c = std::exchange(dialling.connection, nullptr)) {
    dialling_.erase(c);
    endpoint_.close(*c, ETIMEDOUT, monotonic_ns());
    after_call();
  }
  if (auto link = std::exchange(dialling.found.link, nullptr)) link->shut_down();
  lock.unlock();  // before what `ended` holds ends
}

// Under the mutex: the host has answered, or it never will.
void UdpNode::end_dialling(Connection& connection, int err, Dialled found) {
  auto it = dialling_.find(&connection);
  if (it == dialling_.end()) return;
  const std::shared_ptr<Dialling> dialling = std::move(it->second);
  dialling_.erase(it);
  dialling->connection = nullptr;
  dialling->speaks = Endpoint::has_answered(connection);
  dialling->err = err;
  dialling->found = std::move(found);
  tell([this, dialling](nic::LinkSink&) { go_on_dialling(dialling); });
}

// Driver thread, without the mutex.
void UdpNode::go_on_dialling(const std::shared_ptr<Dialling>& dialling) {
  std::unique_lock lock(mutex_);
  if (!dialling->ended) return;  // given up meanwhile
  const std::uint16_t port = dialling->err == 0 ? dialling->found.peer.port : 0;
  if (port != 0) {  // another process of that host has it
    std::exchange(dialling->found.link, nullptr)->shut_down();
    dialling->to.port = port;
    if (++dialling->redirections > kMostRedirections) {
      dialling->err = ELOOP;
    } else {
      const Status asked = ask(dialling);
      if (asked) return;
      dialling->err = asked.error().err;
    }
  }
  const auto ended = std::exchange(dialling->ended, nullptr);
  Dialled found = std::move(dialling->found);
  const int err = dialling->err;
  lock.unlock();
  ended(err == 0 ? Result<Dialled>(std::move(found))
                 : failure(err, dialling->service, dialling->redirections, dialling->speaks));
}

std::shared_ptr<UdpLink> UdpNode::make_link(Connection& c, const Greeting& peer) {
  auto link = std::make_shared<UdpLink>(shared_from_this(), c, peer);
  c.user = link.get();
  links_[&c] = link;
  if (owner_.path_stats != nullptr) owner_.path_stats->add(link.get());
  return link;
}

int UdpNode::on_request(const SocketAddress&, std::span<const std::byte> greeting,
                        std::span<std::byte> answer, std::size_t* answer_bytes) {
  Greeting client, ours = own_greeting();
  if (shut_down_) return ESHUTDOWN;
  if (!read_greeting(greeting, &client)) return EPROTO;
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
  if (!read_greeting(greeting, &peer)) return endpoint_.close(c, EPROTO, monotonic_ns());
  if (!dialling_.contains(&c)) return owner_.on_link(make_link(c, peer));
  end_dialling(c, 0, {make_link(c, peer), peer});
}

}  // namespace clan::udp
