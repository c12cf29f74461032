// How two ends in different network namespaces find each other: by a directory that both see
// (CLAN_DIR).
//
//   client (connected)                                server (accepted)
//   listens on a socket in the directory, named
//   after the connection's addresses
//                                                     connects to that name after its 5th, 10th,
//                                                     20th… call
//                     <── a window into our namespace ──
//   checks whose socket it sees there, unlinks the
//   name, makes the pipe and enters it
//                     ── a window into our namespace, the memfd ──>
//                                                     checks whose socket it sees there, enters the
//                                                     pipe
//
// Each step is done in a call that the application makes; nobody waits for anybody.
//
// The window is a sock_diag socket. What is asked through it the kernel answers for the network
// namespace in which it was made, whoever asks. So each end sees for itself that a TCP connection
// with the same addresses, mirrored, is established there, that it belongs to the user at the other
// end of the rendezvous, and that as many bytes went by it as by our own. A duplicate of the TCP
// socket would show the same. But until it has been received it would keep the connection open,
// even when its sender has been killed: a program asleep in recv() would wait for an end that does
// not come. It would also be a key to the connection, given away before we know to whom. A window
// is neither.
#include <fcntl.h>
#include <linux/tcp.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "clan/clock.h"
#include "clan/log.h"
#include "os/config.h"
#include "state/own_descriptors.h"
#include "migrate/rendezvous.h"

namespace clan::preload {
namespace {

constexpr int kEstablished = 1;             // TCP_ESTABLISHED
constexpr int kLooks = 3;                   ///< at the counters, in one call
constexpr std::uint32_t kMostChecks = 256;  ///< calls in which the counters may differ
constexpr int kPatienceMs = 20;             ///< with who has connected, and is about to say why
/// What may be under way from the other end beyond what it has been told of, while bytes come in.
constexpr std::uint64_t kMostUnderWay = 1u << 20;

struct Hello {
  char magic[8] = {'c', 'l', 'a', 'n', 'd', 'i', 'r', '1'};
  std::uint32_t interface = 0;  ///< of a link-local address, in the sender's namespace
  std::uint32_t zero = 0;
  bool good() const { return std::memcmp(magic, Hello().magic, sizeof magic) == 0; }
};

// --- names in the directory
// --------------------------------------------------------------------------

static_assert(kOfferName + Config::kMostDirectory + 2 <= sizeof(sockaddr_un::sun_path));
constexpr char kPrefix[] = "clan1-";
constexpr std::size_t kPrefixSize = sizeof kPrefix - 1;
static_assert(kPrefixSize + 16 == kOfferName);

std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0xff51afd7ed558ccdu;
  return hash ^ (hash >> 32);
}

// Two connections of the same name would stand in each other's way, and not be taken for each
// other. Never 0.
std::uint64_t name_of(const Endpoint& client, const Endpoint& server) {
  std::uint64_t hash = 0x9e3779b97f4a7c15u;
  for (const Endpoint* end : {&client, &server}) {
    std::uint64_t halves[2];
    std::memcpy(halves, &end->address, sizeof halves);
    hash = mix(mix(mix(hash, halves[0]), halves[1]), end->port);
  }
  return hash != 0 ? hash : 1;
}

socklen_t path_of(std::uint64_t name, sockaddr_un* path) {
  path->sun_family = AF_UNIX;
  const int n = std::snprintf(path->sun_path, sizeof path->sun_path, "%s/%s%016llx", config().directory,
                              kPrefix, static_cast<unsigned long long>(name));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + static_cast<std::size_t>(n) + 1);
}

void unlink_offer(std::uint64_t name) {
  sockaddr_un path{};
  path_of(name, &path);
  sys::call(SYS_unlinkat, AT_FDCWD, path.sun_path, 0);
}

