// How the two ends of a TCP connection find each other and agree on a pipe.
//
//   client (connected)                                server (accepted)
//   listens on an abstract socket named after the
//   connection's addresses, before its 2nd send
//                                                     connects to that name after its 5th, 10th, 20th… call
//                          <── a sealed memfd ──      asks the kernel who listens, makes the pipe
//   asks the kernel who sent it, maps it,
//   says so in the pipe (kAttached)
//
// Abstract names are of one network namespace, vanish with their process, and cost a peer without CLAN
// nothing. Whoever else takes the name is found out: the kernel knows the owner of the other end of the TCP
// connection (sock_diag), and it must be the user at the other end of the rendezvous.
#include "migrate/rendezvous.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "clan/clock.h"
#include "clan/log.h"
#include "os/config.h"
#include "wait/epoll.h"
#include "state/own_descriptors.h"
#include "os/sandbox.h"
#include "os/shared_pages.h"
#include "os/signals.h"
#include "state/testing.h"
#include "share/uring.h"

namespace clan::preload {
namespace {

using socket_face::kState;

constexpr char kPipeLink[] = "/memfd:clan-pipe (deleted)";
constexpr std::uint32_t kFirstOfferSends = 2;
constexpr std::uint32_t kFirstOfferReceives = 8;
constexpr std::uint32_t kFirstLook = 5;  ///< a request and its answer are over by then

bool is_loopback(const in6_addr& a) {
  return IN6_IS_ADDR_LOOPBACK(&a) || (IN6_IS_ADDR_V4MAPPED(&a) && a.s6_addr[12] == 127);
}

// Two addresses of this host may be as different as those of two hosts; the kernel knows, and is asked once.
bool same_host(Socket& s, const Route& r) {
  if (s.place == Socket::Place::kNotAsked) {
    const bool here = is_loopback(r.remote.address) ||
                      std::memcmp(&r.remote.address, &r.local.address, sizeof r.local.address) == 0 ||
                      other_end_is_here(r);
    s.place = here ? Socket::Place::kHere : Socket::Place::kElsewhere;
  }
  return s.place == Socket::Place::kHere;
}

socklen_t name_of(const Endpoint& client, const Endpoint& server, sockaddr_un* name) {
  char from[INET6_ADDRSTRLEN], to[INET6_ADDRSTRLEN];
  ::inet_ntop(AF_INET6, &client.address, from, sizeof from);
  ::inet_ntop(AF_INET6, &server.address, to, sizeof to);
  name->sun_family = AF_UNIX;
  name->sun_path[0] = 0;
  const int n = std::snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "clan1/%s/%u/%s/%u", from,
                              client.port, to, server.port);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(n));
}

// Who owns the other end of the connection, and its socket's inode, by the kernel's word.
bool owner_of_other_end(const Route& r, SockDiag::Found* owner) {
  SockDiag kernel;
  return kernel.ask(r.remote, r.local, r.interface, owner) == SockDiag::Answer::kFound;
}

