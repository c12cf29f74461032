// What `clan bench ofi` measures with: two processes that exchange data by libfabric's public
// interface, whichever provider is asked for. ofi.py starts one pair per provider and has them
// measure in turns.
//
//   clan-ofi-load PROVIDER FAMILY CORE_A CORE_B
//
//   ofi.py ── "tagged 64 12" ──> client, CORE_B ── socketpair: Order ──> server, CORE_A (its child)
//          <── "0.41 0.43 9 0 1 0.9" (us) ──   <── the provider ──>
//
// The loops are those of fabtests: the same sequence of calls, queues for sends and receives apart,
// which are read one entry at a time without pause; messages below the provider's inject size are
// injected. Every message of a ping-pong carries its number at front, middle and back, which its
// receiver checks; a window of messages carries the window's. Before and after each measurement the
// whole of a message or a region is checked, byte by byte. What does not come within kPatience ends
// the program.
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>

#include "side.h"

namespace clan::bench::ofi {
namespace {

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0)
    give_up("sched_setaffinity", std::strerror(errno));
}

int be_client(Side& side, const Channel& channel, std::string_view family, pid_t server) {
  std::printf("ready %d\n", static_cast<int>(server));
  std::fflush(stdout);
  char line[128];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    char name[32];
    unsigned long bytes;
    double ms;
    if (std::sscanf(line, "%31s %lu %lf", name, &bytes, &ms) != 3)
      give_up("order", "not KIND BYTES MS");
    const auto* entry = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Entry& e) {
      return e.name == std::string_view(name);
    });
    if (entry == std::end(kKinds) || family != entry->family || bytes < 1 || bytes > kMostBytes) {
      give_up("order", line);
    }
    const Figure figure = side.measure(entry->kind, bytes, ms);
    print(figure);
  }
  const Order end;
  channel.send(&end, sizeof end);
  return 0;
}

}  // namespace

}  // namespace clan::bench::ofi

int main(int argc, char** argv) {
  using namespace clan::bench::ofi;
  if (argc != 5) {
    std::fputs("clan-ofi-load PROVIDER FAMILY CORE_A CORE_B: see ofi.py\n", stderr);
    return 2;
  }
  // The program that started us may be killed. Not SIGTERM: providers catch it.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  int sockets[2];
  const std::array<int, 2> eventfds{::eventfd(0, 0), ::eventfd(0, 0)};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0 || eventfds[0] < 0 ||
      eventfds[1] < 0) {
    give_up("set-up", std::strerror(errno));
  }
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();  // before libfabric does anything
  if (child < 0) give_up("fork", std::strerror(errno));
  const bool client = child != 0;
  if (!client) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) return 1;
  }
  ::close(sockets[client ? 1 : 0]);
  pin(std::atoi(argv[client ? 4 : 3]));
  const Channel channel(sockets[client ? 0 : 1]);
  Side side(client, channel, eventfds);
  const std::string reason = side.open(argv[1], argv[2]);
  int code = 0;
  if (!reason.empty()) {
    if (client) std::printf("unavailable: %s\n", reason.c_str());
  } else if (client) {
    code = be_client(side, channel, argv[2], child);
  } else {
    side.serve();
  }
  side.close();
  if (client) (void)::waitpid(child, nullptr, 0);
  return code;
}
