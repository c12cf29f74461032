#include "wait/poll_moved.h"

#include <alloca.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <new>
#include <utility>

#include "clan/detail/clock.h"
#include "os/scratch.h"
#include "os/sys.h"
#include "stream/ending.h"
#include "stream/going_back.h"
#include "stream/readiness.h"
#include "tcp/tcp_backlog.h"
#include "wait/ready_check.h"
#include "wait/registration.h"
#include "wait/waiting.h"

namespace clan::preload {
namespace {

constexpr nfds_t kOnStack = 2;  ///< as many descriptors take less than a kilobyte
/// What poll() reports unasked.
constexpr short kAlways = POLLERR | POLLHUP | POLLNVAL;
/// The longest sleep for room, as in a send: the kernel does not report another thread's shutdown
/// of writing, and a process of the peer may be killed before it rings.
constexpr std::int64_t kRoomNs = 100'000'000;

// Only the kernel reports urgent data.
short events_of_moved(const pollfd& asked) {
  return static_cast<short>(POLLIN | POLLRDHUP | (asked.events & POLLPRI));
}

// The room that gather() may want: each descriptor as plain and as moved, all moved ones, and an
// answer of the kernel.
constexpr nfds_t most_found(nfds_t count) {
  return 3 * count + PolledSet::Memory::most_events(count);
}

template <typename T>
T* cut(std::byte*& memory, nfds_t count) {
  auto* const at = reinterpret_cast<T*>(memory);
  memory += (count * sizeof(T) + 15) / 16 * 16;
  return at;
}

// Whether a lone socket, whose event has no order, has bytes in its pipe. False if the kernel is to
// be asked, see gather().
bool has_bytes(pollfd& asked) {
  const SocketRef s = acquire(asked.fd);
  if (!s || !s->shared() || reads_tcp(*s) || is_due(*s) || (asked.events & POLLPRI) != 0)
    return false;
  // relaxed, both: hints
  if (has_ended(*s) || s->shut_read.load(std::memory_order_relaxed) ||
      monotonic_ns() - s->checked_ns.load(std::memory_order_relaxed) >= kCheckNs) {
    return false;
  }
  const short ready = ready_now(asked.fd, *s, asked.events);
  if ((ready & (POLLIN | POLLRDNORM)) == 0) return false;
  asked.revents = ready;
  return true;
}

}  // namespace

std::size_t PolledSet::Memory::bytes(nfds_t count) {
  return count * (sizeof(Place) + sizeof(Interest*) + sizeof(Place*)) +
         most_found(count) * sizeof(ReadyEvent) + most_events(count) * sizeof(epoll_event) +
         (2 * count + PacketSleep::kMost) * sizeof(pollfd) + 7 * 16;
}

PolledSet::Memory::Memory(void* memory, nfds_t count) {
  auto* at = static_cast<std::byte*>(memory);
  places = cut<Place>(at, count);
  found = cut<ReadyEvent>(at, most_found(count));
  watched = cut<Interest*>(at, count);
  of = cut<Place*>(at, count);
  events = cut<epoll_event>(at, most_events(count));
  copy = cut<pollfd>(at, 2 * count + PacketSleep::kMost);
}

PolledSet::PolledSet(pollfd* fds, nfds_t count, const Memory& memory, const KernelPoll& sleep)
    : fds_(fds), count_(count), memory_(memory), sleep_(sleep) {
  const auto room = static_cast<std::uint32_t>(count);
  set_.polled = this;
  set_.names = set_.refs = 1;
  set_.kernels_turn.store(false, std::memory_order_relaxed);
  set_.plain.store(false, std::memory_order_relaxed);
  set_.watched = {0, room, memory.watched};
  set_.found = {0, static_cast<std::uint32_t>(most_found(count)), memory.found};
  for (nfds_t i = 0; i < count; ++i) {
    memory.copy[i] = {fds[i].fd, fds[i].events, 0};
    memory.of[i] = nullptr;
    if (fds[i].fd >= 0) enter(i);
  }
}

PolledSet::~PolledSet() {
  get_up();
  while (used_ > 0) memory_.places[--used_].~Place();
}

// Answers a moved socket from its pipe. What only the kernel reports makes the set plain too.
void PolledSet::enter(nfds_t k) {
  constexpr short kNews = POLLIN | POLLRDNORM | POLLRDHUP;
  const pollfd& asked = fds_[k];
  SocketRef s = acquire(asked.fd);
  const bool is_moved = s && s->shared();
  if (!is_moved || (asked.events & POLLPRI) != 0 || (reads_tcp(*s) && (asked.events & kNews) != 0))
    set_.plain.store(true, std::memory_order_relaxed);
  if (!is_moved) return;
  Place& place = *new (memory_.places + used_++) Place{{}, std::move(s), {}, false};
  Interest& i = place.interest;
  memory_.of[k] = &place;
  i.socket = place.socket.get();
  i.set = &set_;
  i.fd = asked.fd;
  i.index = static_cast<std::uint32_t>(k);
  i.events = static_cast<std::uint16_t>(asked.events);
  i.data.u64 = k;
  memory_.copy[k].events = events_of_moved(asked);
  // relaxed: a number alone
  const std::uint64_t checked = i.socket->checked_ns.load(std::memory_order_relaxed);
  set_.asked_ns = set_.moved == 0 ? checked : std::min(set_.asked_ns, checked);
  answer_from_pipe(i);
}

// Translates the kernel's answer in `copy` to epoll's. A closed descriptor is the kernel's.
int PolledSet::take(epoll_event* to) {
  int n = 0;
  for (nfds_t k = 0; k < count_; ++k) {
    const auto told = static_cast<short>(memory_.copy[k].revents);
    if (told == 0) continue;
    const SocketRef now = acquire(fds_[k].fd);
    Interest* const i = of(static_cast<int>(k));
    bool plain = i == nullptr || !i->moved;
    if (!plain && now.get() != i->socket) {
      watch_kernel(*i);
      plain = true;
    }
    const auto asked = static_cast<short>(fds_[k].events | kAlways);
    const short own = told & static_cast<short>(plain ? asked : asked & POLLPRI);
    if (own != 0) {
      to[n].events = static_cast<std::uint16_t>(own);
      to[n++].data.u64 = k;
    }
    if (!plain) {
      to[n].events = static_cast<std::uint16_t>(told & ~POLLPRI);
      to[n++].data.u64 = kTag | k;
    }
  }
  return n;
}

int PolledSet::ask(epoll_event* to) {
  for (nfds_t k = 0; k < used_; ++k) note_checked(*memory_.places[k].socket, set_.now());
  const int rc = sys::poll(memory_.copy, count_, 0);
  return rc <= 0 ? rc : take(to);
}

int PolledSet::sleep(epoll_event* to, std::int64_t ns, const PacketSleep* packets, bool* fetches,
                     bool* over) {
  pollfd* const extra = memory_.copy + count_;
  pollfd* const bells = extra + (packets != nullptr ? packets->watch(extra) : 0);
  pollfd* end = bells;
  for (nfds_t k = 0; k < used_; ++k) {
    if (memory_.places[k].bell) end += memory_.places[k].bell->watch(end);
  }
  const int rc = sleep_(memory_.copy, static_cast<nfds_t>(end - memory_.copy), ns);
  *over = rc == 0;
  // More than RLIMIT_NOFILE allows.
  if (rc < 0 && errno == EINVAL && end != bells && !has_no_room_) return has_no_room_ = true, 0;
  if (rc <= 0) return rc;
  *fetches = packets != nullptr && packets->ready(extra);
  int n = take(to);
  const pollfd* at = bells;
  for (nfds_t k = 0; k < used_; ++k) {
    Place& place = memory_.places[k];
    if (!place.bell || !place.bell->rung(at++)) continue;
    to[n].events = EPOLLIN;
    to[n++].data.u64 = kTag | kOfBell | place.interest.index;
  }
  return n;
}

void PolledSet::lie_down(Interest& i) {
  constexpr short kReads = POLLIN | POLLRDNORM, kWrites = POLLOUT | POLLWRNORM;
  Socket& s = *i.socket;
  pollfd& copy = memory_.copy[i.index];
  const short asked = fds_[i.index].events;
  Place& place = *memory_.of[i.index];
  place.sleeps = true;
  if (!has_no_room_ && !place.bell.emplace(s)) place.bell.reset();
  i.by_bell = place.bell.has_value();
  // TCP bytes that nobody asked for would end the sleep.
  if (reads_tcp(s) && (asked & kReads) == 0) {
    copy.events &= static_cast<short>(~POLLIN);
    is_untold_ = true;
  }
  // The kernel would report these again and again.
  if (s.kernel_end || s.kernel_error) {
    copy.fd = -1;
    // relaxed: the call into the kernel came before
  } else if (s.shut_read.load(std::memory_order_relaxed)) {
    copy.events &= static_cast<short>(~(POLLIN | POLLRDHUP));
    is_untold_ = true;
  }
  wants_room_ |= (asked & kWrites) != 0;
  if ((asked & kWrites) != 0 && sends_tcp(s) && !is_going_back(s)) copy.events |= POLLOUT;
}

void PolledSet::get_up() {
  for (nfds_t k = 0; k < used_; ++k) {
    Place& place = memory_.places[k];
    if (!std::exchange(place.sleeps, false)) continue;
    place.bell.reset();
    place.interest.by_bell = false;
    const pollfd& asked = fds_[place.interest.index];
    pollfd& copy = memory_.copy[place.interest.index];
    copy.fd = asked.fd;
    if (place.interest.moved) copy.events = events_of_moved(asked);
  }
  is_untold_ = wants_room_ = false;
}

std::int64_t PolledSet::longest() {
  if (is_untold_) return kGoingBackNs;
  return wants_room_ ? kRoomNs : kNoCap;
}

int PolledSet::answer(const epoll_event* events, int n) {
  int ready = 0;
  for (nfds_t k = 0; k < count_; ++k) fds_[k].revents = 0;
  for (int k = 0; k < n; ++k) {
    short& revents = fds_[events[k].data.u64].revents;
    ready += revents == 0 ? 1 : 0;
    revents = static_cast<short>(revents | static_cast<short>(events[k].events));
  }
  return ready;
}

int poll_moved(pollfd* fds, nfds_t count, std::int64_t timeout_ns, const KernelPoll& sleep) {
  if (count == 1 && has_bytes(*fds)) return 1;
  std::optional<Scratch> scratch;
  const std::size_t bytes = PolledSet::Memory::bytes(count);
  void* memory = count <= kOnStack ? alloca(bytes) : nullptr;
  if (memory == nullptr) memory = scratch.emplace(bytes).as<void>();
  if (memory == nullptr) {
    errno = ENOMEM;
    return -1;
  }
  const PolledSet::Memory parts(memory, count);
  PolledSet polled(fds, count, parts, sleep);
  const int n = wait_in(polled, parts.events,
                        static_cast<int>(PolledSet::Memory::most_events(count)), timeout_ns);
  return n < 0 ? n : polled.answer(parts.events, n);
}

}  // namespace clan::preload
