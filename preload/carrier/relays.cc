#include "carrier/relays.h"

#include <clan/clock.h>
#include <clan/log.h>
#include <clan/system_call.h>
#include <clan/words.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "carrier/name_answer.h"

namespace clan::preload {
namespace {

constexpr std::int64_t kAnswerMs = 5000;  ///< of the other host, to be called and to answer
constexpr std::uint64_t kOfferAgainNs = 1'000'000'000;
constexpr std::uint64_t kCalledTag = 0;  ///< nobody's
constexpr char kPrefix[] = "af1.";

// All of it, until then: bytes that come one by one buy no more time.
Result<NameAnswer> hear_answer(Stream& stream, std::uint64_t until) {
  NameAnswer answer{};
  for (std::size_t have = 0; have < answer.size();) {
    const std::uint64_t now = monotonic_ns();
    const auto left_ms = now < until ? static_cast<std::int64_t>((until - now) / 1'000'000) : 0;
    auto n = stream.recv(std::span(answer).subspan(have), left_ms);
    if (!n) return n.error();
    if (*n == 0) return Error{ECONNREFUSED, "the other host has closed"};
    have += *n;
  }
  return answer;
}

}  // namespace

Relays::Relays(Context& context, EventQueue&& queue, int epoll)
    : context_(context), queue_(std::move(queue)), epoll_(epoll) {}

Result<Relays*> Relays::start(Context& context) {
  auto queue = EventQueue::create(context);
  if (!queue) return queue.error();
  auto fd = queue->fd();
  if (!fd) return fd.error();
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) return Error{errno, "making an epoll set"};
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kCalledTag;
  if (sys::call(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, *fd, &event) != 0) {
    const int error = errno;
    sys::close(epoll);
    return Error{error, "watching an event queue"};
  }
  std::unique_ptr<Relays> relays(new Relays(context, std::move(*queue), epoll));
  if (auto s = relays->run(); !s) {
    sys::close(epoll);
    return s.error();
  }
  return relays.release();
}

Status Relays::run() {
  auto event = queue_->add_user(kCalledTag);
  if (!event) return event.error();
  called_ = *event;
  // Signals are the program's threads'.
  sigset_t every, old;
  ::sigfillset(&every);
  ::pthread_sigmask(SIG_SETMASK, &every, &old);
  pthread_t thread;
  const int err = ::pthread_create(
      &thread, nullptr,
      [](void* relays) -> void* {
        static_cast<Relays*>(relays)->serve_all();
        return nullptr;
      },
      this);
  ::pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (err != 0) return Error{err, "making a thread"};
  ::pthread_detach(thread);
  return {};
}

// --- any thread ----------------------------------------------------------------------------------

void Relays::offer(const std::string& name, OpenName* open) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  new_offers_.push_back(Offer{name, open, {}, 0});
  queue_->post_user(called_);
}

void Relays::add(Stream&& stream, int fd) {
  auto relay = std::make_unique<Relay>(fd, std::move(stream));
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  new_relays_.push_back(std::move(relay));
  queue_->post_user(called_);
}

Result<Stream> Relays::dial(Context& context, const std::string& name) {
  constexpr std::size_t kScheme = 4;  // "udp:"
  const auto slash = name.find('/');
  if (slash == std::string::npos || slash <= kScheme || slash + 1 == name.size()) {
    return Error{EINVAL, "a name of another host is udp:HOST/NAME"};
  }
  const std::string service = name.substr(0, slash + 1) + kPrefix + name.substr(slash + 1);
  const std::uint64_t until = monotonic_ns() + std::uint64_t{kAnswerMs} * 1'000'000;
  auto stream = Stream::connect(context, service, kAnswerMs);
  if (!stream) return stream.error();
  const auto answer = hear_answer(*stream, until);
  if (!answer) return answer.error();
  if (const int error = error_in(*answer); error != 0) {
    return Error{error, "the other host's answer"};
  }
  return stream;
}

void Relays::finish(std::uint32_t ms) {
  std::unique_lock lock(mutex_);
  if (ended_) return;
  until_ns_ = monotonic_ns() + std::uint64_t{ms} * 1'000'000;
  words::publish(ends_, true);  // PAIR carrier.relays_end: publishes the time
  queue_->post_user(called_);
  ended_now_.wait_for(lock, std::chrono::milliseconds(2 * ms), [this] { return ended_; });
}

void Relays::close_copies() {
  for (const auto& [tag, relay] : all_) sys::close(relay->fd());
  for (const auto& relay : new_relays_) sys::close(relay->fd());
}

// --- the thread ----------------------------------------------------------------------------------

void Relays::serve_all() {
  std::array<Event, 64> events;
  // PAIR carrier.relays_end: sees the time
  while (!words::look(ends_)) {
    take_new();
    try_offers();
    const std::size_t n = queue_->poll(events);
    for (std::size_t i = 0; i < n; ++i) {
      const auto offer = offers_.find(events[i].tag);
      offer != offers_.end() ? accept_all(offer->second) : serve(events[i].tag);
    }
    for (const std::uint64_t tag : std::exchange(again_, {})) serve(tag);
    if (n == 0) sleep();
  }
  finish_all();
}

