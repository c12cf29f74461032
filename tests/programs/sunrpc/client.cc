// A client of every.x that knows nothing of CLAN: sunrpc-client PORT CALLS [SECONDS]
//
// With SECONDS it ends after those, too, and then says the time of day at which each kStretch of
// its calls had been made.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "every.h"

namespace {
constexpr int kStretch = 200;

double now() {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);  // no system call
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}
}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<std::uint16_t>(std::atoi(argv[1])));
  int fd = RPC_ANYSOCK;
  CLIENT* client = clnttcp_create(&to, EVERY, EVERY_NEW, &fd, 0, 0);
  if (client == nullptr) return 3;
  const int calls = std::atoi(argv[2]);
  const double seconds = argc > 3 ? std::atof(argv[3]) : 0;
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(calls) / kStretch + 1);
  const double begin = now();
  for (int i = 0; i < calls; ++i) {
    const int* negated = negate_2(&i, client);
    if (negated == nullptr || *negated != -i) return 1;
    if (seconds == 0 || i % kStretch != 0) continue;
    times.push_back(now());
    if (times.back() > begin + seconds) break;
  }
  for (const double time : times) std::printf("%.6f\n", time);
  clnt_destroy(client);
  return 0;
}
