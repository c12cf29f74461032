// How two ends in different network namespaces find each other: by a directory that both see
// (CLAN_DIR).
//
//   client (connected)                        server (accepted)
//   listens on a socket in the directory,
//   named after the connection's addresses
//                                             connects to that name after its 5th, 10th, 20th… call
//                      <── a window into its namespace ──
//   checks whose socket it sees there,
//   unlinks the name, makes the pipe, enters
//                      ── a window into its namespace, the memfd ──>
//                                             checks whose socket it sees there, enters the pipe
//
// Each step happens in a call of the application; neither end waits for the other.
//
// The window is a sock_diag socket. The kernel answers for the network namespace in which it was
// made, whichever process asks. So each end checks for itself that a TCP connection with the same
// addresses, mirrored, is established there, that it belongs to the user at the other end of the
// rendezvous, and that it has carried as many bytes as our own. A duplicate of the TCP socket would
// show the same, but until it is received it keeps the connection open, even if its sender has been
// killed, and a program in recv() would wait for ever. It would also give away the connection
// before we know to which process.
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "attach/attach.h"
#include "attach/peer_auth.h"
#include "clan/detail/log.h"
#include "clan/face/pipe.h"
#include "clan/face/reasons.h"
#include "clan/face/socket_face.h"
#include "kernel/sock_diag.h"
#include "migrate/bells.h"
#include "migrate/directory_names.h"
#include "migrate/offer.h"
#include "migrate/rendezvous_backoff.h"
#include "migrate/verify_connection.h"
#include "os/config.h"
#include "os/fd_message.h"
#include "os/sys.h"
#include "state/hooks.h"
#include "state/named.h"
#include "state/socket.h"
#include "state/withdraw.h"
#include "table/buffers.h"
#include "table/internal_fds.h"