void Relays::sleep() {
  std::array<epoll_event, 64> ready;
  std::uint64_t first = ~std::uint64_t{0};
  for (const auto& [tag, offer] : offers_) {
    if (!offer.listener) first = std::min(first, offer.again_ns);
  }
  long wait_ms = again_.empty() && queue_->arm_fd() ? -1 : 0;
  if (wait_ms != 0 && first != ~std::uint64_t{0}) {
    const std::uint64_t now = monotonic_ns();
    wait_ms = first <= now ? 0 : static_cast<long>((first - now) / 1'000'000 + 1);
  }
  const long n =
      sys::call(SYS_epoll_pwait, epoll_, ready.data(), ready.size(), wait_ms, nullptr, 8);
  for (long i = 0; i < n; ++i) {
    const std::uint64_t tag = ready[static_cast<std::size_t>(i)].data.u64;
    if (tag != kCalledTag) serve(tag);
  }
}

void Relays::take_new() {
  std::vector<std::unique_ptr<Relay>> relays;
  std::vector<Offer> offers;
  {
    const std::lock_guard lock(mutex_);
    relays.swap(new_relays_);
    offers.swap(new_offers_);
  }
  for (auto& relay : relays) enter(std::move(relay));
  for (auto& offer : offers) {
    // A name that this process has had before is answered for already.
    const bool known = std::ranges::any_of(
        offers_, [&](const auto& other) { return other.second.name == offer.name; });
    if (!known) offers_.emplace(++last_tag_, std::move(offer));
  }
}

void Relays::try_offers() {
  for (auto offer = offers_.begin(); offer != offers_.end();) {
    auto& [tag, it] = *offer;
    if (it.listener || monotonic_ns() < it.again_ns) {
      ++offer;
      continue;
    }
    auto listener = Listener::create(context_, kPrefix + it.name);
    if (!listener && listener.error().err != EADDRINUSE) {
      CLAN_INFO("\"%s\" cannot be reached from other hosts: %s", it.name.c_str(),
                listener.error().message().c_str());
      offer = offers_.erase(offer);
      continue;
    }
    it.again_ns = monotonic_ns() + kOfferAgainNs;
    if (listener) {
      it.listener.emplace(std::move(*listener));
      if (auto s = it.listener->register_with(*queue_, tag); !s) {
        CLAN_INFO("\"%s\" cannot be reached from other hosts: %s", it.name.c_str(),
                  s.error().message().c_str());
        offer = offers_.erase(offer);
        continue;
      }
      accept_all(it);
    }
    ++offer;
  }
}

void Relays::accept_all(Offer& offer) {
  while (offer.listener) {
    auto stream = offer.listener->try_accept();
    if (!stream) return;
    const int fd = offer.open(offer.name.data(), offer.name.size());
    const auto answer = answer_of(fd < 0 ? -fd : 0);
    // Its ring is empty: there is room.
    const auto sent = stream->try_send(answer);
    if (fd < 0) continue;
    auto relay = std::make_unique<Relay>(fd, std::move(*stream));
    if (sent.ok() && *sent == answer.size()) enter(std::move(relay));
  }
}

void Relays::enter(std::unique_ptr<Relay> relay) {
  const std::uint64_t tag = ++last_tag_;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = tag;
  if (!relay->stream().register_with(*queue_, tag).ok() ||
      sys::call(SYS_epoll_ctl, epoll_, EPOLL_CTL_ADD, relay->fd(), &event) != 0) {
    CLAN_INFO("no room for one more connection by a name between hosts: it is reset");
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    all_.emplace(tag, std::move(relay));
  }
  serve(tag);
}

void Relays::serve(std::uint64_t tag) {
  const auto found = all_.find(tag);
  if (found == all_.end()) return;
  switch (found->second->serve()) {
    case Relay::Turn::kWaits: return;
    case Relay::Turn::kMore: again_.insert(tag); return;
    case Relay::Turn::kOver: leave(tag); return;
  }
}

void Relays::leave(std::uint64_t tag) {
  const std::lock_guard lock(mutex_);
  all_.erase(tag);
}

void Relays::finish_all() {
  take_new();
  offers_.clear();
  const timespec nap{0, 200'000};
  for (;;) {
    std::vector<std::uint64_t> over;
    for (const auto& [tag, relay] : all_) {
      if (relay->finish()) over.push_back(tag);
    }
    for (const std::uint64_t tag : over) leave(tag);
    if (all_.empty() || monotonic_ns() > until_ns_) break;
    ::nanosleep(&nap, nullptr);
  }
  const std::lock_guard lock(mutex_);
  all_.clear();
  new_relays_.clear();
  queue_.reset();
  ended_ = true;
  ended_now_.notify_all();
}

}  // namespace clan::preload
