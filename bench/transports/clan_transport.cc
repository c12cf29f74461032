#include "transports/clan_transport.h"

#include <clan/detail/clock.h>
#include <fmt/core.h>

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
  const std::uint64_t give_up = deadline_after_ms(kSetUpMs);
  for (;;) {
    auto result = attempt();
    if (result.ok() || result.error().err != ECONNREFUSED || monotonic_ns() > give_up)
      return result;
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
  if (context.ok()) return std::make_unique<clan::Context>(std::move(*context));
  complain("context", context.error());
  return nullptr;
}

bool complain(const char* what, const Error& error) {
  fmt::print(stderr, "clan-bench: {}: {}\n", what, error.message());
  return false;
}

std::optional<ClanStreamEnd> ClanStream::open(Side side) {
  auto context = make_context(mode_);
  std::optional<Listener> listener;
  std::optional<Stream> stream;
  const bool server = side == Side::kServer;
  if (!context || (server && !keep("listen", Listener::create(*context, name_), listener)) ||
      !keep("connection", server ? listener->accept(kSetUpMs) : connect(*context, name_), stream))
    return std::nullopt;
  return ClanStreamEnd(std::move(context), std::move(*stream));
}

std::optional<ClanMessageEnd> ClanMessages::open(Side side) {
  auto context = make_context(mode_);
  const bool server = side == Side::kServer;
  std::optional<MessageEndpoint> endpoint;
  std::optional<PeerIndex> peer(0);
  if (!context ||
      !keep("message endpoint", MessageEndpoint::create(*context, server ? name_ : ""), endpoint))
    return std::nullopt;
  const auto attempt = [&] { return endpoint->connect(name_, kSetUpMs); };
  if (!server && !keep("connection", until_offered(attempt), peer)) return std::nullopt;
  return ClanMessageEnd(std::move(context), std::move(*endpoint), *peer);
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

std::optional<ClanHub> ClanHubTransport::open(Side side, std::size_t connections) {
  auto context = make_context(mode_);
  std::optional<EventQueue> queue;
  std::optional<Listener> listener;
  if (!context || !keep("event queue", EventQueue::create(*context), queue) ||
      (side == Side::kServer && !keep("listen", Listener::create(*context, name_), listener)))
    return std::nullopt;
  std::vector<Stream> streams;
  streams.reserve(connections);
  for (std::size_t i = 0; i < connections; ++i) {
    std::optional<Stream> stream;
    if (!keep("connection", listener ? listener->accept(kSetUpMs) : connect(*context, name_),
              stream))
      return std::nullopt;
    if (auto s = stream->register_with(*queue, i); !s) {
      complain("registering a stream", s.error());
      return std::nullopt;
    }
    streams.push_back(std::move(*stream));
  }
  return ClanHub(std::move(context), std::move(*queue), std::move(streams));
}

std::string RemotePage::prepare() {
  shared_ = SharedMemory(sizeof(Exchange));
  if (!shared_) return "no shared memory";
  exchange_ = new (shared_.data()) Exchange;
  return "";
}

bool RemotePage::open(Side side, WaitMode mode) {
  context_ = make_context(mode);
  if (!context_) return false;
  if (side == Side::kServer) {
    if (!keep("memory", Memory::allocate(kBytes), memory_) ||
        !keep("export", Aperture::export_memory(*context_, *memory_, 0, kBytes, Rights::kReadWrite),
              aperture_))
      return false;
    exchange_->cookie = aperture_->cookie();
    // PAIR bench.cookie: publishes the cookie to the client
    exchange_->there.store(true, std::memory_order_release);
    return true;
  }
  Spinner spin;
  // PAIR bench.cookie: sees the cookie of the server
  while (!exchange_->there.load(std::memory_order_acquire)) spin();
  return keep("import", RemoteAperture::import(*context_, exchange_->cookie), remote_);
}

}  // namespace clan::bench
