// The least that forwards packets between devices of two processes: a socket pair between them, a
// thread for each direction in each process, system calls that block. With the device of `clan ip`.
//
//     clan-ip-bare OTHER-NAMESPACE ADDRESS/BITS OTHER-ADDRESS/BITS [--no-offload]
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "device.h"

using namespace clan::ip;

namespace {

void copy(int from, int to) {
  std::vector<std::byte> packet(kHeader + kMostPacket);
  for (;;) {
    const ssize_t n = ::read(from, packet.data(), packet.size());
    if (n <= 0) return;
    (void)!::write(to, packet.data(), static_cast<std::size_t>(n));
  }
}

int forward(int socket, const std::string& address, bool offload) {
  auto device = Device::create("clan0");
  if (!device) return std::fprintf(stderr, "%s\n", device.error().message().c_str()), 1;
  const Prefix own[] = {*parse_prefix(address)};
  if (!offload) (void)device->set_offloads(kCsum);
  if (!device->configure(own, 1500, {})) return 1;
  const int queue = device->queue(0);
  ::fcntl(queue, F_SETFL, ::fcntl(queue, F_GETFL) & ~O_NONBLOCK);
  std::puts("up");
  std::fflush(stdout);
  std::thread out(copy, queue, socket);
  copy(socket, queue);
  ::_exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const bool offload = argc == 4;
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0) return 1;
  for (const int socket : sockets) {
    const int bytes = 4 << 20;
    ::setsockopt(socket, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
  }
  const pid_t parent = ::getpid();
  if (::fork() == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int other = ::open(argv[1], O_RDONLY | O_CLOEXEC);
    ::close(sockets[0]);
    if (::getppid() != parent || ::setns(other, CLONE_NEWNET) != 0) return 1;
    return forward(sockets[1], argv[3], offload);
  }
  ::close(sockets[1]);
  return forward(sockets[0], argv[2], offload);
}
