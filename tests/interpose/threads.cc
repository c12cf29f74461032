// Usage: interpose-threads PAIRS ROUNDS [moves]. That many pairs of threads, each with a
// connection, send messages there and back. 0: all came as they were sent, and with "moves" some of
// them by shared memory. Also built with sanitizers, which have interceptors, handlers and an order
// of libraries of their own.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "interpose/connection.h"

int main(int count, char** words) {
  using namespace clan::test;
  const int pairs = count > 1 ? std::atoi(words[1]) : 8;
  const int rounds = count > 2 ? std::atoi(words[2]) : 100;
  const bool moves = count > 3 && std::string_view(words[3]) == "moves";
  const int listening = listener();
  ::listen(listening, 4096);  // all come at once
  const std::uint16_t port = port_of(listening);
  std::atomic<int> failed{0};
  std::vector<int> accepted(static_cast<std::size_t>(pairs)), connected(accepted.size());
  std::vector<std::thread> servers, clients;
  for (int i = 0; i < pairs; ++i) {
    servers.emplace_back([&, fd = &accepted[static_cast<std::size_t>(i)]] {
      *fd = ::accept(listening, nullptr, nullptr);
      if (*fd < 0 || echo(*fd) != 0) ++failed;
    });
    clients.emplace_back([&, i, fd = &connected[static_cast<std::size_t>(i)]] {
      *fd = connect_to(port);
      for (int round = 0; round < rounds; ++round) {
        char out[100], in[100];
        std::memset(out, i + round, sizeof out);
        const bool sent = ::write(*fd, out, sizeof out) == sizeof out;
        if (!sent || ::recv(*fd, in, sizeof in, MSG_WAITALL) != sizeof in ||
            std::memcmp(in, out, sizeof in) != 0) {
          ++failed;
          break;
        }
      }
    });
  }
  for (std::thread& thread : clients) thread.join();
  const std::uint64_t shared = bytes_by_shared_memory();
  for (const int fd : connected) ::shutdown(fd, SHUT_WR);
  for (std::thread& thread : servers) thread.join();
  for (const int fd : accepted) ::close(fd);
  for (const int fd : connected) ::close(fd);
  std::printf("%d pairs, %d failed, %llu bytes by shared memory\n", pairs, failed.load(),
              static_cast<unsigned long long>(shared));
  return failed == 0 && (!moves || shared > 0) ? 0 : 1;
}