namespace clan::preload {
namespace {

constexpr std::uint32_t kMostChecks = 256;  ///< calls in which the counters may differ
constexpr int kPatienceMs = 20;             ///< with a process that has connected

struct Hello {
  char magic[8] = {'c', 'l', 'a', 'n', 'd', 'i', 'r', '1'};
  std::uint32_t interface = 0;  ///< of a link-local address, in the sender's namespace
  std::uint32_t zero = 0;
  bool good() const { return std::memcmp(magic, Hello().magic, sizeof magic) == 0; }
};

using reasons::Why;

// Why allowed_peer() has refused the user.
Why why_not(uid_t uid) { return config().is_anybody(uid) ? Why::kUnmappedUser : Why::kOtherUser; }

// Why a window into our own namespace would not show the connection.
Why not_shown(SockDiag& ours, int fd, const Route& route) {
  return ours.fd() < 0 ? Why::kNoNetlink : not_here(ours, fd, route);
}

void close_offer(Socket& s) {
  if (const std::uint64_t name = s.offer_name.take(); name != 0) unlink_offer(name);
  if (const int listener = s.offer_fd.take(); listener >= 0) sys::close(listener);
}

// Receives the window of a process that has connected. False: it is not allowed, or sends none.
bool meet_taker(Socket& s, int taker) {
  uid_t uid = 0;
  if (!allowed_peer(taker, &uid)) return false;
  pollfd p{taker, POLLIN, 0};
  Hello hello;
  int window = -1;
  if (sys::poll(&p, 1, kPatienceMs) <= 0 ||
      receive_descriptors(taker, &hello, sizeof hello, &window, 1) <= 0) {
    return false;
  }
  if (!hello.good() || !SockDiag::genuine(window)) {
    sys::close(window);
    return false;
  }
  s.window_interface = hello.interface;
  s.window_fd.keep(move_high(window));
  return s.window_fd.get() >= 0;
}

// Checks whose connection the window shows. kOther: it stays on TCP.
Verdict look_through_window(int fd, Socket& s, const Route& route) {
  const int window_fd = s.window_fd.take();
  SockDiag window(window_fd);
  uid_t peer = 0;
  const bool may_talk = allowed_peer(s.offer_fd.get(), &peer);
  Verdict verdict =
      may_talk ? compare(fd, route, window, s.window_interface, peer) : Verdict::kOther;
  if (verdict == Verdict::kUnderWay && ++s.window_looks > kMostChecks) {
    CLAN_INFO("%s: the bytes of both ends never were seen to agree", Named(fd, s).text());
    verdict = Verdict::kOther;
  }
  if (verdict == Verdict::kOther) {
    stay(fd, s, may_talk ? Why::kNotOwner : why_not(peer));
  } else {
    s.window_fd.keep(window.release());
  }
  return verdict;
}

void go_on_as_client(int fd, Socket& s) {
  if (s.window_fd.get() < 0) {
    const int taker = static_cast<int>(
        sys::call(SYS_accept4, s.offer_fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (taker < 0) return;
    if (!meet_taker(s, taker)) {
      sys::close(taker);
      constexpr std::uint32_t kMostStrangers = 8;
      if (++s.window_looks > kMostStrangers) stay(fd, s, Why::kNotOwner);
      return;  // the other end may still come
    }
    close_offer(s);
    s.window_looks = 0;
    s.offer_fd.keep(move_high(taker));
    if (s.offer_fd.get() < 0) return stay(fd, s, Why::kNoDescriptors);
  }
  Route route;
  if (!route_of(fd, &route)) return stay(fd, s, Why::kOfferLost);
  if (look_through_window(fd, s, route) != Verdict::kSame) return;
  SockDiag ours;
  if (const Why why = not_shown(ours, fd, route); why != Why::kNone) return stay(fd, s, why);
  if (!s.pipe) {
    auto pipe = Pipe::create(socket_face::kMemfdName, ring_bytes(), 0);
    if (!pipe) return stay(fd, s, Why::kNoMemory);
    s.pipe = std::move(*pipe);
    if (!move_high(s.pipe)) return stay(fd, s, Why::kNoDescriptors);
  }
  PassedBells bells;
  if (!bells.make(s, s.offer_fd.get())) return stay(fd, s, Why::kNoDescriptors);
  // Before it is sent: the other end may use the pipe at once.
  if (!enter_pipe(fd, s, route)) return s.Bells::reset();
  Hello hello;
  hello.interface = route.interface;
  const int given[] = {ours.fd(), s.pipe.memfd(), bells.fds[0], bells.fds[1]};
  if (!send_descriptors(s.offer_fd.get(), &hello, sizeof hello, given, 2 + bells.count())) {
    say_why(fd, s, Why::kOfferLost);
  }
  withdraw_offer(s);
}

void go_on_as_server(int fd, Socket& s) {
  if (s.window_fd.get() < 0) {
    Hello hello;
    int given[4] = {-1, -1, -1, -1};
    const int rc = receive_descriptors(s.offer_fd.get(), &hello, sizeof hello, given, 2, 4);
    if (rc == 0) return;
    if (rc < 0) return stay(fd, s, Why::kOfferLost);
    PassedBells bells;
    std::copy(given + 2, given + 4, bells.fds);
    if (!hello.good() || !SockDiag::genuine(given[0])) {
      for (const int passed : {given[0], given[1]}) sys::close(passed);
      return stay(fd, s, Why::kNotOwner);
    }
    s.window_interface = hello.interface;
    s.window_fd.keep(move_high(given[0]));
    auto pipe = open_high(given[1], 1);
    if (s.window_fd.get() < 0) return stay(fd, s, Why::kNoDescriptors);
    if (!pipe) return stay_unopened(fd, s, pipe.error());
    s.pipe = std::move(*pipe);
    (void)bells.adopt(s, s.offer_fd.get());
  }
  Route route;
  if (!route_of(fd, &route)) return stay(fd, s, Why::kOfferLost);
  if (look_through_window(fd, s, route) != Verdict::kSame) return;
  if (s.bell.get() < 0) return stay(fd, s, Why::kNoDescriptors);
  if (enter_pipe(fd, s, route)) withdraw_offer(s);
}

}  // namespace

void offer_in_directory(int fd, Socket& s, const Route& route) {
  (void)sweep();
  const std::uint64_t name = name_of(route.local, route.remote);
  int listener = unix_socket(SOCK_SEQPACKET);
  if (listener < 0) return stay(fd, s, Why::kNoUnix);
  listener = move_high(listener);
  if (listener < 0) return stay(fd, s, Why::kNoDescriptors);
  // The credentials of a process decide whether it may connect, not our umask.
  if (!bind_offer(listener, name, config().uid_count > 0 ? 0666 : 0600)) {
    const auto error = static_cast<std::uint32_t>(errno);
    sys::close(listener);
    return stay(fd, s, Why::kDirectory, error);
  }
  s.offer_name.keep(name);
  s.offer_fd.keep(listener);
  s.become(Socket::State::kOffered);
}

void claim_in_directory(int fd, Socket& s, const Route& route) {
  const int rendezvous = unix_socket(SOCK_SEQPACKET);
  if (rendezvous < 0) return;
  uid_t uid = 0;
  if (!connect_to_offer(rendezvous, name_of(route.remote, route.local))) {
    // Not there yet, left over, another user's, or full: some process has connected.
    sys::close(rendezvous);
    return;
  }
  SockDiag ours;
  const int window = ours.fd();
  Hello hello;
  hello.interface = route.interface;
  Why why = not_shown(ours, fd, route);
  if (why == Why::kNone && !allowed_peer(rendezvous, &uid)) why = why_not(uid);
  if (why == Why::kNone && !send_descriptors(rendezvous, &hello, sizeof hello, &window, 1))
    why = Why::kOfferLost;
  if (why != Why::kNone) {
    sys::close(rendezvous);
    return stay(fd, s, why);
  }
  s.offer_fd.keep(move_high(rendezvous));
  if (s.offer_fd.get() < 0) return stay(fd, s, Why::kNoDescriptors);
  s.become(Socket::State::kOffered);
}

void go_on_in_directory(int fd, Socket& s) {
  const std::uint32_t call = s.offer_calls.fetch_add(1, std::memory_order_relaxed);
  if (gives_up(s, call)) return stay(fd, s, Why::kNotInDirectory);
  if (!looks_at(call) && s.window_fd.get() < 0) return;
  s.client ? go_on_as_client(fd, s) : go_on_as_server(fd, s);
}

}  // namespace clan::preload
