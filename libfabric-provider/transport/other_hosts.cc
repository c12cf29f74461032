#include "transport/other_hosts.h"

#include <clan/log.h>
#include <clan/settings.h>

#include <atomic>
#include <cstdlib>

namespace clan::ofi {
namespace {

constexpr char kNotSet[] =
    "other hosts are reached when CLAN_KEY names the same key file on all of them (umask 077; "
    "openssl rand -hex 32 > FILE), or CLAN_NETWORK_MODE=off says that the wire can be trusted";

NetworkOptions read_options() {
  const auto given = [](const char* name) -> const char* { return std::getenv(name); };
  const auto say = [](const WrongSetting& wrong) {
    complain(wrong, "", "endpoints of other hosts are not reached");
  };
  NetworkOptions options = take_network_settings(given, say);
  int port = options.directory_port;
  if (fi_param_get_int(&g_provider, "directory_port", &port) == 0) {
    if (port > 0 && port <= 65535) {
      options.directory_port = static_cast<std::uint16_t>(port);
    } else {
      FI_WARN(&g_provider, FI_LOG_CORE, "FI_CLAN_DIRECTORY_PORT=%d is no port\n", port);
    }
  }
  return options;
}

const NetworkOptions& network() {
  static const NetworkOptions* const read = new NetworkOptions(read_options());
  return *read;
}

}  // namespace

bool reaches_other_hosts() { return network().enabled; }

Result<Context> make_context(ContextOptions options) {
  options.network = network();
  return create_context(std::move(options), "libfabric endpoints");
}

std::string service_at(const Name& name) {
  std::string service = "ofi." + std::to_string(name.port);
  if (name.local()) return service;
  return "udp:" + host_text(name) + ":" + std::to_string(network().directory_port) + "/" + service;
}

void say_what_is_missing(const Name& name) {
  FI_WARN(&g_provider, FI_LOG_EP_CTRL, "no way to %s: %s\n", host_text(name).c_str(), kNotSet);
  static std::atomic<bool> said{false};
  // relaxed: one thread says it
  if (!said.exchange(true, std::memory_order_relaxed))
    CLAN_WARN("no way to %s: %s", host_text(name).c_str(), kNotSet);
}

SocketAddress shown_to(const SocketAddress& own, const Name& peer) {
  if (peer.local() || !is_loopback(own)) return own;
  SocketAddress shown = source_towards(address_of(peer));
  if (!shown.valid()) return own;
  shown.set_port(own.port());
  return shown;
}

bool name_peer(const SocketAddress& says, bool far, Name* name) {
  *name = name_of(says);
  if (!far) *name = {.port = name->port};  // an address that our host has had for a short time only
  return name->local() != far;
}

}  // namespace clan::ofi
