// clan-gateway-load: a server and its client, in plain socket calls, one thread and one epoll set
// each. They know nothing of CLAN; `clan run` puts the server under the interposer.
//
//   clan-gateway-load serve PORT|clan:NAME
//       the first byte of a connection says what the server does with it:
//         e  each byte comes back (the first one, too)
//         s  bytes are counted, at the end of them it answers with a byte
//         o  it sends bytes until the other end closes
//   clan-gateway-load ask HOST PORT CONNECTIONS BYTES SECONDS
//       requests and answers of so many bytes, one at a time on each connection; prints "rate N"
//       and, in us, "p50 N" and "p99 N"
//   clan-gateway-load send|receive HOST PORT SECONDS
//       bulk on one connection; prints "rate N" (MB/s)
//   clan-gateway-load renew HOST PORT CLIENTS SECONDS
//       a connection for each request of 100 bytes, so many at a time; prints "rate N"
//   clan-gateway-load hold HOST PORT CONNECTIONS
//       opens connections, uses each once, prints "ready", and sleeps until its input ends
#include <arpa/inet.h>
#include <clan/af_clan.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kBulk = 128 * 1024;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "clan-gateway-load: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::vector<char>& bulk() {
  static std::vector<char> bytes(kBulk, 'x');
  return bytes;
}

sockaddr_in address_of(const char* host, const char* port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(port)));
  if (inet_pton(AF_INET, host, &address.sin_addr) != 1) fail("host");
  return address;
}

int connect_to(const sockaddr_in& address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fail("socket");
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    fail("connect");
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

void send_all(int fd, const char* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t n = send(fd, bytes, size, MSG_NOSIGNAL);
    if (n < 0) fail("send");
    bytes += n;
    size -= static_cast<std::size_t>(n);
  }
}

void watch(int set, int fd, std::uint32_t events, int change) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(set, change, fd, &event) != 0) fail("epoll_ctl");
}

// --- the server ---

struct Served {
  char kind = 0;
  std::string back;  // that there was no room for
};

