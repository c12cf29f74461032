// clan-app-load: load on servers for which Debian has no load program that would do, in plain
// socket calls. It knows nothing of CLAN; `clan run` puts it under the interposer as any other
// program.
//
//   clan-app-load memcached PORT CONNECTIONS SECONDS
//       gets a value of 100 bytes, one request at a time on each connection, in one epoll loop;
//       prints "requests/s N"
//   clan-app-load rate PORT RATE SECONDS SERVER
//       asks a redis-server on one connection at a fixed rate, sleeping in between; prints "p50 N",
//       "p99 N" (us) and "cpu N", the time of a processor that this program and the process SERVER
//       take for a request (us)
//   clan-app-load hold PORT CONNECTIONS
//       opens connections to a redis-server, uses each for some round trips, prints "ready N", and
//       sleeps until the end of its standard input
//   clan-app-load silence PORT CONNECTIONS SECONDS
//       sends a redis-server 4 MB by each of the connections, prints "ready", is silent for
//       SECONDS, and times a round trip on each; then a second one. Prints "first N", "first90 N",
//       "second N": medians and a percentile (us)
//   clan-app-load late PORT SECONDS
//       a server and its client in one: listens on PORT, and waits in epoll for the connection and
//       for a pipe, into which the client writes right after each round trip. Prints "p50 N" and
//       "p90 N": for how long such a byte lies there (us)
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace {

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "clan-app-load: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

int connect_to(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fail("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    fail("connect");
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

void send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) fail("send");
    if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

/// Reads some of the answer, of which `have` bytes have come; the new count.
std::size_t receive_some(int fd, std::string_view answer, std::size_t have) {
  char buffer[4096];
  const ssize_t got = recv(fd, buffer, std::min(sizeof buffer, answer.size() - have), 0);
  if (got < 0 && errno == EINTR) return have;
  if (got < 0) fail("recv");
  if (got == 0) {
    errno = ECONNRESET;
    fail("the server has closed a connection");
  }
  if (answer.compare(have, static_cast<std::size_t>(got), buffer, static_cast<std::size_t>(got)) !=
      0) {
    errno = EPROTO;
    fail("an answer is not what it should be");
  }
  return have + static_cast<std::size_t>(got);
}

void exchange(int fd, std::string_view request, std::string_view answer) {
  send_all(fd, request);
  for (std::size_t have = 0; have < answer.size();) have = receive_some(fd, answer, have);
}

struct Client {
  int fd = -1;
  std::size_t have = 0;  ///< of the answer under way
};

int load_memcached(int port, int count, double seconds) {
  std::string value;
  for (int i = 0; i < 100; ++i) value += static_cast<char>('a' + i % 26);
  const std::string get = "get key\r\n";
  const std::string answer = "VALUE key 0 100\r\n" + value + "\r\nEND\r\n";

  const int set = epoll_create1(EPOLL_CLOEXEC);
  if (set < 0) fail("epoll_create1");
  std::vector<Client> clients(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < clients.size(); ++i) {
    clients[i].fd = connect_to(port);
    if (i == 0) exchange(clients[0].fd, "set key 0 0 100\r\n" + value + "\r\n", "STORED\r\n");
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    if (epoll_ctl(set, EPOLL_CTL_ADD, clients[i].fd, &event) != 0) fail("epoll_ctl");
  }

  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - began).count(); };
  for (const Client& client : clients) send_all(client.fd, get);
  long requests = 0;
  epoll_event events[64];
  while (elapsed() < seconds) {
    const int ready = epoll_wait(set, events, 64, 1000);
    if (ready < 0 && errno != EINTR) fail("epoll_wait");
    for (int i = 0; i < ready; ++i) {
      Client& client = clients[events[i].data.u64];
      client.have = receive_some(client.fd, answer, client.have);
      if (client.have < answer.size()) continue;
      client.have = 0;
      ++requests;
      send_all(client.fd, get);
    }
  }
  std::printf("requests/s %.1f\n", static_cast<double>(requests) / elapsed());
  return 0;
}

double seconds_of(clockid_t clock) {
  timespec ts{};
  if (clock_gettime(clock, &ts) != 0) fail("clock_gettime");
  return static_cast<double>(ts.tv_sec) + static_cast<double>(ts.tv_nsec) / 1e9;
}

