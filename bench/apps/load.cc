// clan-app-load: loads for which Debian has no program that would do, in plain socket calls. Times
// are in us.
//
//   memcached PORT CONNECTIONS SECONDS       gets 100 bytes, one request at a time on each
//                                            connection; prints "requests/s N"
//   rate PORT RATE SECONDS SERVER            asks redis at a fixed rate, asleep in between; prints
//                                            p50, p99 and "cpu N": processor time of both processes
//                                            for a request
//   hold PORT CONNECTIONS                    uses connections to redis, prints "ready", and sleeps
//                                            until its input ends
//   silence PORT CONNECTIONS SECONDS         sends redis 4 MB by each, prints "ready", is silent,
//                                            and times two round trips on each: first, first90
//                                            (nine of ten), second
//   late PORT SECONDS                        a server and its client, which writes into a pipe
//                                            behind each round trip; prints p50 and p90 of how long
//                                            the byte lies there while the server is in epoll
#include "support/load.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include <string>

namespace {

using namespace clan::bench;

int connect_to_port(int port) { return connect_to(address_of("127.0.0.1", port)); }

void watch(int set, int fd, std::uint64_t data) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = data;
  if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
}

/// Reads some of the answer, of which `have` bytes have come; the new count.
std::size_t receive_some(int fd, std::string_view answer, std::size_t have) {
  char buffer[4096];
  const ssize_t got = recv(fd, buffer, std::min(sizeof buffer, answer.size() - have), 0);
  if (got < 0 && errno == EINTR) return have;
  if (got < 0) fail("recv");
  if (got == 0) give_up("recv", "the server has closed a connection");
  const auto bytes = static_cast<std::size_t>(got);
  if (answer.compare(have, bytes, buffer, bytes) != 0)
    give_up("recv", "an answer is not what it should be");
  return have + bytes;
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
    clients[i].fd = connect_to_port(port);
    if (i == 0) exchange(clients[0].fd, "set key 0 0 100\r\n" + value + "\r\n", "STORED\r\n");
    watch(set, clients[i].fd, i);
  }

  const std::uint64_t began = now_ns();
  for (const Client& client : clients) send_all(client.fd, get);
  long requests = 0;
  epoll_event events[64];
  while (seconds_since(began) < seconds) {
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
  std::printf("requests/s %.1f\n", static_cast<double>(requests) / seconds_since(began));
  return 0;
}

int load_at_rate(int port, double rate, double seconds, pid_t server) {
  constexpr int kRoundTrips = 2000;  // more than a connection needs to move, and to settle
  constexpr std::string_view kRequest = "PING\r\n", kAnswer = "+PONG\r\n";
  clockid_t servers = 0;
  if ((errno = clock_getcpuclockid(server, &servers)) != 0) fail("clock_getcpuclockid");
  const auto cpu_ns = [&] { return now_ns(CLOCK_PROCESS_CPUTIME_ID) + now_ns(servers); };
  const int fd = connect_to_port(port);
  for (int i = 0; i < kRoundTrips; ++i) {
    send_all(fd, kRequest);
    exchange(fd, "", kAnswer);
  }
  std::vector<double> times(static_cast<std::size_t>(std::max(rate * seconds, 1.0)));
  const std::uint64_t cpu = cpu_ns(), began = now_ns();
  for (std::size_t i = 0; i < times.size(); ++i) {
    const auto due = began + static_cast<std::uint64_t>(static_cast<double>(i) / rate * 1e9);
    const timespec until{static_cast<time_t>(due / 1'000'000'000),
                         static_cast<long>(due % 1'000'000'000)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
    const double start = now_us();
    send_all(fd, kRequest);
    exchange(fd, "", kAnswer);
    times[i] = now_us() - start;
  }
  const double taken_us = static_cast<double>(cpu_ns() - cpu) / 1e3;
  std::sort(times.begin(), times.end());
  std::printf("p50 %.2f\np99 %.2f\ncpu %.3f\n", part(times, 50), part(times, 99),
              taken_us / static_cast<double>(times.size()));
  return 0;
}

int hold(int port, int count) {
  constexpr int kTogether = 64;
  constexpr int kRoundTrips = 64;  // more than a connection needs to move
  for (int opened = 0; opened < count;) {
    std::vector<int> batch(static_cast<std::size_t>(std::min(kTogether, count - opened)));
    for (int& fd : batch) fd = connect_to_port(port);
    for (int i = 0; i < kRoundTrips; ++i) {
      for (const int fd : batch) send_all(fd, "PING\r\n");
      for (const int fd : batch) exchange(fd, "", "+PONG\r\n");
    }
    opened += static_cast<int>(batch.size());
  }
  stay_ready();
  return 0;
}

/// Round trips, one on each connection, each after a pause in which both ends have gone to sleep;
/// in us, sorted.
std::vector<double> time_each(const std::vector<int>& fds) {
  std::vector<double> times;
  for (const int fd : fds) {
    usleep(3000);
    const double start = now_us();
    exchange(fd, "PING\r\n", "+PONG\r\n");
    times.push_back(now_us() - start);
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
    fd = connect_to_port(port);
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
  std::printf("first %.2f\nfirst90 %.2f\nsecond %.2f\n", part(first, 50), part(first, 90),
              part(second, 50));
  return 0;
}

void run_on(std::size_t which) {
  const std::vector<int> cores = allowed_cores();
  if (which < cores.size()) pin(cores[which]);
}

/// The client of measure_late(), until its peer closes: a round trip, a moment, and the time into
/// the pipe; the answer to that comes by the connection.
int write_beside(int port, int pipe) {
  constexpr double kMomentUs = 1;
  run_on(1);
  const int fd = connect_to_port(port);
  char byte = 0;
  for (;;) {
    send_all(fd, "x");
    if (recv(fd, &byte, 1, 0) <= 0) return 0;
    double now = now_us();
    for (const double until = now + kMomentUs; now < until;) now = now_us();
    if (write(pipe, &now, sizeof now) != sizeof now) return 0;
    if (recv(fd, &byte, 1, 0) <= 0) return 0;
  }
}

int measure_late(int port, double seconds) {
  constexpr int kBefore = 1000;  // more than a connection needs to move, and to settle
  const int listener = listen_at(address_of("127.0.0.1", port), 1);
  int pipe[2];
  if (::pipe(pipe) != 0) fail("its pipe");
  const pid_t client = fork();
  if (client == 0) _exit(write_beside(port, pipe[1]));
  close(pipe[1]);
  run_on(0);
  const int fd = no_delay(accept(listener, nullptr, nullptr));
  const int set = epoll_create1(EPOLL_CLOEXEC);
  for (const int one : {fd, pipe[0]}) watch(set, one, static_cast<std::uint64_t>(one));
  std::vector<double> times;
  int before = kBefore;
  for (const double end = now_us() + seconds * 1e6; now_us() < end;) {
    epoll_event events[2];
    const int ready = epoll_wait(set, events, 2, 1000);
    for (int i = 0; i < ready; ++i) {
      char byte = 0;
      double written = 0;
      if (events[i].data.fd == fd) {
        if (recv(fd, &byte, 1, 0) <= 0) fail("its client");
      } else {
        if (read(pipe[0], &written, sizeof written) != sizeof written) fail("its pipe");
        if (before-- <= 0) times.push_back(now_us() - written);
      }
      send_all(fd, "y");
    }
  }
  close(fd);
  waitpid(client, nullptr, 0);
  if (times.empty()) fail("nothing was reported in time");
  std::sort(times.begin(), times.end());
  std::printf("p50 %.2f\np90 %.2f\n", part(times, 50), part(times, 90));
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
