#include "gateway.h"

#include <clan/detail/clock.h>
#include <clan/face/counter_page.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include "../service_manager.h"

namespace clan::gateway {
namespace {

constexpr std::size_t kBuffer = 64 * 1024;  // what a slow reader can hold up, for each connection
constexpr std::size_t kOtherDescriptors = 32;  // than two for each connection
constexpr std::uint64_t kSweepMs = 100;        // one checks all connections
constexpr std::uint64_t kNever = ~0ull;

int watch_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR2, SIGCHLD})
    sigaddset(&signals, number);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);  // of a log that nobody reads
  return signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
}

/// As many descriptors as may be had; how many that are.
std::size_t raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

}  // namespace

Gateway::Gateway(Config config, std::vector<std::string> arguments)
    : config_(std::move(config)), arguments_(std::move(arguments)), buffer_(kBuffer) {}

void Gateway::count(Count& counter, std::uint64_t n) {
  counter.fetch_add(n, std::memory_order_relaxed);  // relaxed: counts, read at any time
}

Connection* Gateway::find(std::uint64_t id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

Connection& Gateway::add(std::shared_ptr<Route> route) {
  auto made = std::make_unique<Connection>();
  made->id = next_id_++;
  made->route = std::move(route);
  made->began_ms = now_ms_;
  Connection& connection = *made;
  connections_.emplace(connection.id, std::move(made));
  return connection;
}

/// `after_ms` 0: none.
void Gateway::set_deadline(Connection& connection, std::uint64_t after_ms) {
  connection.deadline_ms = after_ms == 0 ? kNever : now_ms_ + after_ms;
  sweep_at_ms_ = std::min(sweep_at_ms_, connection.deadline_ms);
}

void Gateway::say(const std::string& line) { log_ += line + "\n"; }

void Gateway::flush_log() {
  for (std::size_t at = 0; at < log_.size();) {
    // A reader that does not read loses lines; it does not stop the gateway.
    pollfd out{STDOUT_FILENO, POLLOUT, 0};
    if (poll(&out, 1, 0) != 1) break;
    const std::size_t most = std::min<std::size_t>(log_.size() - at, PIPE_BUF);
    const ssize_t n = write(STDOUT_FILENO, log_.data() + at, most);
    if (n <= 0) break;
    at += static_cast<std::size_t>(n);
  }
  log_.clear();
}

bool Gateway::begin() {
  const std::size_t descriptors = raise_descriptor_limit();
  most_connections_ = descriptors > 2 * kOtherDescriptors ? (descriptors - kOtherDescriptors) / 2
                                                          : kOtherDescriptors / 2;
  now_ms_ = monotonic_ns() / 1'000'000;
  signals_ = Socket(watch_signals());  // before others find the page, and signal
  page_ = make_counter_page<GatewayPage>(kGatewayMemfdName);
  set_ = Socket(epoll_create1(EPOLL_CLOEXEC));
  signals_.watch(set_.fd(), EPOLLIN, tag_of(Other::kSignals));
  std::vector<Socket> inherited;
  for (const int fd : inherited_listeners()) inherited.emplace_back(fd);
  const std::string error = apply(config_.rules, std::move(inherited));
  if (!error.empty()) {
    fmt::print(stderr, "clan-gateway: {}\n", error);
    return false;
  }
  say_ready();
  tool::notify("READY=1");
  return true;
}

int Gateway::run() {
  if (!begin()) return 1;
  while (!(draining_ && (connections_.empty() || now_ms_ >= end_at_ms_))) turn();
  while (!connections_.empty()) reset(*connections_.begin()->second, "the gateway ends");
  flush_log();
  return 0;
}

int Gateway::sleep_ms() {
  if (!more_.empty()) return 0;
  std::uint64_t at = std::min({sweep_at_ms_, end_at_ms_, idle_end_ms_});
  if (accept_at_ms_ > now_ms_) at = std::min(at, accept_at_ms_);
  for (const auto& listener : listeners_) {
    if (listener->route->rule().check_ms > 0) at = std::min(at, listener->route->next_check);
  }
  if (at == kNever) return -1;
  return at <= now_ms_ ? 0 : static_cast<int>(std::min<std::uint64_t>(at - now_ms_, 1'000'000));
}

void Gateway::turn() {
  note_idle();
  std::array<epoll_event, 256> events;
  const auto streams = natives_ ? natives_->poll() : std::span<const Event>();
  int timeout = streams.empty() ? sleep_ms() : 0;
  if (natives_ && timeout != 0 && !natives_->arm()) timeout = 0;
  const int n = epoll_wait(set_.fd(), events.data(), events.size(), timeout);
  if (natives_ && timeout != 0) natives_->slept();
  now_ms_ = monotonic_ns() / 1'000'000;
  for (int i = 0; i < n; ++i) take(events[i].data.u64, events[i].events);
  for (const Event& event : streams) {
    Connection* connection = event.kind == EventKind::kStream ? find(event.tag) : nullptr;
    if (connection == nullptr) continue;
    if (connection->stage == Connection::Stage::kChecking)
      check(*connection);
    else
      relay(*connection, true, true);
  }
  if (natives_) take_natives();
  for (const std::uint64_t id : std::exchange(more_, {})) {
    if (Connection* connection = find(id); connection != nullptr) relay(*connection, true, true);
  }
  if (now_ms_ >= sweep_at_ms_) sweep();
  start_checks();
  watch_listeners();
  flush_log();
}

/// Without a connection for long enough it ends: its service manager has the listeners, too.
void Gateway::note_idle() {
  // relaxed: this thread's own count
  const bool idle = page_->connections.load(std::memory_order_relaxed) == 0 && successor_.pid < 0;
  if (config_.exit_idle_ms == 0 || !idle)
    idle_end_ms_ = kNever;
  else if (idle_end_ms_ == kNever)
    idle_end_ms_ = now_ms_ + config_.exit_idle_ms;
  if (now_ms_ < idle_end_ms_) return;
  idle_end_ms_ = kNever;
  drain();
  end_at_ms_ = now_ms_;
}

void Gateway::take(std::uint64_t tag, std::uint32_t events) {
  const std::uint64_t id = tag / kKinds, kind = tag % kKinds;
  if (kind == kListener) {
    for (const auto& listener : listeners_) {
      if (static_cast<std::uint64_t>(listener->socket.fd()) == id) return accept_from(*listener);
    }
    return;
  }
  if (kind == kOther) {
    if (tag == tag_of(Other::kSignals)) take_signals();
    if (tag == tag_of(Other::kSuccessor)) hear_successor();
    return;  // the queue of streams is polled in each turn
  }
  Connection* connection = find(id);
  if (connection == nullptr) return;
  if (connection->stage == Connection::Stage::kHeader) return read_header(*connection);
  if (connection->stage == Connection::Stage::kConnecting)
    return kind == kClient ? reset(*connection, "client reset") : finish_connect(*connection);
  if (connection->stage == Connection::Stage::kChecking) return check(*connection);
  const bool gone = (events & (EPOLLERR | EPOLLHUP)) != 0;
  const bool readable = gone || (events & (EPOLLIN | EPOLLRDHUP)) != 0;
  const bool writable = gone || (events & EPOLLOUT) != 0;
  const bool client = kind == kClient;
  relay(*connection, client ? readable : writable, client ? writable : readable);
  connection = gone ? find(id) : nullptr;
  if (connection == nullptr) return;
  // It is still here, as the other end has no room. The set would go on telling.
  if ((events & EPOLLERR) != 0) return reset(*connection, client ? "client reset" : "target reset");
  Socket& end = client ? connection->client : connection->server;
  const Direction& from = client ? connection->in : connection->out;
  if (from.blocked) end.unwatch(set_.fd());
}

void Gateway::take_natives() {
  for (auto& [id, stream] : natives_->connected()) {
    Connection* connection = find(id);
    if (connection == nullptr) continue;
    if (!stream) {
      failed(*connection, stream.error().what);
      continue;
    }
    connection->stream.emplace(std::move(*stream));
    ++natives_->streams;
    if (auto registered = connection->stream->register_with(natives_->queue(), id); !registered) {
      reset(*connection, registered.error().what);
      continue;
    }
    connected(*connection);
  }
}

void Gateway::take_signals() {
  signalfd_siginfo signal{};
  while (read(signals_.fd(), &signal, sizeof signal) == sizeof signal) {
    switch (signal.ssi_signo) {
      case SIGHUP: read_file_again(); break;
      case SIGUSR2: start_successor(); break;
      case SIGQUIT: drain(); break;
      case SIGTERM:
      case SIGINT:
        drain();
        end_at_ms_ = now_ms_;
        break;
      default: break;  // a child: its pipe says so
    }
  }
}

/// Ends what has been without what it waits for too long.
void Gateway::sweep() {
  sweep_at_ms_ = kNever;
  std::vector<Connection*> late;
  for (const auto& [id, connection] : connections_) {
    if (connection->deadline_ms <= now_ms_)
      late.push_back(connection.get());
    else
      sweep_at_ms_ = std::min(sweep_at_ms_, connection->deadline_ms);
  }
  sweep_at_ms_ = std::max(sweep_at_ms_, now_ms_ + kSweepMs);
  for (Connection* connection : late) {
    switch (connection->stage) {
      case Connection::Stage::kHeader:
        count(page_->refused_header);
        reset(*connection, "header time-out");
        break;
      case Connection::Stage::kConnecting:
      case Connection::Stage::kChecking: failed(*connection, "time-out"); break;
      case Connection::Stage::kRelaying: reset(*connection, "idle time-out");
    }
  }
}

}  // namespace clan::gateway