// The process at the other end of the rendezvous owns the other end of the connection, and may share memory
// with us.
bool trusted(int rendezvous, const Route& route) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (sys::getsockopt(rendezvous, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return false;
  SockDiag::Found found;
  if (!owner_of_other_end(route, &found)) {
    CLAN_INFO("the kernel does not say who owns the other end of a connection%s; it stays on TCP",
              SockDiag::can_tell() ? "" : " (it takes AF_NETLINK, or /proc/self/net/tcp)");
    return false;
  }
  if (found.inode == 0) return false;  // closed meanwhile: nobody owns it, and uid is not one
  const uid_t owner = found.uid;
  if (owner != credentials.uid) {
    CLAN_WARN("user %u offered shared memory for a connection of user %u; refused", credentials.uid, owner);
    return false;
  }
  if (!config().allows_uid(owner)) {
    CLAN_INFO("the other end belongs to user %u, %s; it stays on TCP", owner,
              config().is_anybody(owner) ? "which stands for every user that is not in this user namespace"
                                         : "which CLAN_UIDS does not name");
    return false;
  }
  return true;
}

// The kernel's name of a socket, the same wherever its descriptors are. 0: it has none.
std::uint64_t cookie_of(int fd) {
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return sys::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

void introduce(int fd, Socket& s, const Route& r) {
  auto& w = s.mine().words;
  auto relaxed = std::memory_order_relaxed;  // for people to read
  w[socket_face::kProcess].store(static_cast<std::uint64_t>(::getpid()) << 32 | ::geteuid(), relaxed);
  w[socket_face::kCookie].store(cookie_of(fd), relaxed);
  const bool v4 = IN6_IS_ADDR_V4MAPPED(&r.local.address);
  w[socket_face::kPorts].store(static_cast<std::uint64_t>(v4 ? AF_INET : AF_INET6) << 32 |
                                   static_cast<std::uint64_t>(r.local.port) << 16 | r.remote.port,
                               relaxed);
  auto put = [&](int at, const in6_addr& address) {
    std::uint64_t halves[2] = {0, 0};
    std::memcpy(halves, address.s6_addr + (v4 ? 12 : 0), v4 ? 4 : 16);
    w[at].store(halves[0], relaxed);
    w[at + 1].store(halves[1], relaxed);
  };
  put(socket_face::kLocalAddress, r.local.address);
  put(socket_face::kRemoteAddress, r.remote.address);
}

// In memory that processes share over fork.
std::atomic<std::uint32_t>* shared_moves = nullptr;
std::atomic<bool> fork_under_way{false};  ///< sockets are being counted for a child: none moves meanwhile

// The socket's transfers go by its pipe from now on. `counted`: whoever gave us the descriptor has
// counted us among the holders, or we were before exec. `moves`: this process moves the connection,
// it does not find it moved.
void begin_sharing(int fd, Socket& s, bool counted, bool moves) {
  guard_buffers();
  s.receive_wait.emplace(WaitOptions{});
  s.send_wait.emplace(WaitOptions{});
  int low_water = 1;
  socklen_t size = sizeof low_water;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low_water, &size) == 0 && low_water > 1) {
    // A doorbell is one byte, and has to wake.
    const int one = 1;
    s.low_water = low_water;
    sys::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
  }
  count_pipe(s, moves && s.pipe.end() == 1);
  limit_as_tcp(fd, s);
  if (!counted) s.mine().words[socket_face::kHolders].fetch_add(1);
  if (!s.not_to_follow.exchange(true)) s.slot.load(std::memory_order_acquire)->to_follow.fetch_sub(1);
  s.state.store(Socket::State::kShared, std::memory_order_release);  // PAIR preload.shared
  // Threads may be asleep on it by poll() and select(), which have asked for no doorbell.
  s.pipe.keep_wanted(false);
  moved(s);
}

}  // namespace

std::uint32_t moves_of_shared() { return shared_moves != nullptr ? shared_moves->load() : 0; }

bool enter_pipe(int fd, Socket& s, const Route& route, bool counted) {
  const Undisturbed undisturbed;
  if (fork_under_way.load()) return false;  // whom the child counts as what has been decided
  Slot& slot = *s.slot.load(std::memory_order_acquire);
  const std::int32_t me = thread_id();
  if (!Slot::try_close(slot.receives, me)) return false;
  // Nor a send: it may end only when the peer reads, which may wait for doorbells that nobody can ring
  // meanwhile.
  if (!Slot::try_close(slot.sends, me)) {
    Slot::open(slot.receives, me);
    return false;
  }
  if (slot.pinned.load() != 0 || Slot::on_its_way(slot.held.load()) != 0) {
    Slot::open(slot.sends, me);
    Slot::open(slot.receives, me);
    return false;
  }
  introduce(fd, s, route);
  s.offered_ns = monotonic_ns();
  // Whoever sleeps in the kernel on this socket already did so without a flag: the first bytes must ring.
  s.pipe.page().ends[s.pipe.end()].receiver.waiting.store(1);
  s.pipe.page().ends[s.pipe.end()].sender.waiting.store(1);
  slot.pipe_pid.store(::getpid());
  slot.pipe_end.store(s.pipe.end());
  slot.pipe_fd.store(s.pipe.memfd());
  if (s.inherited.load(std::memory_order_relaxed)) s.followed.store(true);
  if (shared_moves != nullptr && s.inherited.load(std::memory_order_relaxed)) shared_moves->fetch_add(1);
  begin_sharing(fd, s, counted, !counted);
  // PAIR face.state: the other end may send through the pipe
  s.mine().words[kState].fetch_or(socket_face::kAttached, std::memory_order_acq_rel);
  Slot::open(slot.sends, me);
  Slot::open(slot.receives, me);
  return true;
}

