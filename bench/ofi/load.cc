// What `clan bench ofi` measures with: two processes that exchange data by libfabric's public
// interface. ofi.py starts one pair per provider and has them measure in turns.
//
//   clan-ofi-load PROVIDER FAMILY CORE_A CORE_B
//
//   ofi.py ── "tagged 64 12" ──> client, CORE_B ── socketpair: Order ──> server, CORE_A (its child)
//          <── "0.41 0.43 9 0 1 0.9" (us) ──   <── the provider ──>
//
// The loops are those of fabtests: the same sequence of calls, queues for sends and receives apart,
// which are read one entry at a time without pause; messages below the provider's inject size are
// injected. Messages are checked as in transports/slices.h. What does not come within kPatience
// ends the program.
#include <sys/eventfd.h>
#include <sys/wait.h>

#include "side.h"

namespace clan::bench::ofi {
namespace {

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
    const auto* entry =
        std::find_if(std::begin(Side::kEntries), std::end(Side::kEntries),
                     [&](const Entry& e) { return e.name == std::string_view(name); });
    if (entry == std::end(Side::kEntries) || family != entry->family || bytes < 1 ||
        bytes > kMostBytes) {
      give_up("order", line);
    }
    print(side.measure(static_cast<int>(entry - Side::kEntries), bytes, ms));
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
    clan::bench::fail("set-up");
  }
  const pid_t child = clan::bench::start_child();  // before libfabric does anything
  const bool client = child != 0;
  ::close(sockets[client ? 1 : 0]);
  clan::bench::pin(std::atoi(argv[client ? 4 : 3]));
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
