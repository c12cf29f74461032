// `clan ping HOST`: the path to CLAN programs of another host.
#include <clan/face/network.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "commands.h"
#include "stat/address.h"

namespace clan::tool {
namespace {

using Mode = NetworkOptions::Mode;

// One sentence, and what to do about it where the library cannot know.
int complain(const PingOptions& options, const Error& error) {
  fmt::print(stderr, "clan ping: {}\n", error.message());
  if (options.mode != "off" && options.key_file.empty()) {
    fmt::print(stderr,
               "clan ping: --key FILE or CLAN_KEY names the key; programs without one take --mode "
               "off\n");
  }
  return 1;
}

const char* name_of(Mode mode) {
  switch (mode) {
    case Mode::kOff: return "off";
    case Mode::kIntegrity: return "integrity";
    case Mode::kEncrypt: break;
  }
  return "encrypt";
}

// What the command line leaves out is as programs under `clan run` here would have it.
PingOptions with_settings(PingOptions options, const NetworkOptions& set) {
  if (options.mode.empty()) options.mode = name_of(set.mode);
  if (options.key_file.empty() && options.mode != "off") options.key_file = set.key_file;
  return options;
}

}  // namespace

std::string host_and_port(const std::string& host) {
  const auto colon = host.rfind(':');
  const std::string port = ":" + std::to_string(network_settings().directory_port);
  // An IPv6 address without brackets has several colons, and no port.
  if (host.rfind('[', 0) != 0 && host.find(':') != colon) return "[" + host + "]" + port;
  return colon != std::string::npos && host.back() != ']' ? host : host + port;
}

int ping(const PingOptions& asked) {
  const NetworkOptions set = network_settings();
  const PingOptions options = with_settings(asked, set);
  ContextOptions wanted;
  wanted.network.enabled = true;
  wanted.network.packets = set.packets;
  wanted.network.mode = options.mode == "off"         ? Mode::kOff
                        : options.mode == "integrity" ? Mode::kIntegrity
                                                      : Mode::kEncrypt;
  wanted.network.key_file = options.key_file;
  wanted.network.directory_port = 0;  // we offer nothing
  auto context = Context::create(wanted);
  if (!context) return complain(options, context.error());
  std::vector<std::uint64_t> trips(options.count);
  auto path = clan::ping(*context, host_and_port(options.host), trips, options.interval_ms,
                         options.timeout_ms);
  if (!path) return complain(options, path.error());
  std::sort(trips.begin(), trips.end());
  const auto us = [](std::uint64_t ns) { return static_cast<double>(ns) / 1e3; };
  const auto peer = make_address(path->ip, false, static_cast<std::uint16_t>(path->port));
  fmt::print("{} ({}), mode {}, packets by {}\n", options.host, with_port(peer), options.mode,
             clan::name_of(static_cast<PacketPath>(path->packets)));
  fmt::print("{} round trips, a thread woken at both ends: min {:.1f} p50 {:.1f} max {:.1f} us\n",
             trips.size(), us(trips.front()), us(trips[trips.size() / 2]), us(trips.back()));
  fmt::print("packets of up to {} bytes, {} sent, {} lost, {} time-outs, window {:.0f} KB\n",
             path->packet_bytes, path->packets_sent, path->packets_lost, path->timeouts,
             static_cast<double>(path->window_bytes) / 1024);
  return 0;
}

}  // namespace clan::tool
