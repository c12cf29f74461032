#include "transports/clan_transport.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <new>

#include "support/clock.h"

namespace clan::bench {

namespace {

constexpr std::int64_t kSetUpMs = 20'000;
constexpr useconds_t kRetryUs = 200;

/// `attempt` again and again while nobody listens yet.
template <class Attempt>
auto until_offered(Attempt attempt) -> decltype(attempt()) {
  const std::uint64_t give_up = Clock::monotonic_ns() + std::uint64_t{kSetUpMs} * 1'000'000;
  for (;;) {
    auto result = attempt();
    if (result.ok() || result.error().err != ECONNREFUSED) return result;
    if (Clock::monotonic_ns() > give_up) return result;
    usleep(kRetryUs);
  }
}

Result<Stream> connect(clan::Context& context, const std::string& service) {
  return until_offered([&] { return Stream::connect(context, service, kSetUpMs); });
}

}  // namespace

std::string clan_name(WaitMode mode) { return mode == WaitMode::kPoll ? "clan-poll" : "clan"; }

std::unique_ptr<clan::Context> make_context(WaitMode mode) {
  ContextOptions options;
  options.wait.mode = mode;
  auto context = clan::Context::create(options);
  if (!context) {
    complain("context", context.error());
    return nullptr;
  }
  return std::make_unique<clan::Context>(std::move(*context));
}

std::string unique_service() {
  static int number = 0;
  return fmt::format("clan-bench-{}-{}", getpid(), ++number);
}

bool complain(const char* what, const Error& error) {
  fmt::print(stderr, "clan-bench: {}: {}\n", what, error.message());
  return false;
}

std::string ClanStream::prepare(std::size_t) {
  service_ = unique_service();
  return "";
}

std::optional<ClanStreamEnd> ClanStream::open(Side side) {
  auto context = make_context(mode_);
  if (!context) return std::nullopt;
  if (side == Side::kClient) {
    auto stream = connect(*context, service_);
    if (stream.ok()) return ClanStreamEnd(std::move(context), std::move(*stream));
    complain("connect", stream.error());
    return std::nullopt;
  }
  auto listener = Listener::create(*context, service_);
  if (!listener) {
    complain("listen", listener.error());
    return std::nullopt;
  }
  auto stream = listener->accept(kSetUpMs);
  if (stream.ok()) return ClanStreamEnd(std::move(context), std::move(*stream));
  complain("accept", stream.error());
  return std::nullopt;
}

std::string ClanMessages::prepare(std::size_t) {
  service_ = unique_service();
  return "";
}

std::optional<ClanMessageEnd> ClanMessages::open(Side side) {
  auto context = make_context(mode_);
  if (!context) return std::nullopt;
  const bool server = side == Side::kServer;
  auto endpoint = MessageEndpoint::create(*context, server ? service_ : "");
  if (!endpoint) {
    complain("message endpoint", endpoint.error());
    return std::nullopt;
  }
  PeerIndex peer = 0;
  if (!server) {
    auto found = until_offered([&] { return endpoint->connect(service_, kSetUpMs); });
    if (!found) {
      complain("connect", found.error());
      return std::nullopt;
    }
    peer = *found;
  }
  return ClanMessageEnd(std::move(context), std::move(*endpoint), peer);
}

// An event is a hint: streams with nothing to read are not reported, and none is reported twice.
std::size_t ClanHub::wait(std::span<std::uint32_t> ready) {
  std::array<Event, 64> events;
  const std::size_t room = std::min(events.size(), ready.size());
  for (;;) {
    auto n = queue_.wait(std::span(events).first(room));
    if (!n.ok()) {
      complain("event queue", n.error());
      return 0;
    }
    std::size_t count = 0;
    ++round_;
    for (std::size_t k = 0; k < *n; ++k) {
      const auto i = static_cast<std::uint32_t>(events[k].tag);
      if (reported_[i] == round_) continue;
      auto bytes = streams_[i].peek();
      if (bytes.ok() && !bytes->empty()) {
        reported_[i] = round_;
        ready[count++] = i;
      } else if (bytes.ok() || bytes.error().err != EAGAIN) {
        return 0;  // the peer has closed
      }
    }
    if (count > 0) return count;
  }
}

std::string ClanHubTransport::prepare(std::size_t) {
  service_ = unique_service();
  return "";
}

std::optional<ClanHub> ClanHubTransport::open(Side side, std::size_t connections) {
  auto context = make_context(mode_);
  if (!context) return std::nullopt;
  auto queue = EventQueue::create(*context);
  if (!queue) {
    complain("event queue", queue.error());
    return std::nullopt;
  }
  std::optional<Listener> listener;
  if (side == Side::kServer) {
    auto made = Listener::create(*context, service_);
    if (!made) {
      complain("listen", made.error());
      return std::nullopt;
    }
    listener = std::move(*made);
  }
  std::vector<Stream> streams;
  streams.reserve(connections);
  for (std::size_t i = 0; i < connections; ++i) {
    auto stream = listener ? listener->accept(kSetUpMs) : connect(*context, service_);
    if (!stream) {
      complain("connection of a hub", stream.error());
      return std::nullopt;
    }
    if (auto s = stream->register_with(*queue, i); !s) {
      complain("registering a stream", s.error());
      return std::nullopt;
    }
    streams.push_back(std::move(*stream));
  }
  return ClanHub(std::move(context), std::move(*queue), std::move(streams));
}

struct CookiePage::Page {
  std::atomic<std::uint32_t> there{0};
  RdmaCookie cookie;
};

CookiePage::Page& CookiePage::page() const {
  return *std::launder(reinterpret_cast<Page*>(memory_.data()));
}

bool CookiePage::prepare() {
  memory_ = SharedMemory(sizeof(Page));
  if (memory_) new (memory_.data()) Page;
  return static_cast<bool>(memory_);
}

void CookiePage::put(const RdmaCookie& cookie) {
  page().cookie = cookie;
  // PAIR bench.cookie: publishes the cookie to take()
  page().there.store(1, std::memory_order_release);
}

RdmaCookie CookiePage::take() const {
  Spinner spin;
  // PAIR bench.cookie: sees the cookie put() published
  while (page().there.load(std::memory_order_acquire) == 0) spin();
  return page().cookie;
}

}  // namespace clan::bench
