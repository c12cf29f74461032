#include "system/other_hosts.h"

#include <clan/detail/log.h>
#include <clan/face/settings.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

namespace clan::ofi {
namespace {

constexpr char kNotSet[] =
    "other hosts are reached when CLAN_KEY names the same key file on all of them (umask 077; "
    "openssl rand -hex 32 > FILE; mpirun -x CLAN_KEY), or CLAN_NETWORK_MODE=off says that the wire "
    "can be trusted";
constexpr char kNoAnswer[] =
    "nothing has answered: `clan ping` to that host says whether a program is there, with the "
    "same key and mode (CLAN_KEY, CLAN_NETWORK_MODE), or a firewall drops UDP; or the program is "
    "stopped";
constexpr char kNotThere[] =
    "no process there has that endpoint: it has ended, or has not begun, or takes another provider "
    "(mpirun -x FI_PROVIDER -x FI_PROVIDER_PATH)";

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

// Errors on descriptor 2, whatever CLAN_LOG is: of a program over MPI the user sees a number at
// most, and it is a setting that is wrong. What time may mend only where the log asks for it.
void say_no_way(const Name& name, const char* why, LogLevel level, std::atomic<bool>& said) {
  const std::string host = host_text(name);
  FI_WARN(&g_provider, FI_LOG_EP_CTRL, "no way to %s: %s\n", host.c_str(), why);
  if (level > LogLevel::kError && log_level() < level) return;
  // relaxed: one thread says it
  if (!said.exchange(true, std::memory_order_relaxed))
    log_line(level, "no way to %s: %s", host.c_str(), why);
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
  static std::atomic<bool> said{false};
  say_no_way(name, kNotSet, LogLevel::kError, said);
}

void say_why_none(const Name& name, int err) {
  if (name.local()) return;
  static std::atomic<bool> said_no_answer{false}, said_not_there{false};
  if (err == ETIMEDOUT) say_no_way(name, kNoAnswer, LogLevel::kError, said_no_answer);
  if (err == ECONNREFUSED) say_no_way(name, kNotThere, LogLevel::kWarn, said_not_there);
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