void stay(Socket& s) {
  withdraw_offer(s);
  s.pipe = Pipe();
  s.state.store(Socket::State::kKernel);
  stayed(s);
}

void stay_because(int fd, Socket& s, const char* why) {
  CLAN_INFO("fd %d: %s; the connection stays on TCP", fd, why);
  stay(s);
}

namespace {

constexpr char kNoPeer[] = "the other end runs without CLAN, or may not move";

// A setting or a filter keeps it, and is told.
bool is_kept(int fd, Socket& s, const Route& route) {
  const std::uint16_t local = route.local.port, remote = route.remote.port;
  if (config().excepts(local, remote)) {
    stay_because(fd, s, "CLAN_EXCEPT");
  } else if (config().leaves_out(local, remote)) {
    stay_because(fd, s, "CLAN_ONLY");
  } else if (!permits_moving() || !may_have_pipe()) {  // which say why
    stay(s);
  } else {
    return false;
  }
  return true;
}

// Not told: connections to other hosts are no matter of ours.
void offer(int fd, Socket& s) {
  Route route;
  if (!route_of(fd, &route)) return;  // not connected yet
  if (is_kept(fd, s, route)) return;
  if (!same_host(s, route)) return config().has_directory() ? offer_in_directory(fd, s, route) : stay(s);
  if (!SockDiag::can_tell()) {  // an offer that could not be accepted would cost the other end a pipe
    CLAN_INFO(
        "the kernel would not say who owns the other end of a connection (it takes AF_NETLINK, or "
        "/proc/self/net/tcp); it stays on TCP");
    return stay(s);
  }
  int listener =
      static_cast<int>(sys::call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (listener < 0) return stay(s);
  listener = move_high(listener);
  if (listener < 0) return stay(s);
  sockaddr_un name{};
  const socklen_t size = name_of(route.local, route.remote, &name);
  if (sys::call(SYS_bind, listener, &name, size) != 0 || sys::call(SYS_listen, listener, 1) != 0) {
    sys::close(listener);
    return stay(s);
  }
  s.offer_fd.store(listener);
  s.offered_ns = monotonic_ns();
  s.state.store(Socket::State::kOffered);
}

constexpr int kMostPassed = 4;
constexpr char kHello[8] = "clan1";
constexpr int kNotNow = -2;

// -1: there is none. kNotNow: the other end could not take the offer up, and may another time.
int receive_memfd(int from) {
  pollfd p{from, POLLIN, 0};
  char hello[sizeof kHello];
  if (sys::poll(&p, 1, 20) <= 0) return -1;
  if (sys::recv(from, hello, 1, MSG_PEEK | MSG_DONTWAIT) == 0) return kNotNow;
  int fd = -1;
  return receive_descriptors(from, hello, sizeof hello, &fd, 1) > 0 ? fd : -1;
}

}  // namespace

int receive_descriptors(int from, void* to, std::size_t size, int* fds, int count) {
  iovec io{to, size};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostPassed * sizeof(int))];
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const long n = sys::call(SYS_recvmsg, from, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
  int received[kMostPassed];
  int got = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    got = static_cast<int>(std::min<std::size_t>((c->cmsg_len - CMSG_LEN(0)) / sizeof(int), kMostPassed));
    std::memcpy(received, CMSG_DATA(c), static_cast<std::size_t>(got) * sizeof(int));
  }
  if (n == static_cast<long>(size) && got == count && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0) {
    std::memcpy(fds, received, static_cast<std::size_t>(count) * sizeof(int));
    return 1;
  }
  for (int i = 0; i < got; ++i) sys::close(received[i]);
  return -1;
}

