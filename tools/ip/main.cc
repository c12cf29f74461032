// `clan ip`: a network device whose packets go over CLAN links.
#include <clan/face/settings.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "../service_manager.h"
#include "forward.h"
#include "page.h"

namespace clan::ip {
namespace {

constexpr int kWrong = 2;

int complain(const std::string& text) {
  std::fprintf(stderr, "clan ip: %s\n", text.c_str());
  return 1;
}

/// SIGTERM and SIGINT, as a descriptor.
int stop_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGTERM);
  ::sigaddset(&signals, SIGINT);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  return ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

/// Keeps what steering programs take, and with AF_XDP everything: devices come and go.
void drop_capabilities(const NetworkOptions& network) {
  if (network.enabled && network.packets != NetworkOptions::Packets::kSockets) return;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return;
  data[0] = {};
  data[1].inheritable = 0;
  data[1].permitted &= 1u << (CAP_BPF - 32);
  data[1].effective = data[1].permitted;
  (void)::syscall(SYS_capset, &header, data);
  (void)::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

std::string addresses_of(const UpOptions& options) {
  std::string all;
  for (const Prefix& own : options.addresses) all += (all.empty() ? "" : ", ") + to_string(own);
  return all;
}

/// Prefixes of peers that the own addresses do not bring a route for.
std::vector<Prefix> routes_of(const UpOptions& options) {
  std::vector<Prefix> routes;
  for (const PeerOption& peer : options.peers) {
    for (const Prefix& prefix : peer.prefixes) {
      bool inside = false;
      for (const Prefix& own : options.addresses)
        inside = inside || (own.contains(prefix.address) && own.bits <= prefix.bits);
      if (!inside) routes.push_back(prefix);
    }
  }
  return routes;
}

/// The engine's options: no thread of this process polls.
ContextOptions context_options(const UpOptions& options, const Settings& settings) {
  ContextOptions context = settings.context_options();
  if (!options.key_file.empty()) {
    context.network.enabled = true;
    context.network.key_file = options.key_file;
  }
  context.wait.mode = WaitOptions::Mode::kSleep;
  return context;
}

bool has_far_peers(const UpOptions& options) {
  for (const PeerOption& peer : options.peers) {
    if (!peer.host.empty()) return true;
  }
  return false;
}

void fill_page(const UpOptions& options) {
  IpPage& page = own_page();
  options.device.copy(page.device, sizeof page.device - 1);
  addresses_of(options).copy(page.addresses, sizeof page.addresses - 1);
  page.mtu = options.mtu;
}

int forward(const UpOptions& options, const Settings& settings, Device& device) {
  const int stop = stop_signals();
  const ContextOptions wanted = context_options(options, settings);
  if (has_far_peers(options) && !wanted.network.enabled) {
    return complain(
        "peers on other hosts take a common key: --key FILE or CLAN_KEY (or "
        "CLAN_NETWORK_MODE=off, on a wire that is trusted)");
  }
  // Before there is a thread of the engine, which would keep them.
  drop_capabilities(wanted.network);
  auto context = Context::create(wanted);
  if (!context) return complain(context.error().message());
  auto events = EventQueue::create(*context);
  if (!events) return complain(events.error().message());
  Links links(*context, *events, options, settings.directory);
  const unsigned offloads = options.offload ? device.possible_offloads() : kCsum;
  if (auto started = links.start(offloads); !started) return complain(started.error().message());
  Forwarder forwarder(device, links, *events, wanted.network.enabled);
  if (auto begun = forwarder.start(stop); !begun) return complain(begun.error().message());
  std::printf("%s is up: %s, MTU %u\n", options.device.c_str(), addresses_of(options).c_str(),
              options.mtu);
  std::fflush(stdout);
  tool::notify("READY=1");
  const Status ended = forwarder.run();
  tool::notify("STOPPING=1");
  return ended ? 0 : complain(ended.error().message());
}

int up(int argc, char** argv) {
  UpOptions options;
  if (const std::string wrong = parse_up(argc, argv, &options); !wrong.empty()) {
    complain(wrong);
    return kWrong;
  }
  const Settings settings = settings_of_environment("clan ip has no other hosts");
  if (settings.disable) return complain("a setting is wrong");
  auto device = Device::create(options.device);
  if (!device) return complain(options.device + ": " + device.error().message());
  const Status set = device->configure(options.addresses, options.mtu, routes_of(options));
  if (!set) return complain(options.device + ": " + set.error().message());
  fill_page(options);
  return forward(options, settings, *device);
}

}  // namespace
}  // namespace clan::ip

int main(int argc, char** argv) {
  using namespace clan::ip;
  const std::string command = argc > 1 ? argv[1] : "--help";
  const std::string device = argc > 2 ? argv[2] : "";
  if (command == "up") return up(argc - 1, argv + 1);
  if (command == "down" && argc == 3) return take_down(device);
  if (command == "status" && argc <= 4) {
    const bool json = argc > 2 && std::strcmp(argv[argc - 1], "--json") == 0;
    return print_status(device != "--json" ? device : "", json);
  }
  const bool help = command == "help" || command == "--help" || command == "-h";
  std::fputs(kUsage, help ? stdout : stderr);
  return help ? 0 : 2;
}