int unix_socket(int type) {
  return static_cast<int>(sys::call(SYS_socket, AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Nobody has this socket any more: its process was killed. Asks by a socket of another type, which
// the kernel refuses in one way when there is somebody and in another when not, and of which nobody
// there hears.
bool is_left_over(const sockaddr_un& path, socklen_t size) {
  const int probe = unix_socket(SOCK_STREAM);
  if (probe < 0) return false;
  const bool nobody = sys::call(SYS_connect, probe, &path, size) != 0 && errno == ECONNREFUSED;
  sys::close(probe);
  return nobody;
}

constexpr std::uint64_t kSweepNs = 5'000'000'000u;
constexpr int kMostNames = 1024, kMostProbes = 32;  ///< of one sweep
constexpr long kFreshSeconds = 2;                   ///< may be about to get its socket

// Removes what killed processes have left behind, some of it, now and then.
void sweep() {
  static std::atomic<std::uint64_t> next_ns{0};
  static std::atomic<unsigned> turn{0};
  const std::uint64_t now = monotonic_ns();
  // relaxed: two threads that sweep at once do no harm
  if (now < next_ns.load(std::memory_order_relaxed)) return;
  next_ns.store(now + kSweepNs, std::memory_order_relaxed);
  const int directory = static_cast<int>(
      sys::call(SYS_openat, AT_FDCWD, config().directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory < 0) return;
  timespec clock{};
  ::clock_gettime(CLOCK_REALTIME, &clock);
  // Of many that are alive, others each time.
  const unsigned part = turn.fetch_add(1, std::memory_order_relaxed) % 4;
  DirectoryReader names(directory);
  int seen = 0, probes = 0;
  while (const char* name = seen < kMostNames && probes < kMostProbes ? names.next() : nullptr) {
    if (std::strncmp(name, kPrefix, kPrefixSize) != 0 || std::strlen(name) != kOfferName) continue;
    ++seen;
    if (seen > kMostProbes && static_cast<unsigned char>(name[kOfferName - 1]) % 4 != part) continue;
    struct stat st {};
    if (::fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISSOCK(st.st_mode)) continue;
    if (clock.tv_sec - st.st_mtim.tv_sec < kFreshSeconds) continue;
    ++probes;
    sockaddr_un path{};
    path.sun_family = AF_UNIX;
    std::snprintf(path.sun_path, sizeof path.sun_path, "%s/%.*s", config().directory,
                  static_cast<int>(kOfferName), name);
    if (is_left_over(path, sizeof path)) sys::call(SYS_unlinkat, AT_FDCWD, path.sun_path, 0);
  }
  sys::close(directory);
}

// --- is that the other end?
// --------------------------------------------------------------------------

struct Counters {
  bool known = false;
  std::uint8_t state = 0;
  std::uint64_t sent = 0, acked = 0, received = 0;
};
Counters counters_of(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  Counters c;
  c.known = sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
            size >= offsetof(tcp_info, tcpi_bytes_retrans) + sizeof info.tcpi_bytes_retrans;
  c.state = info.tcpi_state;
  c.sent = info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
  c.acked = info.tcpi_bytes_acked;
  c.received = info.tcpi_bytes_received;
  return c;
}

// What one end has sent is what the other has received, but for what was under way between the
// looks.
bool agree(const Counters& before, const SockDiag::Found& theirs, const Counters& after) {
  // The SYN counts among the bytes acknowledged.
  const std::uint64_t acked = before.acked - (before.acked > 0 ? 1 : 0);
  if (theirs.received < acked || theirs.received > after.sent) return false;
  const std::uint64_t slack = after.received != before.received ? kMostUnderWay : 0;
  const std::uint64_t told = theirs.acked - (theirs.acked > 0 ? 1 : 0);
  return theirs.sent >= before.received && theirs.sent <= after.received + slack && told <= after.received;
}

enum class Verdict { kSame, kUnderWay, kOther };

// Is the connection that `window` shows in its namespace ours, seen from the other end, and its
// owner `peer`?
Verdict compare(int fd, const Route& r, SockDiag& window, std::uint32_t interface, uid_t peer) {
  for (int look = 0; look < kLooks; ++look) {
    if (look > 0) sched_yield();
    const Counters before = counters_of(fd);
    SockDiag::Found theirs;
    if (window.ask(r.remote, r.local, interface, &theirs) != SockDiag::Answer::kFound ||
        !(theirs.local == r.remote) || !(theirs.remote == r.local)) {
      CLAN_INFO(
          "where an offer of shared memory comes from the kernel knows of no such connection; "
          "refused");
      return Verdict::kOther;
    }
    const Counters after = counters_of(fd);
    if (theirs.state != kEstablished || after.state != kEstablished || !theirs.counted || !after.known) {
      return Verdict::kOther;
    }
    if (theirs.inode == 0) return Verdict::kOther;  // closed meanwhile: nobody owns it, and uid is not one
    if (theirs.uid != peer) {
      CLAN_WARN("user %u offered shared memory for a connection of user %u; refused", peer, theirs.uid);
      return Verdict::kOther;
    }
    if (agree(before, theirs, after)) return Verdict::kSame;
  }
  return Verdict::kUnderWay;
}

// The user at the other end of a rendezvous, if we may share memory with it.
bool allowed_peer(int rendezvous, uid_t* uid) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (sys::getsockopt(rendezvous, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return false;
  *uid = credentials.uid;
  if (config().allows_uid(credentials.uid)) return true;
  CLAN_INFO("an end in CLAN_DIR belongs to user %u, %s; refused", credentials.uid,
            config().is_anybody(credentials.uid)
                ? "which stands for every user that is not in this user namespace"
                : "which CLAN_UIDS does not name");
  return false;
}

// --- the client
// --------------------------------------------------------------------------------------

void close_offer(Socket& s) {
  if (const std::uint64_t name = s.offer_name.exchange(0); name != 0) unlink_offer(name);
  if (const int listener = s.offer_fd.exchange(-1); listener >= 0) sys::close(listener);
}

// Somebody has connected to our offer. True: it is the end of somebody we may talk to, and has
// shown a window.
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
  s.window_fd.store(move_high(window));
  return s.window_fd.load() >= 0;
}

// Both: whose connection does the window show? kOther: it stays on TCP.
Verdict look_through_window(int fd, Socket& s, const Route& route) {
  const int window_fd = s.window_fd.exchange(-1);
  SockDiag window(window_fd);
  uid_t peer = 0;
  Verdict verdict = allowed_peer(s.offer_fd.load(), &peer)
                        ? compare(fd, route, window, s.window_interface, peer)
                        : Verdict::kOther;
  if (verdict == Verdict::kUnderWay && ++s.window_looks > kMostChecks) {
    CLAN_INFO("the bytes of both ends of a connection never were seen to agree; it stays on TCP");
    verdict = Verdict::kOther;
  }
  if (verdict == Verdict::kOther) {
    stay(s);
  } else {
    s.window_fd.store(window.release());
  }
  return verdict;
}

void go_on_as_client(int fd, Socket& s) {
  if (s.window_fd.load() < 0) {
    const int taker = static_cast<int>(
        sys::call(SYS_accept4, s.offer_fd.load(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (taker < 0) return;
    if (!meet_taker(s, taker)) {
      // The one we wait for may still come.
      sys::close(taker);
      constexpr std::uint32_t kMostStrangers = 8;
      if (++s.window_looks > kMostStrangers) stay(s);
      return;
    }
    close_offer(s);
    s.window_looks = 0;
    s.offer_fd.store(move_high(taker));
    if (s.offer_fd.load() < 0) return stay(s);
  }
  Route route;
  if (!route_of(fd, &route)) return stay(s);
  if (look_through_window(fd, s, route) != Verdict::kSame) return;
  if (!s.pipe) {
    auto pipe = Pipe::create(socket_face::kMemfdName, ring_bytes(), 0);
    if (!pipe) return stay(s);
    s.pipe = std::move(*pipe);
    if (!move_high(s.pipe)) return stay(s);
  }
  // The other end may use the pipe as soon as it has it: be ready first.
  if (!enter_pipe(fd, s, route)) return;
  SockDiag ours;
  Hello hello;
  hello.interface = route.interface;
  const int given[] = {ours.fd(), s.pipe.memfd()};
  if (ours.fd() < 0 || !send_descriptors(s.offer_fd.load(), &hello, sizeof hello, given, 2)) {
    CLAN_INFO("who took up an offer is gone; the connection stays on TCP");
  }
  withdraw_offer(s);
}

// --- the server
// --------------------------------------------------------------------------------------

void go_on_as_server(int fd, Socket& s) {
  if (s.window_fd.load() < 0) {
    Hello hello;
    int given[2] = {-1, -1};
    const int rc = receive_descriptors(s.offer_fd.load(), &hello, sizeof hello, given, 2);
    if (rc == 0) return;
    if (rc < 0) return stay(s);
    if (!hello.good() || !SockDiag::genuine(given[0])) {
      for (const int passed : given) sys::close(passed);
      return stay(s);
    }
    s.window_interface = hello.interface;
    s.window_fd.store(move_high(given[0]));
    auto pipe = open_high(given[1], 1);
    if (s.window_fd.load() < 0) return stay(s);
    if (!pipe) {
      CLAN_WARN("%s; the connection stays on TCP", pipe.error().what);
      return stay(s);
    }
    s.pipe = std::move(*pipe);
  }
  Route route;
  if (!route_of(fd, &route)) return stay(s);
  if (look_through_window(fd, s, route) == Verdict::kSame && enter_pipe(fd, s, route)) withdraw_offer(s);
}

}  // namespace

void offer_in_directory(int, Socket& s, const Route& route) {
  sweep();
  const std::uint64_t name = name_of(route.local, route.remote);
  sockaddr_un path{};
  const socklen_t size = path_of(name, &path);
  int listener = unix_socket(SOCK_SEQPACKET);
  if (listener < 0) return stay(s);
  listener = move_high(listener);
  if (listener < 0) return stay(s);
  long rc = sys::call(SYS_bind, listener, &path, size);
  if (rc != 0 && errno == EADDRINUSE && is_left_over(path, size)) {
    unlink_offer(name);
    rc = sys::call(SYS_bind, listener, &path, size);
  }
  // Who may connect is judged by his credentials, not by our umask.
  const int mode = config().uid_count > 0 ? 0666 : 0600;
  if (rc == 0 &&
      (::chmod(path.sun_path, static_cast<mode_t>(mode)) != 0 || sys::call(SYS_listen, listener, 1) != 0)) {
    unlink_offer(name);
    rc = -1;
  }
  if (rc != 0) {
    CLAN_INFO("no offer in %s: %s; the connection stays on TCP", config().directory, std::strerror(errno));
    sys::close(listener);
    return stay(s);
  }
  s.offer_name.store(name);
  s.offer_fd.store(listener);
  s.state.store(Socket::State::kOffered);
}

void claim_in_directory(int, Socket& s, const Route& route) {
  sockaddr_un path{};
  const socklen_t size = path_of(name_of(route.remote, route.local), &path);
  const int rendezvous = unix_socket(SOCK_SEQPACKET);
  if (rendezvous < 0) return;
  uid_t uid = 0;
  if (sys::call(SYS_connect, rendezvous, &path, size) != 0) {
    // Not there yet, left over, or somebody else's. Full: taken up by somebody, who may be a
    // stranger.
    sys::close(rendezvous);
    return;
  }
  SockDiag ours;
  const int window = ours.fd();
  Hello hello;
  hello.interface = route.interface;
  if (!allowed_peer(rendezvous, &uid) || window < 0 ||
      !send_descriptors(rendezvous, &hello, sizeof hello, &window, 1)) {
    sys::close(rendezvous);
    return stay(s);
  }
  s.offer_fd.store(move_high(rendezvous));
  if (s.offer_fd.load() < 0) return stay(s);
  s.state.store(Socket::State::kOffered);
}

void go_on_in_directory(int fd, Socket& s) {
  // The other end does its part at its own calls: often at first, and now and then for long.
  const std::uint32_t call = s.offer_calls.fetch_add(1, std::memory_order_relaxed);
  if (gives_up(s, call)) return stay_because(fd, s, "the other end has not come to CLAN_DIR");
  if (!looks_at(call) && s.window_fd.load() < 0) return;
  s.client ? go_on_as_client(fd, s) : go_on_as_server(fd, s);
}

void drop_offer(Socket& s) {
  s.offer_name = 0;
  for (auto* fd : {&s.offer_fd, &s.window_fd}) {
    if (const int number = fd->exchange(-1); number >= 0) sys::close(number);
  }
}

void withdraw_offer(Socket& s) {
  if (const std::uint64_t name = s.offer_name.exchange(0); name != 0) unlink_offer(name);
  drop_offer(s);
}

}  // namespace clan::preload
