// What `clan bench ip` has go over a way: round trips of UDP, and a stream of TCP as ttcp makes it.
//
//     clan-ip-load serve ADDRESS PORT               both, until it is killed
//     clan-ip-load trips ADDRESS PORT SECONDS       prints min, p50, p99 in us
//     clan-ip-load ttcp ADDRESS PORT SECONDS BYTES  by writes of that size; prints bytes a second
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

sockaddr_in address_of(const char* address, const char* port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<std::uint16_t>(std::atoi(port)));
  ::inet_pton(AF_INET, address, &at.sin_addr);
  return at;
}
const sockaddr* plain(const sockaddr_in& at) { return reinterpret_cast<const sockaddr*>(&at); }

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void echo(int socket) {
  char bytes[2048];
  for (;;) {
    sockaddr_in from{};
    socklen_t size = sizeof from;
    const ssize_t n =
        ::recvfrom(socket, bytes, sizeof bytes, 0, reinterpret_cast<sockaddr*>(&from), &size);
    if (n >= 0) ::sendto(socket, bytes, static_cast<std::size_t>(n), 0, plain(from), size);
  }
}

// The number of bytes that came goes back when the stream has ended.
void sink(int connection) {
  std::vector<char> bytes(1 << 18);
  std::uint64_t total = 0;
  for (ssize_t n; (n = ::read(connection, bytes.data(), bytes.size())) > 0;)
    total += static_cast<std::uint64_t>(n);
  (void)!::write(connection, &total, sizeof total);
  ::close(connection);
}

int serve(const sockaddr_in& at) {
  const int udp = ::socket(AF_INET, SOCK_DGRAM, 0), tcp = ::socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  ::setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(udp, plain(at), sizeof at) != 0 || ::bind(tcp, plain(at), sizeof at) != 0 ||
      ::listen(tcp, 16) != 0) {
    std::perror("bind");
    return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  std::thread(echo, udp).detach();
  for (;;) sink(::accept(tcp, nullptr, nullptr));
}

int trips(const sockaddr_in& at, double seconds) {
  const int udp = ::socket(AF_INET, SOCK_DGRAM, 0);
  if (::connect(udp, plain(at), sizeof at) != 0) return 1;
  const timeval limit{1, 0};
  ::setsockopt(udp, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  std::vector<double> us;
  char bytes[64] = {};
  for (const auto start = Clock::now(); seconds_since(start) < seconds;) {
    const auto sent = Clock::now();
    if (::send(udp, bytes, sizeof bytes, 0) < 0 || ::recv(udp, bytes, sizeof bytes, 0) < 0)
      continue;
    us.push_back(seconds_since(sent) * 1e6);
  }
  if (us.empty()) return 1;
  std::sort(us.begin(), us.end());
  std::printf("%.1f %.1f %.1f\n", us[0], us[us.size() / 2], us[us.size() * 99 / 100]);
  return 0;
}

int ttcp(const sockaddr_in& at, double seconds, std::size_t size) {
  const int tcp = ::socket(AF_INET, SOCK_STREAM, 0);
  if (::connect(tcp, plain(at), sizeof at) != 0) return 1;
  const std::vector<char> bytes(size);
  const auto start = Clock::now();
  std::uint64_t sent = 0;
  while (seconds_since(start) < seconds) {
    const ssize_t n = ::send(tcp, bytes.data(), size, MSG_NOSIGNAL);
    if (n < 0) return 1;
    sent += static_cast<std::uint64_t>(n);
  }
  ::shutdown(tcp, SHUT_WR);
  std::uint64_t total = 0;
  if (::recv(tcp, &total, sizeof total, MSG_WAITALL) != sizeof total || total != sent) return 1;
  std::printf("%.0f\n", static_cast<double>(total) / seconds_since(start));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::string mode = argv[1];
  const sockaddr_in at = address_of(argv[2], argv[3]);
  if (mode == "serve") return serve(at);
  if (mode == "trips" && argc == 5) return trips(at, std::atof(argv[4]));
  if (mode == "ttcp" && argc == 6)
    return ttcp(at, std::atof(argv[4]), static_cast<std::size_t>(std::atol(argv[5])));
  return 2;
}
