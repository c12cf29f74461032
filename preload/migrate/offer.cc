#include "migrate/offer.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "attach/attach.h"
#include "attach/peer_auth.h"
#include "clan/detail/clock.h"
#include "clan/detail/log.h"
#include "clan/face/pipe.h"
#include "clan/face/reasons.h"
#include "clan/face/socket_face.h"
#include "kernel/kernels_options.h"
#include "migrate/bells.h"
#include "migrate/directory_names.h"
#include "migrate/rendezvous_backoff.h"
#include "os/config.h"
#include "os/fd_message.h"
#include "os/sandbox.h"
#include "os/sys.h"
#include "os/test_settings.h"
#include "state/hooks.h"
#include "state/named.h"
#include "state/remote.h"
#include "state/withdraw.h"
#include "table/buffers.h"
#include "table/internal_fds.h"
#include "table/unseen_sets.h"

namespace clan::preload {
namespace {

using reasons::Why;

socklen_t name_of(const Endpoint& client, const Endpoint& server, sockaddr_un* name) {
  char from[INET6_ADDRSTRLEN], to[INET6_ADDRSTRLEN];
  ::inet_ntop(AF_INET6, &client.address, from, sizeof from);
  ::inet_ntop(AF_INET6, &server.address, to, sizeof to);
  name->sun_family = AF_UNIX;
  name->sun_path[0] = 0;
  const int n = std::snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "clan1/%s/%u/%s/%u",
                              from, client.port, to, server.port);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(n));
}

constexpr char kHello[8] = "clan1";
constexpr int kNotNow = -2;

// -1: there is none. kNotNow: the other end could not take the offer up, but may later.
int receive_memfd(int from, PassedBells& bells) {
  pollfd p{from, POLLIN, 0};
  char hello[sizeof kHello];
  if (sys::poll(&p, 1, 20) <= 0) return -1;
  if (sys::recv(from, hello, 1, MSG_PEEK | MSG_DONTWAIT) == 0) return kNotNow;
  int fds[3] = {-1, -1, -1};
  if (receive_descriptors(from, hello, sizeof hello, fds, 1, 3) <= 0) return -1;
  std::copy(fds + 1, fds + 3, bells.fds);
  return fds[0];
}

// Connects to the offer of the other end. -1: there is none.
int connect_to_offer(const Route& route) {
  const int rendezvous = unix_socket(SOCK_SEQPACKET);
  if (rendezvous < 0) return -1;
  sockaddr_un name{};
  const socklen_t size = name_of(route.remote, route.local, &name);
  if (sys::call(SYS_connect, rendezvous, &name, size) == 0) return rendezvous;
  sys::close(rendezvous);
  return -1;
}

// Then it is a client, too: both have opened the connection at the same moment.
bool other_end_offers(int fd) {
  Route route;
  const int rendezvous = route_of(fd, &route) ? connect_to_offer(route) : -1;
  if (rendezvous >= 0) sys::close(rendezvous);
  return rendezvous >= 0;
}

// The other end is on another host. Records no reason.
void leave_to_kernel(Socket& s) {
  withdraw_offer(s);
  s.become(Socket::State::kKernel);
  if (s.is_watched()) hooks.pinned(s);
}

// Waits for a few calls, in which the other end usually comes.
void say_unused(int fd, Socket& s, std::uint32_t offer_calls) {
  constexpr std::uint32_t kPatience = 4;
  if (offer_calls < kPatience) return;
  // relaxed: a count for people to read
  const std::uint32_t calls =
      s.sends.load(std::memory_order_relaxed) + s.receives.load(std::memory_order_relaxed);
  say_why(fd, s, Why::kUnused, calls);
}

// Whether a setting or a filter keeps the connection on TCP. Records the reason.
bool is_kept(int fd, Socket& s, const Route& route) {
  const std::uint16_t local = route.local.port, remote = route.remote.port;
  if (config().excepts(local, remote)) {
    stay(fd, s, Why::kExcept);
  } else if (config().leaves_out(local, remote)) {
    stay(fd, s, Why::kOnly);
  } else if (!permits_moving()) {
    stay(fd, s, refusal_found().by_filter ? Why::kFilter : Why::kRefused, refusal_found().call);
  } else if (const Why why = why_no_pipe(); why != Why::kNone) {
    stay(fd, s, why);
  } else {
    return false;
  }
  return true;
}

// Takes a dozen system calls, so only for a connection whose other end may be here.
bool is_unfit(int fd, Socket& s) {
  Why why = unseen_use();
  if (why == Why::kNone) why = why_by_option(fd);
  if (why != Why::kNone) stay(fd, s, why);
  return why != Why::kNone;
}

