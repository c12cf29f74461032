// clan-gateway-load: a server and its client, in plain socket calls, one thread and one epoll set
// each. They know nothing of CLAN; `clan run` puts the server under the interposer. Rates and times
// in us are printed as "rate N", "p50 N", "p99 N".
//
//   serve PORT|clan:NAME      the first byte of a connection says what comes back: e, each byte;
//                             s, one byte at the end; o, bytes until the other end closes
//   ask HOST PORT CONNECTIONS BYTES SECONDS   one request at a time on each connection
//   send|receive HOST PORT SECONDS            bulk on one connection, MB/s
//   renew HOST PORT CLIENTS SECONDS           a connection for each request of 100 bytes
//   hold HOST PORT CONNECTIONS                uses each once, prints "ready", and sleeps until its
//                                             input ends
#include "support/load.h"

#include <clan/af_clan.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <array>
#include <map>
#include <string>

namespace {

using namespace clan::bench;

constexpr std::size_t kBulk = 128 * 1024;

std::vector<char>& bulk() {
  static std::vector<char> bytes(kBulk, 'x');
  return bytes;
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

int listen_where(const std::string& where) {
  if (!where.starts_with("clan:")) return listen_at(address_of("0.0.0.0", std::stoi(where)), 4096);
  const int fd = socket(AF_CLAN, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_clan address{};
  const socklen_t size = clan_address(&address, where.c_str() + 5);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0 || listen(fd, 4096) != 0)
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
  const int set = epoll_create1(EPOLL_CLOEXEC), listener = listen_where(where);
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
  std::uint64_t began = 0;
};

void print_times(std::vector<double>& us, double seconds) {
  std::sort(us.begin(), us.end());
  std::printf("rate %.0f\np50 %.1f\np99 %.1f\n", static_cast<double>(us.size()) / seconds,
              part(us, 50), part(us, 99));
}

/// Takes answers of `size` bytes for so long, calls `next(fd)` behind each, and prints how long
/// they took.
template <typename Next>
int collect(int set, std::map<int, Asked>& asked, std::size_t size, double seconds, Next&& next) {
  std::vector<double> us;
  const std::uint64_t begin = now_ns();
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
    asked[fd] = {0, now_ns()};
    send_all(fd, request);
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
  send_all(fd, sends ? "s" : "o");
  double bytes = 0;
  const std::uint64_t begin = now_ns();
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
    const std::uint64_t began = now_ns();
    const int fd = connect_to(to);
    watch(set, fd, EPOLLIN, EPOLL_CTL_ADD);
    asked[fd] = {0, began};
    send_all(fd, request);
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
    char byte = 0;
    send_all(fd, "e");
    if (recv(fd, &byte, 1, 0) != 1) fail("recv");
  }
  stay_ready();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::size_t count = words.size();
  if (count == 2 && words[0] == "serve") return serve(words[1]);
  const sockaddr_in to = count > 3 ? address_of(argv[2], std::atoi(argv[3])) : sockaddr_in{};
  if (count == 6 && words[0] == "ask")
    return ask(to, std::atoi(argv[4]), std::strtoul(argv[5], nullptr, 10), std::atof(argv[6]));
  if (count == 4 && words[0] == "send") return move_bulk(to, true, std::atof(argv[4]));
  if (count == 4 && words[0] == "receive") return move_bulk(to, false, std::atof(argv[4]));
  if (count == 5 && words[0] == "renew") return renew(to, std::atoi(argv[4]), std::atof(argv[5]));
  if (count == 4 && words[0] == "hold") return hold(to, std::atoi(argv[4]));
  std::fprintf(stderr, "clan-gateway-load serve|ask|send|receive|renew|hold ...\n");
  return 2;
}