int load_at_rate(int port, double rate, double seconds, pid_t server) {
  constexpr int kRoundTrips = 2000;  // more than a connection needs to move, and to settle
  constexpr std::string_view kRequest = "PING\r\n", kAnswer = "+PONG\r\n";
  clockid_t servers = 0;
  if ((errno = clock_getcpuclockid(server, &servers)) != 0) fail("clock_getcpuclockid");
  const int fd = connect_to(port);
  for (int i = 0; i < kRoundTrips; ++i) {
    send_all(fd, kRequest);
    exchange(fd, "", kAnswer);
  }
  std::vector<double> times(static_cast<std::size_t>(std::max(rate * seconds, 1.0)));
  const double cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID) + seconds_of(servers);
  const double began = seconds_of(CLOCK_MONOTONIC);
  for (std::size_t i = 0; i < times.size(); ++i) {
    const double due = began + static_cast<double>(i) / rate;
    timespec until{};
    until.tv_sec = static_cast<time_t>(due);
    until.tv_nsec = static_cast<long>((due - static_cast<double>(until.tv_sec)) * 1e9);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
    const double start = seconds_of(CLOCK_MONOTONIC);
    send_all(fd, kRequest);
    exchange(fd, "", kAnswer);
    times[i] = (seconds_of(CLOCK_MONOTONIC) - start) * 1e6;
  }
  const double taken = seconds_of(CLOCK_PROCESS_CPUTIME_ID) + seconds_of(servers) - cpu;
  std::sort(times.begin(), times.end());
  std::printf("p50 %.2f\np99 %.2f\ncpu %.3f\n", times[times.size() / 2],
              times[times.size() * 99 / 100], taken * 1e6 / static_cast<double>(times.size()));
  return 0;
}

int hold(int port, int count) {
  constexpr int kTogether = 64;
  constexpr int kRoundTrips = 64;  // more than a connection needs to move
  for (int opened = 0; opened < count;) {
    std::vector<int> batch(static_cast<std::size_t>(std::min(kTogether, count - opened)));
    for (int& fd : batch) fd = connect_to(port);
    for (int i = 0; i < kRoundTrips; ++i) {
      for (const int fd : batch) send_all(fd, "PING\r\n");
      for (const int fd : batch) exchange(fd, "", "+PONG\r\n");
    }
    opened += static_cast<int>(batch.size());
  }
  std::printf("ready %d\n", count);
  std::fflush(stdout);
  char end = 0;
  while (read(STDIN_FILENO, &end, 1) > 0) {
  }
  return 0;
}

/// Round trips, one on each connection, each after a pause in which both ends have gone to sleep;
/// in us, sorted.
std::vector<double> time_each(const std::vector<int>& fds) {
  std::vector<double> times;
  for (const int fd : fds) {
    usleep(3000);
    const double start = seconds_of(CLOCK_MONOTONIC);
    exchange(fd, "PING\r\n", "+PONG\r\n");
    times.push_back((seconds_of(CLOCK_MONOTONIC) - start) * 1e6);
  }
  std::sort(times.begin(), times.end());
  return times;
}

int measure_silence(int port, int count, double seconds) {
  constexpr int kRoundTrips = 64;  // more than a connection needs to move
  const std::string value(4 << 20, 'v');
  const std::string set =
      "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$" + std::to_string(value.size()) + "\r\n" + value + "\r\n";
  std::vector<int> fds(static_cast<std::size_t>(count));
  for (int& fd : fds) {
    fd = connect_to(port);
    for (int i = 0; i < kRoundTrips; ++i) exchange(fd, "PING\r\n", "+PONG\r\n");
    exchange(fd, set, "+OK\r\n");
  }
  std::printf("ready %d\n", count);
  std::fflush(stdout);
  // In poll(), as a program waits that expects input meanwhile.
  std::vector<pollfd> asked;
  for (const int fd : fds) asked.push_back({fd, POLLIN, 0});
  if (poll(asked.data(), asked.size(), static_cast<int>(seconds * 1000)) != 0)
    fail("something came in the silence");
  const std::vector<double> first = time_each(fds), second = time_each(fds);
  std::printf("first %.2f\nfirst90 %.2f\nsecond %.2f\n", first[first.size() / 2],
              first[first.size() * 9 / 10], second[second.size() / 2]);
  return 0;
}

