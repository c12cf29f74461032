// What `clan bench ip` has go over a way: round trips of UDP, and a stream of TCP as ttcp makes it.
//
//     clan-ip-load serve ADDRESS PORT               both, until it is killed
//     clan-ip-load trips ADDRESS PORT SECONDS       prints min, p50, p99 in us
//     clan-ip-load ttcp ADDRESS PORT SECONDS BYTES  by writes of that size; prints bytes a second
#include "support/load.h"

#include <string>
#include <thread>

namespace {

using namespace clan::bench;

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
  const int udp = ::socket(AF_INET, SOCK_DGRAM, 0), tcp = listen_at(at, 16);
  if (::bind(udp, plain(at), sizeof at) != 0) fail("bind");
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
  for (const std::uint64_t start = now_ns(); seconds_since(start) < seconds;) {
    const std::uint64_t sent = now_ns();
    if (::send(udp, bytes, sizeof bytes, 0) < 0 || ::recv(udp, bytes, sizeof bytes, 0) < 0)
      continue;
    us.push_back(seconds_since(sent) * 1e6);
  }
  if (us.empty()) return 1;
  std::sort(us.begin(), us.end());
  std::printf("%.1f %.1f %.1f\n", us[0], part(us, 50), part(us, 99));
  return 0;
}

int ttcp(const sockaddr_in& at, double seconds, std::size_t size) {
  const int tcp = ::socket(AF_INET, SOCK_STREAM, 0);
  if (::connect(tcp, plain(at), sizeof at) != 0) return 1;
  const std::vector<char> bytes(size);
  const std::uint64_t start = now_ns();
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
  const sockaddr_in at = address_of(argv[2], std::atoi(argv[3]));
  if (mode == "serve") return serve(at);
  if (mode == "trips" && argc == 5) return trips(at, std::atof(argv[4]));
  if (mode == "ttcp" && argc == 6)
    return ttcp(at, std::atof(argv[4]), static_cast<std::size_t>(std::atol(argv[5])));
  return 2;
}
