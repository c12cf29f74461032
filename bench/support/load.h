// What load programs share. Header only: they link nothing else of clan-bench, and socket calls are
// plain, so that `clan run` can interpose them.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

namespace clan::bench {

[[noreturn]] inline void give_up(const char* what, const char* why) {
  std::fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, why);
  std::exit(1);
}
/// Because of errno.
[[noreturn]] inline void fail(const char* what) { give_up(what, std::strerror(errno)); }

inline std::uint64_t now_ns(clockid_t clock = CLOCK_MONOTONIC) {
  timespec t{};
  if (clock_gettime(clock, &t) != 0) fail("clock_gettime");
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(t.tv_nsec);
}
inline double now_us() { return static_cast<double>(now_ns()) / 1e3; }
inline double seconds_since(std::uint64_t began_ns) {
  return static_cast<double>(now_ns() - began_ns) / 1e9;
}
inline void sleep_for(double seconds) { usleep(static_cast<useconds_t>(seconds * 1e6)); }

/// Below 0: anywhere.
inline void pin(int core) {
  if (core < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(core), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail("sched_setaffinity");
}

/// The cores that this process may use.
inline std::vector<int> allowed_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) fail("sched_getaffinity");
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

/// 0: in the child, which ends with its parent.
inline pid_t start_child() {
  const pid_t parent = getpid(), child = fork();
  if (child < 0) fail("fork");
  if (child == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)) _exit(1);
  return child;
}

inline sockaddr_in address_of(const char* host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (inet_pton(AF_INET, host, &address.sin_addr) != 1) give_up(host, "no address");
  return address;
}
inline const sockaddr* plain(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

inline int no_delay(int fd) {
  const int on = 1;
  if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) fail("TCP_NODELAY");
  return fd;
}
inline int connect_to(const sockaddr_in& address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, plain(address), sizeof address) != 0) fail("connect");
  return no_delay(fd);
}
inline int listen_at(const sockaddr_in& address, int backlog) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(fd, plain(address), sizeof address) != 0 || listen(fd, backlog) != 0)
    fail("listen");
  return fd;
}

inline void send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) fail("send");
    if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

/// Prints that the program is ready, and sleeps until its input ends.
inline void stay_ready() {
  std::puts("ready");
  std::fflush(stdout);
  for (char byte = 0; read(STDIN_FILENO, &byte, 1) > 0;) continue;
}

/// The percentile of sorted values.
template <typename T>
T part(const std::vector<T>& sorted, std::size_t percent) {
  return sorted[sorted.size() * percent / 100];
}

}  // namespace clan::bench