int listen_at(const std::string& where) {
  const bool named = where.rfind("clan:", 0) == 0;
  const int fd = socket(named ? AF_CLAN : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fail("socket");
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage raw{};
  socklen_t size = sizeof(sockaddr_in);
  if (named) {
    size = clan_address(reinterpret_cast<sockaddr_clan*>(&raw), where.c_str() + 5);
  } else {
    auto& address = reinterpret_cast<sockaddr_in&>(raw);
    address = address_of("0.0.0.0", where.c_str());
  }
  if (bind(fd, reinterpret_cast<const sockaddr*>(&raw), size) != 0 || listen(fd, 4096) != 0)
    fail("listen");
  return fd;
}

/// False: the connection is done with.
bool answer(int fd, Served& served, std::uint32_t events) {
  std::vector<char>& buffer = bulk();
  if ((events & EPOLLIN) != 0) {
    const ssize_t n = recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) {
      if (served.kind == 's') (void)send(fd, "s", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
      return false;
    }
    if (served.kind == 0) served.kind = buffer[0];
    if (served.kind == 'e') {
      ssize_t sent = 0;
      if (served.back.empty())
        sent = std::max<ssize_t>(
            send(fd, buffer.data(), static_cast<std::size_t>(n), MSG_NOSIGNAL | MSG_DONTWAIT), 0);
      served.back.append(buffer.data() + sent, static_cast<std::size_t>(n - sent));
    }
  }
  if (served.kind == 'o') {
    return send(fd, buffer.data(), buffer.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0 ||
           errno == EAGAIN;
  }
  if (!served.back.empty()) {
    const ssize_t n = send(fd, served.back.data(), served.back.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN;
    served.back.erase(0, static_cast<std::size_t>(n));
  }
  return true;
}

int serve(const std::string& where) {
  const int set = epoll_create1(EPOLL_CLOEXEC), listener = listen_at(where);
  watch(set, listener, EPOLLIN, EPOLL_CTL_ADD);
  std::map<int, Served> connections;
  std::array<epoll_event, 256> events;
  for (;;) {
    const int n = epoll_wait(set, events.data(), events.size(), -1);
    for (int i = 0; i < n; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listener) {
        const int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (client < 0) continue;
        const int on = 1;
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        watch(set, client, EPOLLIN, EPOLL_CTL_ADD);
        connections[client] = {};
        continue;
      }
      Served& served = connections[fd];
      const bool waited = !served.back.empty() || served.kind == 'o';
      if (!answer(fd, served, events[i].events)) {
        close(fd);
        connections.erase(fd);
        continue;
      }
      const bool waits = !served.back.empty() || served.kind == 'o';
      if (waits != waited) watch(set, fd, EPOLLIN | (waits ? EPOLLOUT : 0u), EPOLL_CTL_MOD);
    }
  }
}

// --- the client ---

struct Asked {
  std::size_t have = 0;
  Clock::time_point began;
};

void print_times(std::vector<double>& us, double seconds) {
  std::sort(us.begin(), us.end());
  std::printf("rate %.0f\np50 %.1f\np99 %.1f\n", static_cast<double>(us.size()) / seconds,
              us[us.size() / 2], us[us.size() * 99 / 100]);
}

/// Takes answers of `size` bytes for so long, calls `next(fd)` behind each, and prints how long
/// they took.
template <typename Next>
int collect(int set, std::map<int, Asked>& asked, std::size_t size, double seconds, Next&& next) {
  std::vector<double> us;
  const auto begin = Clock::now();
  std::array<epoll_event, 256> events;
  while (seconds_since(begin) < seconds) {
    const int n = epoll_wait(set, events.data(), events.size(), 1000);
    for (int i = 0; i < n; ++i) {
      const int fd = events[i].data.fd;
      const ssize_t got = recv(fd, bulk().data(), bulk().size(), 0);
      if (got <= 0) fail("recv");
      Asked& one = asked[fd];
      if ((one.have += static_cast<std::size_t>(got)) < size) continue;
      us.push_back(seconds_since(one.began) * 1e6);
      next(fd);
    }
  }
  if (us.empty()) fail("no answer");
  print_times(us, seconds_since(begin));
  return 0;
}

int ask(const sockaddr_in& to, int connections, std::size_t size, double seconds) {
  const std::string request(size, 'e');
  const int set = epoll_create1(EPOLL_CLOEXEC);
  std::map<int, Asked> asked;
  const auto send_one = [&](int fd) {
    asked[fd] = {0, Clock::now()};
    send_all(fd, request.data(), size);
  };
  for (int i = 0; i < connections; ++i) {
    const int fd = connect_to(to);
    watch(set, fd, EPOLLIN, EPOLL_CTL_ADD);
    send_one(fd);
  }
  return collect(set, asked, size, seconds, send_one);
}

int move_bulk(const sockaddr_in& to, bool sends, double seconds) {
  const int fd = connect_to(to);
  send_all(fd, sends ? "s" : "o", 1);
  double bytes = 0;
  const auto begin = Clock::now();
  while (seconds_since(begin) < seconds) {
    const ssize_t n =
        sends ? send(fd, bulk().data(), kBulk, MSG_NOSIGNAL) : recv(fd, bulk().data(), kBulk, 0);
    if (n <= 0) fail("bulk");
    bytes += static_cast<double>(n);
  }
  shutdown(fd, SHUT_WR);
  char byte = 0;
  if (sends && recv(fd, &byte, 1, 0) != 1) fail("the end of bulk");
  std::printf("rate %.0f\n", bytes / 1e6 / seconds_since(begin));
  return 0;
}

int renew(const sockaddr_in& to, int clients, double seconds) {
  const std::string request(100, 'e');
  const int set = epoll_create1(EPOLL_CLOEXEC);
  std::map<int, Asked> asked;
  const auto add = [&] {
    const auto began = Clock::now();
    const int fd = connect_to(to);
    watch(set, fd, EPOLLIN, EPOLL_CTL_ADD);
    asked[fd] = {0, began};
    send_all(fd, request.data(), request.size());
  };
  for (int i = 0; i < clients; ++i) add();
  return collect(set, asked, request.size(), seconds, [&](int fd) {
    const linger at_once{1, 0};  // no port waits for two minutes
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
    asked.erase(fd);
    add();
  });
}

int hold(const sockaddr_in& to, int connections) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  for (int i = 0; i < connections; ++i) {
    const int fd = connect_to(to);
    char byte = 'e';
    send_all(fd, &byte, 1);
    if (recv(fd, &byte, 1, 0) != 1) fail("recv");
  }
  std::puts("ready");
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::size_t count = words.size();
  if (count == 2 && words[0] == "serve") return serve(words[1]);
  const sockaddr_in to = count > 3 ? address_of(argv[2], argv[3]) : sockaddr_in{};
  if (count == 6 && words[0] == "ask")
    return ask(to, std::atoi(argv[4]), std::strtoul(argv[5], nullptr, 10), std::atof(argv[6]));
  if (count == 4 && words[0] == "send") return move_bulk(to, true, std::atof(argv[4]));
  if (count == 4 && words[0] == "receive") return move_bulk(to, false, std::atof(argv[4]));
  if (count == 5 && words[0] == "renew") return renew(to, std::atoi(argv[4]), std::atof(argv[5]));
  if (count == 4 && words[0] == "hold") return hold(to, std::atoi(argv[4]));
  std::fprintf(stderr, "clan-gateway-load serve|ask|send|receive|renew|hold ...\n");
  return 2;
}