// Makes, enters and sends the pipe.
void take_up(int fd, Socket& s, const Route& route, int rendezvous) {
  if (is_unfit(fd, s)) return;
  if (const Why why = why_untrusted(fd, rendezvous, route); why != Why::kNone)
    return stay(fd, s, why);
  if (!create_pipe(fd, s)) return;
  PassedBells bells;
  if (!move_high(s.pipe) || !bells.make(s, rendezvous)) return stay(fd, s, Why::kNoDescriptors);
  // Before it is sent: the other end may use the pipe at once.
  if (!enter_pipe(fd, s, route)) {
    s.pipe = Pipe();
    s.Bells::reset();
    return;
  }
  const int passed[] = {s.pipe.memfd(), bells.fds[0], bells.fds[1]};
  if (!send_descriptors(rendezvous, kHello, sizeof kHello, passed, 1 + bells.count()))
    say_why(fd, s, Why::kOfferLost);
}

}  // namespace

void stay_unopened(int fd, Socket& s, const Error& error) {
  CLAN_WARN("%s: %s; the connection stays on TCP", Named(fd, s).text(), error.what);
  stay(fd, s, error.err == EPROTO ? Why::kVersion : Why::kNoMemory);
}

void offer(int fd, Socket& s) {
  Route route;
  if (!route_of(fd, &route)) return;  // not connected yet
  if (is_kept(fd, s, route)) return;
  if (route.local == route.remote) return stay(fd, s, Why::kSelfConnected);
  const bool is_here = same_host(s, route);
  if (!is_here && !config().net && !config().has_directory()) return leave_to_kernel(s);
  if (is_unfit(fd, s)) return;
  if (!is_here)
    return config().net ? move_to_other_host(fd, s, &route) : offer_in_directory(fd, s, route);
  // An offer that cannot be accepted would cost the other end a pipe.
  SockDiag kernel;
  if (const Why why = not_here(kernel, fd, route); why != Why::kNone) return stay(fd, s, why);
  int listener = unix_socket(SOCK_SEQPACKET);
  if (listener < 0) return stay(fd, s, Why::kNoUnix);
  listener = move_high(listener);
  if (listener < 0) return stay(fd, s, Why::kNoDescriptors);
  sockaddr_un name{};
  const socklen_t size = name_of(route.local, route.remote, &name);
  if (sys::call(SYS_bind, listener, &name, size) != 0 || sys::call(SYS_listen, listener, 1) != 0) {
    sys::close(listener);
    return stay(fd, s, Why::kNoUnix);
  }
  s.offer_fd.keep(listener);
  s.offered_ns = monotonic_ns();
  s.become(Socket::State::kOffered);
}

void look_for_taker(int fd, Socket& s) {
  const std::uint32_t call = s.offer_calls.fetch_add(1, std::memory_order_relaxed);
  if (has_waited_long(s, call) || (!s.pipe && have_exchanged_much(s)))
    return stay(fd, s, other_end_offers(fd) ? Why::kBothConnected : Why::kNoPeer);
  if (!looks_at(call)) return;
  if (moves_at_once() && call == 0 && !s.pipe) {
    pollfd p{s.offer_fd.get(), POLLIN, 0};
    (void)sys::poll(&p, 1, 2);
  }
  if (s.pipe) {  // taken up, but a call was under way
    Route route;
    if (route_of(fd, &route)) enter_pipe(fd, s, route);
    return;
  }
  const int taker = static_cast<int>(
      sys::call(SYS_accept4, s.offer_fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (taker < 0) return say_unused(fd, s, call);
  if (int listener = s.offer_fd.take(); listener >= 0) sys::close(listener);
  Route route;
  const Why why = route_of(fd, &route) ? why_untrusted(fd, taker, route) : Why::kNoNetlink;
  PassedBells bells;
  const int memfd = why == Why::kNone ? receive_memfd(taker, bells) : -1;
  const bool has_bells = memfd >= 0 && bells.adopt(s, taker);
  sys::close(taker);
  if (memfd == kNotNow) return s.become(Socket::State::kTcp);  // offers again
  if (memfd < 0) return stay(fd, s, why == Why::kNone ? Why::kOfferLost : why);
  auto pipe = Pipe::open(memfd, 0);
  if (!pipe) return stay_unopened(fd, s, pipe.error());
  if (too_large_here(*pipe)) return stay(fd, s, Why::kAddressSpace);
  s.pipe = std::move(*pipe);
  if (!has_bells || !move_high(s.pipe)) return stay(fd, s, Why::kNoDescriptors);
  s.offer_calls.store(0, std::memory_order_relaxed);
  // A set or ring may have been made since the offer.
  if (const Why unseen = unseen_use(); unseen != Why::kNone) return stay(fd, s, unseen);
  enter_pipe(fd, s, route);
}

void look_for_offer(int fd, Socket& s) {
  Route route;
  if (!route_of(fd, &route)) return;
  if (is_kept(fd, s, route)) return;
  if (!same_host(s, route)) {
    if (!config().net && !config().has_directory()) return leave_to_kernel(s);
    if (is_unfit(fd, s)) return;
    return config().net ? move_to_other_host(fd, s, &route) : claim_in_directory(fd, s, route);
  }
  const int rendezvous = connect_to_offer(route);
  if (rendezvous < 0) return;
  take_up(fd, s, route, rendezvous);
  sys::close(rendezvous);
}

}  // namespace clan::preload
