// Fuzzes how the interposer moves a TCP connection, with a peer that means no good: offers and
// claims of its own, messages of any bytes with descriptors of any kind, pipes that say anything,
// and once the connection has moved words of the page, bytes by TCP past the doorbells, and an end
// at any time. The victim's calls come back at once; no descriptor is left open.
//
// Input: a byte for the victim's role, then steps. The connection is a real one, and the kernel
// answers as always.
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "clan/detail/clock.h"
#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "demote/demote_on_request.h"
#include "input.h"
#include "migrate/directory_names.h"
#include "migrate/offer.h"
#include "os/config.h"
#include "os/fd_message.h"
#include "state/withdraw.h"
#include "stream/close.h"
#include "stream/readiness.h"
#include "stream/receive.h"
#include "stream/send.h"
#include "table/fd_table.h"
#include "table/unseen_sets.h"

namespace {

using namespace clan::preload;
using clan::Pipe;
using clan::PipePage;
using clan::fuzz::Input;

/// of one call of the victim, on a machine at work
constexpr std::uint64_t kLongNs = 1'000'000'000;

void expect(bool holds) {
  if (!holds) std::abort();
}

int open_descriptors() {
  DIR* const directory = ::opendir("/proc/self/fd");
  int count = 0;
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

/// What a peer may pass, whatever it should be. Opened once.
struct Passed {
  std::vector<int> fds;
  Passed() {
    fds.push_back(::eventfd(0, EFD_CLOEXEC));
    fds.push_back(static_cast<int>(::memfd_create("fuzz", MFD_CLOEXEC)));
    fds.push_back(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 4 /* NETLINK_SOCK_DIAG */));
    fds.push_back(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0 /* NETLINK_ROUTE */));
    fds.push_back(::epoll_create1(EPOLL_CLOEXEC));
    clan::preload::saw_set(fds.back());  // else nothing moves
    fds.push_back(::open("/dev/null", O_RDWR | O_CLOEXEC));
    fds.push_back(::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    fds.push_back(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    // A pipe's size and seals, and zeros.
    fds.push_back(static_cast<int>(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
    expect(::ftruncate(fds.back(), 3 * 4096) == 0);
    expect(::fcntl(fds.back(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    for (const int fd : fds) expect(fd >= 0);
  }
};

struct Ends {
  int victim = -1, peer = -1;
  sockaddr_in client{}, server{};
};

/// A connection that is reset when it is closed: nothing of it stays in the kernel.
Ends connect_ends(bool victim_is_client) {
  static const int listener = [] {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    expect(::bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0);
    expect(::listen(fd, 8) == 0);
    return fd;
  }();
  Ends ends;
  socklen_t size = sizeof ends.server;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&ends.server), &size);
  const int from = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  (void)::connect(from, reinterpret_cast<const sockaddr*>(&ends.server), sizeof ends.server);
  const int to = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  expect(from >= 0 && to >= 0);
  ::getsockname(from, reinterpret_cast<sockaddr*>(&ends.client), &size);
  const linger at_once{1, 0};
  for (const int fd : {from, to}) ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  ends.victim = victim_is_client ? from : to;
  ends.peer = victim_is_client ? to : from;
  return ends;
}

in6_addr mapped(const sockaddr_in& address) {
  in6_addr out{};
  out.s6_addr[10] = out.s6_addr[11] = 0xff;
  std::memcpy(out.s6_addr + 12, &address.sin_addr, 4);
  return out;
}

/// The name of the connection's offer, as migrate/offer.cc makes it.
socklen_t abstract_name(const Ends& ends, sockaddr_un* name) {
  char from[INET6_ADDRSTRLEN], to[INET6_ADDRSTRLEN];
  const in6_addr client = mapped(ends.client), server = mapped(ends.server);
  ::inet_ntop(AF_INET6, &client, from, sizeof from);
  ::inet_ntop(AF_INET6, &server, to, sizeof to);
  name->sun_family = AF_UNIX;
  const int n = std::snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "clan1/%s/%u/%s/%u",
                              from, ntohs(ends.client.sin_port), to, ntohs(ends.server.sin_port));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(n));
}

class Session {
 public:
  Session(Input& in, const Passed& passed, bool client, bool directory)
      : in_(in),
        passed_(passed),
        client_(client),
        directory_(directory),
        ends_(connect_ends(client)) {
    adopt(ends_.victim, client, 1);
    name_size_ = directory ? path_of(name_of({mapped(ends_.client), ntohs(ends_.client.sin_port)},
                                             {mapped(ends_.server), ntohs(ends_.server.sin_port)}),
                                     &name_)
                           : abstract_name(ends_, &name_);
  }
  ~Session() {
    timed([&] {
      forget(ends_.victim);
      ::close(ends_.victim);
    });
    for (const int fd : {ends_.peer, rendezvous_, listener_}) {
      if (fd >= 0) ::close(fd);
    }
    if (directory_) ::unlink(name_.sun_path);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void run() {
    while (!in_.empty()) {
      const SocketRef s = acquire(ends_.victim);
      if (!s) return;
      if (s->shared()) {
        moved_step(*s);
      } else {
        step(*s);
      }
    }
  }

 private:
  template <typename Call>
  void timed(Call&& call) {
    const std::uint64_t begin = clan::monotonic_ns();
    call();
    expect(clan::monotonic_ns() - begin < kLongNs);
  }

  void step(Socket& s) {
    switch (in_.byte() % 6) {
      case 0:
      case 1: timed([&] { victims_turn(s); }); break;
      case 2: meet(); break;
      case 3: say(); break;
      case 4:
        if (rendezvous_ >= 0) ::close(std::exchange(rendezvous_, -1));
        break;
      default: tcp();
    }
  }

  void victims_turn(Socket& s) {
    if (s.state.load() == Socket::State::kKernel) return;
    const bool offered = s.state.load() == Socket::State::kOffered;
    const int fd = ends_.victim;
    Route route;
    if (directory_) {
      if (!route_of(fd, &route)) return;
      if (offered) return go_on_in_directory(fd, s);
      client_ ? offer_in_directory(fd, s, route) : claim_in_directory(fd, s, route);
    } else if (client_) {
      offered ? look_for_taker(fd, s) : offer(fd, s);
    } else {
      look_for_offer(fd, s);
    }
  }

  /// The peer's part of the rendezvous: it comes, or it waits for the victim.
  void meet() {
    if (rendezvous_ >= 0) return;
    if (client_) {
      rendezvous_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      (void)::connect(rendezvous_, reinterpret_cast<const sockaddr*>(&name_), name_size_);
      return;
    }
    if (listener_ < 0) {
      listener_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      if (::bind(listener_, reinterpret_cast<const sockaddr*>(&name_), name_size_) == 0)
        (void)::listen(listener_, 1);
    }
    rendezvous_ = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  }

  /// A message: mostly what is expected, with something about it changed.
  void say() {
    struct {
      char bytes[32] = "clan1";
    } message;
    std::size_t size = 8;
    if (directory_) {
      std::memcpy(message.bytes, "clandir1", 9);
      size = 16;
    }
    const std::uint8_t how = in_.byte();
    if (how % 8 == 1) size = in_.byte() % sizeof message;
    if (how % 8 == 2) message.bytes[in_.byte() % 16] = static_cast<char>(in_.byte());
    int fds[6] = {};
    int count = directory_ ? (client_ ? 1 : 2) : 1;
    if (how % 8 == 3) count = in_.byte() % 5;
    Pipe made;
    for (int i = 0; i < count; ++i) {
      const std::uint8_t kind = in_.byte();
      // What belongs there: a window first, in a directory; then a pipe.
      const bool window = directory_ && i == 0;
      if (kind % 4 != 0) {
        fds[i] = window ? passed_.fds[2] : make_pipe(made);
      } else {
        fds[i] = passed_.fds[kind / 4 % passed_.fds.size()];
      }
    }
    if (rendezvous_ >= 0) (void)send_descriptors(rendezvous_, message.bytes, size, fds, count);
  }

  int make_pipe(Pipe& made) {
    if (!made) {
      made = Pipe::create("fuzz", in_.byte() % 2 == 0 ? 4096 : 65536, client_ ? 1 : 0).value();
      for (int n = in_.byte() % 4; n > 0; --n) scribble(made.page());
    }
    return made.memfd();
  }

  /// Bytes by TCP, which mean nothing to a victim that has moved, or everything; or the end.
  void tcp() {
    const std::uint8_t how = in_.byte();
    char bytes[256] = {};
    if (how % 16 == 15) ::shutdown(ends_.peer, SHUT_WR);
    if (how % 16 == 14) {
      ::close(std::exchange(ends_.peer, -1));
    } else if (how % 2 == 0) {
      (void)!::send(ends_.peer, bytes, how, MSG_DONTWAIT | MSG_NOSIGNAL);
    } else {
      (void)!::recv(ends_.peer, bytes, how, MSG_DONTWAIT);
    }
  }

  void moved_step(Socket& s) {
    const int fd = ends_.victim;
    switch (in_.byte() % 10) {
      case 0: timed([&] { move(s, true); }); break;
      case 1: timed([&] { move(s, false); }); break;
      case 2: timed([&] { (void)readiness(fd, s, true); }); break;
      case 3: timed([&] { (void)prepare_sleep(s, POLLIN | POLLOUT); }); break;
      case 4: timed([&] { expect(bytes_to_read(fd, s) >= 0); }); break;
      case 5:
        timed([&] {
          if (is_to_go(s)) (void)answer_leaving(fd, s);
          if (came_back(fd, s)) return;
        });
        break;
      case 6: tcp(); break;
      case 7:
        if (in_.byte() % 4 == 0) timed([&] { (void)shared_shutdown(fd, s, SHUT_WR); });
        break;
      default: scribble(s.pipe.page());
    }
  }

  void move(Socket& s, bool sends) {
    std::vector<char> memory(in_.byte() % 2 == 0 ? in_.byte() : in_.take<std::uint16_t>());
    const iovec io{memory.data(), memory.size()};
    const int flags = MSG_DONTWAIT | MSG_NOSIGNAL | (in_.byte() % 4 == 3 ? MSG_PEEK : 0);
    const ssize_t n = sends ? shared_send(ends_.victim, s, &io, 1, flags & ~MSG_PEEK)
                            : shared_receive(ends_.victim, s, &io, 1, flags);
    expect(n <= static_cast<ssize_t>(memory.size()));
  }

  /// A word of the page: half of the time one of a face.
  void scribble(PipePage& page) {
    const std::uint8_t how = in_.byte();
    const int end = in_.byte() % 2;
    const std::uint64_t value = in_.number(64);
    if (how % 2 == 0) {
      const std::uint64_t words = clan::socket_face::kWords;
      auto& word = page.ends[end].face.words[how / 2 % words];
      word.store(how % 32 < 16 ? value : word.load() ^ value);
      return;
    }
    auto* const words = reinterpret_cast<std::atomic<std::uint64_t>*>(&page);
    constexpr std::size_t kFirst = offsetof(PipePage, ends) / 8;
    words[kFirst + how * std::size_t{3} % (sizeof(PipePage) / 8 - kFirst)].store(value);
  }

  Input& in_;
  const Passed& passed_;
  const bool client_, directory_;
  Ends ends_;
  sockaddr_un name_{};
  socklen_t name_size_ = 0;
  int rendezvous_ = -1, listener_ = -1;  ///< the peer's
};

/// A directory of its own, which goes with the process.
std::string& directory() {
  static std::string& path = *new std::string("/tmp/clan-fuzz-XXXXXX");
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  if (::mkdtemp(directory().data()) == nullptr) std::abort();
  ::setenv("CLAN_DIR", directory().c_str(), 1);
  ::atexit([] { ::rmdir(directory().c_str()); });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Passed& passed = *new Passed;
  static int open = 0;
  Input in(data, size);
  const std::uint8_t role = in.byte();
  Session(in, passed, role % 2 == 0, role % 4 >= 2).run();
  // What the library keeps for itself is there after the first connections.
  static int warm = 0;
  const int now = open_descriptors();
  if (++warm < 64) open = std::max(open, now);
  expect(now <= open);
  return 0;
}