void run_on(int which) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) fail("sched_getaffinity");
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed) && which-- == 0) CPU_SET(cpu, &one);
  }
  if (CPU_COUNT(&one) > 0 && sched_setaffinity(0, sizeof one, &one) != 0) fail("sched_setaffinity");
}

/// The client of measure_late(), until its peer closes: a round trip, a moment, and the time into
/// the pipe; the answer to that comes by the connection.
int write_beside(int port, int pipe) {
  constexpr double kMoment = 1e-6;
  run_on(1);
  const int fd = connect_to(port);
  char byte = 0;
  for (;;) {
    send_all(fd, "x");
    if (recv(fd, &byte, 1, 0) <= 0) return 0;
    double now = seconds_of(CLOCK_MONOTONIC);
    for (const double until = now + kMoment; now < until;) now = seconds_of(CLOCK_MONOTONIC);
    if (write(pipe, &now, sizeof now) != sizeof now) return 0;
    if (recv(fd, &byte, 1, 0) <= 0) return 0;
  }
}

int measure_late(int port, double seconds) {
  constexpr int kBefore = 1000;  // more than a connection needs to move, and to settle
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int pipe[2];
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener, 1) != 0 || ::pipe(pipe) != 0)
    fail("its listener or its pipe");
  const pid_t client = fork();
  if (client == 0) _exit(write_beside(port, pipe[1]));
  close(pipe[1]);
  run_on(0);
  const int fd = accept(listener, nullptr, nullptr);
  const int on = 1;
  if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) fail("accept");
  const int set = epoll_create1(EPOLL_CLOEXEC);
  for (const int one : {fd, pipe[0]}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = one;
    if (epoll_ctl(set, EPOLL_CTL_ADD, one, &event) != 0) fail("epoll_ctl");
  }
  std::vector<double> times;
  int before = kBefore;
  for (const double end = seconds_of(CLOCK_MONOTONIC) + seconds;
       seconds_of(CLOCK_MONOTONIC) < end;) {
    epoll_event events[2];
    const int ready = epoll_wait(set, events, 2, 1000);
    for (int i = 0; i < ready; ++i) {
      char byte = 0;
      double written = 0;
      if (events[i].data.fd == fd) {
        if (recv(fd, &byte, 1, 0) <= 0) fail("its client");
      } else {
        if (read(pipe[0], &written, sizeof written) != sizeof written) fail("its pipe");
        if (before-- <= 0) times.push_back((seconds_of(CLOCK_MONOTONIC) - written) * 1e6);
      }
      send_all(fd, "y");
    }
  }
  close(fd);
  waitpid(client, nullptr, 0);
  if (times.empty()) fail("nothing was reported in time");
  std::sort(times.begin(), times.end());
  std::printf("p50 %.2f\np90 %.2f\n", times[times.size() / 2], times[times.size() * 9 / 10]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "memcached" && argc == 5) {
    return load_memcached(std::atoi(argv[2]), std::atoi(argv[3]), std::atof(argv[4]));
  }
  if (what == "rate" && argc == 6) {
    return load_at_rate(std::atoi(argv[2]), std::atof(argv[3]), std::atof(argv[4]),
                        std::atoi(argv[5]));
  }
  if (what == "hold" && argc == 4) return hold(std::atoi(argv[2]), std::atoi(argv[3]));
  if (what == "silence" && argc == 5 && std::atoi(argv[3]) > 0) {
    return measure_silence(std::atoi(argv[2]), std::atoi(argv[3]), std::atof(argv[4]));
  }
  if (what == "late" && argc == 4) return measure_late(std::atoi(argv[2]), std::atof(argv[3]));
  std::fprintf(
      stderr,
      "usage: clan-app-load memcached PORT CONNECTIONS SECONDS | rate PORT RATE SECONDS SERVER | "
      "hold PORT CONNECTIONS | silence PORT CONNECTIONS SECONDS | late PORT SECONDS\n");
  return 2;
}
