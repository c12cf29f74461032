// `clan ping HOST`: the path to CLAN programs of another host.
#include <clan/network.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "commands.h"

namespace clan::tool {
namespace {

using Mode = NetworkOptions::Mode;

// One sentence, and what to do about it where the library cannot know.
int complain(const PingOptions& options, const Error& error) {
  fmt::print(stderr, "clan ping: {}\n", error.message());
  if (options.mode != "off" && options.key_file.empty()) {
    fmt::print(stderr,
               "clan ping: --key FILE names the key; programs without one take --mode off\n");
  }
  return 1;
}

std::string with_port(const std::string& host) {
  const bool named = host.rfind(':') != std::string::npos && host.back() != ']';
  return named ? host : host + ":" + std::to_string(NetworkOptions().directory_port);
}

}  // namespace

int ping(const PingOptions& options) {
  ContextOptions wanted;
  wanted.network.enabled = true;
  wanted.network.mode = options.mode == "off"         ? Mode::kOff
                        : options.mode == "integrity" ? Mode::kIntegrity
                                                      : Mode::kEncrypt;
  wanted.network.key_file = options.key_file;
  wanted.network.directory_port = 0;  // we offer nothing
  auto context = Context::create(wanted);
  if (!context) return complain(options, context.error());
  std::vector<std::uint64_t> trips(options.count);
  auto path =
      clan::ping(*context, with_port(options.host), trips, options.interval_ms, options.timeout_ms);
  if (!path) return complain(options, path.error());
  std::sort(trips.begin(), trips.end());
  const auto us = [](std::uint64_t ns) { return static_cast<double>(ns) / 1e3; };
  fmt::print("{} ({}), mode {}, packets by {}\n", options.host, path->address, options.mode,
             path->packets);
  fmt::print("{} round trips, a thread woken at both ends: min {:.1f} p50 {:.1f} max {:.1f} us\n",
             trips.size(), us(trips.front()), us(trips[trips.size() / 2]), us(trips.back()));
  fmt::print("packets of up to {} bytes, {} sent, {} lost, {} time-outs, window {:.0f} KB\n",
             path->packet_bytes, path->packets_sent, path->packets_lost, path->timeouts,
             static_cast<double>(path->window_bytes) / 1024);
  return 0;
}

}  // namespace clan::tool