bool send_descriptors(int to, const void* bytes, std::size_t size, const int* fds, int count) {
  iovec io{const_cast<void*>(bytes), size};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostPassed * sizeof(int))] = {};
  const std::size_t length = static_cast<std::size_t>(count) * sizeof(int);
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(length);
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(length);
  std::memcpy(CMSG_DATA(c), fds, length);
  return sys::call(SYS_sendmsg, to, &message, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
}

namespace {

// In tests, where it may well come just now.
void wait_for_taker(Socket& s) {
  pollfd p{s.offer_fd.load(), POLLIN, 0};
  (void)sys::poll(&p, 1, 2);
}

// Client: has anybody taken up the offer?
void look_for_taker(int fd, Socket& s) {
  // The other end looks for offers after its 5th, 10th, 20th… call: often at first, and now and then for
  // long.
  const std::uint32_t call = s.offer_calls.fetch_add(1, std::memory_order_relaxed);
  if (has_waited_long(s, call) || (!s.pipe && have_exchanged_much(s))) return stay_because(fd, s, kNoPeer);
  if (!looks_at(call)) return;
  if (moves_at_once() && call == 0 && !s.pipe) wait_for_taker(s);
  if (s.pipe) {  // somebody has, but a call was under way
    Route route;
    if (route_of(fd, &route)) enter_pipe(fd, s, route);
    return;
  }
  const int taker = static_cast<int>(
      sys::call(SYS_accept4, s.offer_fd.load(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (taker < 0) return;
  if (int listener = s.offer_fd.exchange(-1); listener >= 0) sys::close(listener);
  Route route;
  const int memfd = route_of(fd, &route) && trusted(taker, route) ? receive_memfd(taker) : -1;
  sys::close(taker);
  if (memfd == kNotNow) return s.state.store(Socket::State::kTcp);  // offers again
  if (memfd < 0) return stay(s);
  auto pipe = Pipe::open(memfd, 0);
  if (!pipe) {
    CLAN_WARN("%s; the connection stays on TCP", pipe.error().what);
    return stay(s);
  }
  if (too_large_here(*pipe)) return stay(s);
  s.pipe = std::move(*pipe);
  if (!move_high(s.pipe)) {
    if (s.inherited.load(std::memory_order_relaxed)) return stay(s);  // others could not follow
    close_descriptor(s);
  }
  s.offer_calls.store(0, std::memory_order_relaxed);
  enter_pipe(fd, s, route);
}

// Server: is there an offer?
void look_for_offer(int fd, Socket& s) {
  Route route;
  if (!route_of(fd, &route)) return;
  if (is_kept(fd, s, route)) return;
  if (!same_host(s, route)) return config().has_directory() ? claim_in_directory(fd, s, route) : stay(s);
  const int rendezvous =
      static_cast<int>(sys::call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (rendezvous < 0) return;
  sockaddr_un name{};
  const socklen_t size = name_of(route.remote, route.local, &name);
  if (sys::call(SYS_connect, rendezvous, &name, size) == 0) {
    auto pipe = trusted(rendezvous, route) ? Pipe::create(socket_face::kMemfdName, ring_bytes(), 1)
                                           : Result<Pipe>(Error{EACCES, "not trusted"});
    if (pipe) {
      s.pipe = std::move(*pipe);
      const bool kept = move_high(s.pipe);
      const bool others_could_follow = kept || !s.inherited.load(std::memory_order_relaxed);
      // The other end may use the pipe as soon as it has it: be ready first.
      if (others_could_follow && enter_pipe(fd, s, route)) {
        const int memfd = s.pipe.memfd();
        if (!send_descriptors(rendezvous, kHello, sizeof kHello, &memfd, 1)) {
          CLAN_INFO("an offer was taken back while it was taken up; the connection stays on TCP");
        }
        if (!kept) close_descriptor(s);
      } else {
        s.pipe = Pipe();
      }
    } else {
      stay(s);
    }
  }
  sys::close(rendezvous);
}

// One thread at a time, and others do not wait.
class Once {
 public:
  explicit Once(Socket& s) : s_(s), mine_(!s.moving.test_and_set(std::memory_order_acquire)) {}
  ~Once() {
    if (mine_) s_.moving.clear(std::memory_order_release);
  }
  explicit operator bool() const { return mine_; }

 private:
  Undisturbed undisturbed_;
  Socket& s_;
  bool mine_;
};

std::uint32_t calls(const Socket& s) {
  return s.sends.load(std::memory_order_relaxed) + s.receives.load(std::memory_order_relaxed);
}

void consider(int fd, Socket& s) {
  const auto state = s.state.load(std::memory_order_acquire);
  if (state == Socket::State::kKernel || state == Socket::State::kShared) return;
  KeepErrno keep;
  Once once(s);
  if (!once || s.state.load() != state) return;
  if (rings_alive()) return stay_because(fd, s, "an io_uring of this process");
  if (s.slot.load()->pinned.load(std::memory_order_relaxed) != 0) {
    return stay_because(fd, s,
                        "a call is under way in another process, or it has been used in a way that is TCP's");
  }
  if (Slot::on_its_way(s.slot.load()->held.load(std::memory_order_relaxed)) != 0) return;  // not yet
  if (state == Socket::State::kOffered) {
    return s.place == Socket::Place::kElsewhere ? go_on_in_directory(fd, s) : look_for_taker(fd, s);
  }
  if (s.client) {
    const bool used = s.sends.load() >= kFirstOfferSends || s.receives.load() >= kFirstOfferReceives;
    if (used || moves_at_once()) offer(fd, s);
    return;
  }
  const std::uint32_t n = calls(s);
  if (gives_up(s, n)) return stay_because(fd, s, kNoPeer);
  const bool looks = n >= kFirstLook && n % kFirstLook == 0 && std::has_single_bit(n / kFirstLook);
  if (looks || (moves_at_once() && looks_at(n))) look_for_offer(fd, s);
}

}  // namespace

int open_memfd_of(unsigned pid, int fd, const char* link, int flags) {
  char path[64], text[64];
  std::snprintf(path, sizeof path, "/proc/%u/fd/%d", pid, fd);
  // Looked at first: opening something else, a terminal or a FIFO, could do something.
  const long n = sys::call(SYS_readlinkat, AT_FDCWD, path, text, sizeof text - 1);
  text[n > 0 ? n : 0] = 0;
  if (std::strcmp(text, link) != 0) {
    if (n >= 0) errno = ENOENT;
    return -1;
  }
  // Not to be waited for either, if it is one by now.
  return static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
}

bool proc_is_ours() {
  char text[16];
  const long n = sys::call(SYS_readlinkat, AT_FDCWD, "/proc/self", text, sizeof text - 1);
  text[n > 0 ? n : 0] = 0;
  return std::atoi(text) == static_cast<int>(sys::call(SYS_getpid));
}

std::uint32_t inode_of_other_end(int fd) {
  Route route;
  SockDiag::Found owner;
  return route_of(fd, &route) && owner_of_other_end(route, &owner) ? owner.inode : 0;
}

bool has_waited_for_peer(Socket& s) {
  constexpr std::uint32_t kMostCalls = 4096, kCalls = 16;
  constexpr std::uint64_t kMostNs = 900'000'000;
  const std::uint32_t calls = s.offer_calls.fetch_add(1, std::memory_order_relaxed) + 1;
  if (calls >= kMostCalls) return true;
  return calls >= kCalls && calls % 8 == 0 && monotonic_ns() - s.offered_ns > kMostNs;
}

void before_send(int fd, Socket& s) {
  s.sends.fetch_add(1, std::memory_order_relaxed);
  consider(fd, s);
}

void before_receive(int fd, Socket& s) {
  if (moves_at_once()) consider(fd, s);
}

void was_connected(int fd, Socket& s) {
  if (moves_at_once() && s.state.load() == Socket::State::kTcp) consider(fd, s);
}

void was_accepted(int fd) {
  constexpr int kTurns = 20;  // of a tenth of a millisecond: the other end is about to return from connect()
  const timespec nap{0, 100'000};
  if (!moves_at_once()) return;
  KeepErrno keep;
  const Held s = hold(fd);
  for (int turn = 0; s && turn < kTurns && s->state.load() == Socket::State::kTcp; ++turn) {
    if (turn > 0) sys::call(SYS_nanosleep, &nap, nullptr);
    consider(fd, *s);
  }
}

void after_receive(int fd, Socket& s) {
  s.receives.fetch_add(1, std::memory_order_relaxed);
  consider(fd, s);
}

bool keep_on_tcp(int fd, Socket& s) {
  KeepErrno keep;
  const Undisturbed undisturbed;
  constexpr std::uint64_t kPatienceNs = 1'000'000'000;
  Slot* slot = nullptr;
  while (slot != s.slot.load(std::memory_order_acquire)) {  // fork moves it
    slot = s.slot.load(std::memory_order_acquire);
    slot->pinned.store(1);
    // Who moves it just now, perhaps another process, has looked before.
    const std::uint64_t end = monotonic_ns() + kPatienceNs;
    while ((slot->receives.load() & Slot::kClosed) != 0 && monotonic_ns() < end) sched_yield();
  }
  if (s.inherited.load(std::memory_order_relaxed)) catch_up(fd, s);
  while (s.moving.test_and_set(std::memory_order_acquire)) sched_yield();
  const auto state = s.state.load();
  if (state == Socket::State::kTcp || state == Socket::State::kOffered) stay(s);
  s.moving.clear(std::memory_order_release);
  return !s.shared();
}

void never_move(int fd, Socket& s) {
  if (!keep_on_tcp(fd, s)) leave_pipe(fd, true);
}

void adopt_pipe(int fd, int memfd, int end) {
  KeepErrno keep;
  probe(fd);
  Held s = hold(fd);
  auto pipe = open_high(memfd, end);
  Route route;
  if (!s || !pipe || !route_of(fd, &route)) {
    log_line(LogLevel::kError,
             "a connection in shared memory was handed to this program, which cannot use it (%s); it is "
             "reset. CLAN_DISABLE=1 for the program that executed this one avoids that",
             s ? "its memory is not to be had" : "CLAN_DISABLE, or no memory");
    return reset_connection(fd);
  }
  s->inherited = true;
  s->pipe = std::move(*pipe);
  enter_pipe(fd, *s, route, true);
}

namespace {

// The pipe of a connection, by the cookie of our end of it: from whoever has it, which is the peer at least.
int find_pipe(std::uint64_t cookie, int* end) {
  const int proc =
      static_cast<int>(sys::call(SYS_openat, AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (proc < 0) return -1;
  int found = -1;
  DirectoryReader processes(proc);
  while (const char* pid = processes.next()) {
    if (*pid < '1' || *pid > '9') continue;
    char path[96];
    std::snprintf(path, sizeof path, "/proc/%.16s/fd", pid);
    const int fds =
        static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fds < 0) continue;
    DirectoryReader names(fds);
    while (const char* name = names.next()) {
      char link[64];
      const long n = sys::call(SYS_readlinkat, fds, name, link, sizeof link - 1);
      link[n > 0 ? n : 0] = 0;
      if (std::strcmp(link, kPipeLink) != 0) continue;
      const int memfd = static_cast<int>(sys::call(SYS_openat, fds, name, O_RDWR | O_CLOEXEC));
      if (memfd < 0) continue;
      struct stat about {};
      if (sys::fstat(memfd, &about) != 0 || (about.st_uid != 0 && !config().allows_uid(about.st_uid))) {
        sys::close(memfd);
        continue;
      }
      for (int e = 0; e < 2 && found < 0; ++e) {
        auto pipe = Pipe::open(static_cast<int>(sys::fcntl(memfd, F_DUPFD_CLOEXEC, 0)), e);
        if (pipe && pipe->my_face().words[socket_face::kCookie].load() == cookie) {
          found = memfd;
          *end = e;
        }
      }
      if (found >= 0) break;
      sys::close(memfd);
    }
    sys::close(fds);
    if (found >= 0) break;
  }
  sys::close(proc);
  return found;
}

// `end` of the pipe behind a memfd, if that is the one of the socket with this cookie. Takes the memfd.
Result<Pipe> open_pipe_of(int memfd, int end, std::uint64_t cookie) {
  if (memfd < 0) return Error{errno, "opening a pipe of another process"};
  auto pipe = open_high(memfd, end);
  if (pipe && pipe->my_face().words[socket_face::kCookie].load() != cookie) {
    return Error{ENOENT, "the pipe of another connection"};
  }
  return pipe;
}

}  // namespace

void adopt_passed(int fd, int through, bool peeked) {
  KeepErrno keep;
  gone(fd);
  const bool takes_part = !config().disabled && !rings_alive();
  probe(fd, true);
  Held s = hold(fd);
  Route route;
  if (!s || !route_of(fd, &route)) return;
  const bool may_move = takes_part && fd > STDERR_FILENO && permits_moving();
  if (may_move && claim_passed(fd, *s, through, peeked)) return;
  int end = 0;
  const std::uint64_t cookie = cookie_of(fd);
  const bool may_have_moved = same_host(*s, route) || config().has_directory();
  const int memfd = may_have_moved ? find_pipe(cookie, &end) : -1;
  auto pipe = open_pipe_of(memfd, end, cookie);
  if (!pipe) return stay(*s);
  s->pipe = std::move(*pipe);
  enter_pipe(fd, *s, route, true);
  if (!takes_part || fd <= STDERR_FILENO) leave_pipe(fd, true);
}

void catch_up(int fd, Socket& s) {
  Slot& slot = *s.slot.load(std::memory_order_acquire);
  const int memfd = slot.pipe_fd.load(std::memory_order_acquire);
  if (memfd < 0 || s.shared()) return;
  KeepErrno keep;
  Once once(s);
  if (!once || s.shared() || fork_under_way.load()) return;
  int end = slot.pipe_end.load();
  const std::uint64_t cookie = cookie_of(fd);
  const auto mover = static_cast<unsigned>(slot.pipe_pid.load());
  auto pipe = open_pipe_of(open_memfd_of(mover, memfd, kPipeLink, O_RDWR), end, cookie);
  if (!pipe) {  // who moved it is gone
    const int other = find_pipe(cookie, &end);
    pipe = open_pipe_of(other, end, cookie);
  }
  if (!pipe) {
    log_line(LogLevel::kError,
             "a connection was moved to shared memory by process %d, which shared it with this one, and "
             "cannot be followed there (%s); it is reset. CLAN_DISABLE=1 avoids that for this program",
             slot.pipe_pid.load(), pipe.error().what);
    s.state.store(Socket::State::kKernel);
    s.inherited.store(false);  // there is nobody to follow any more
    return reset_connection(fd);
  }
  withdraw_offer(s);
  s.pipe = std::move(*pipe);
  begin_sharing(fd, s, false, false);
}

namespace {

// Whoever comes to the socket's own counters from now on sees that he has to look where they are now.
// False: a call is under way.
bool close_for_good(Socket& s) {
  constexpr std::uint64_t kPatienceNs = 1'000'000'000;
  const std::uint64_t end = monotonic_ns() + kPatienceNs;
  Slot& own = s.own_slot;
  const std::int32_t me = thread_id();
  do {
    if (Slot::try_close(own.receives, me)) {
      if (Slot::try_close(own.sends, me)) return true;
      Slot::open(own.receives, me);
    }
    const std::uint64_t counted = own.receives.load() | own.sends.load();
    // Of a socket that has moved nobody is in the kernel, and a switch is soon over.
    if (!s.shared() && (counted & Slot::kClosed) == 0 && counted != 0) return false;
    if (s.resending.load()) break;  // that may take long
    sched_yield();
  } while (monotonic_ns() < end);
  return false;
}

}  // namespace

bool share_slot(Socket& s, Slot* shared) {
  // A call that is under way in the kernel is counted there, and not here: no move, then.
  const bool closed = close_for_good(s);
  if (!closed && !s.shared()) s.own_slot.pinned = 1;
  if (!closed && s.resending.load()) {  // who does that opens the new counter
    while (!Slot::try_close(s.own_slot.receives, thread_id())) sched_yield();
    shared->resender = s.own_slot.resender.load();
    shared->sends = Slot::closed_by(shared->resender.load());
  }
  shared->pipe_pid = s.own_slot.pipe_pid.load();
  shared->pipe_fd = s.own_slot.pipe_fd.load();
  shared->pipe_end = s.own_slot.pipe_end.load();
  shared->pinned = s.own_slot.pinned.load();
  shared->to_follow = s.own_slot.to_follow.load();
  s.slot.store(shared);
  return shared->pinned.load() == 0;
}

bool leave_slot(Socket& s) {
  Slot& slot = *s.slot.load(std::memory_order_acquire);
  if (!s.not_to_follow.exchange(true)) slot.to_follow.fetch_sub(1);
  const bool others = slot.to_follow.load() > 0 || Slot::on_its_way(slot.held.load()) > 0;
  if (!s.left_slot.exchange(true)) slot.held.fetch_sub(1);
  return others;
}

namespace {

SharedPages<Slot> slots;
std::uint64_t forks = 0;

// A child more has the open file, by its pipe or still to follow. `by`: 1 or, if there is no child after all,
// -1.
void count_child(Socket& s, int by) {
  Slot& slot = *s.slot.load(std::memory_order_acquire);
  slot.held.fetch_add(by);
  if (s.not_to_follow.load() && s.pipe) {
    s.mine().words[socket_face::kHolders].fetch_add(static_cast<std::uint64_t>(std::int64_t{by}));
  } else {
    slot.to_follow.fetch_add(by);
  }
}

// Once for each socket, however many descriptors it has.
bool counted_in_this_fork(Socket& s) { return std::exchange(s.last_fork, forks) == forks; }

}  // namespace

void share_slots() {
  constexpr std::uint64_t kPatienceNs = 1'000'000'000;
  fork_under_way.store(true);
  if (shared_moves == nullptr) {
    void* memory = sys::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) shared_moves = new (memory) std::atomic<std::uint32_t>{0};
  }
  ++forks;
  for_each_socket(
      [](int, Socket& s, void*) {
        if (counted_in_this_fork(s)) return;
        // Who moves it just now has not seen that there is a fork; nobody begins to. Going back may take
        // longer, but that both see.
        const std::uint64_t end = monotonic_ns() + kPatienceNs;
        bool mine = false;
        while (!(mine = !s.moving.test_and_set(std::memory_order_acquire)) && monotonic_ns() < end)
          sched_yield();
        s.inherited = true;
        if (s.slot.load() == &s.own_slot) {
          Slot* slot = slots.take();
          lock_resends();
          slot != nullptr ? (void)share_slot(s, slot) : s.own_slot.pinned.store(1);
          unlock_resends();
        }
        count_child(s, 1);
        if (mine) s.moving.clear(std::memory_order_release);
      },
      nullptr);
}

void fork_has_failed() {
  ++forks;
  for_each_socket(
      [](int, Socket& s, void*) {
        if (!counted_in_this_fork(s)) count_child(s, -1);
      },
      nullptr);
}

void fork_is_over() {
  fork_under_way.store(false);
  // Parent and child count by themselves what goes by one connection: by TCP alone can that be.
  for_each_socket(
      [](int fd, Socket& s, void*) {
        if (s.inherited.load() && s.shared() && s.slot.load() == &s.own_slot) never_move(fd, s);
      },
      nullptr);
}

void forked() {
  slots.forked();
  Pipe::after_fork_in_child();
  pipe_count_forked();
  for_each_socket(
      [](int, Socket& s, void*) {
        s.moving.clear();
        s.charge = {};
        // The parent's offer is the parent's: who takes it up must find one process there.
        const bool half_way = s.place == Socket::Place::kElsewhere;
        if (s.state.load() == Socket::State::kOffered && (!s.pipe || half_way)) {
          drop_offer(s);
          s.pipe = Pipe();
          s.state.store(Socket::State::kKernel);
        }
      },
      nullptr);
}

}  // namespace clan::preload
