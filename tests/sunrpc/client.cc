// A client of every.x that knows nothing of CLAN: sunrpc-client PORT CALLS
#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdint>
#include <cstdlib>

#include "every.h"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<std::uint16_t>(std::atoi(argv[1])));
  int fd = RPC_ANYSOCK;
  CLIENT* client = clnttcp_create(&to, EVERY, EVERY_NEW, &fd, 0, 0);
  if (client == nullptr) return 3;
  for (int i = 0; i < std::atoi(argv[2]); ++i) {
    const int* negated = negate_2(&i, client);
    if (negated == nullptr || *negated != -i) return 1;
  }
  clnt_destroy(client);
  return 0;
}
