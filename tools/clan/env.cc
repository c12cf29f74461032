// `clan env`, and the one list of variables that `clan run --help` shows too.
#include <fmt/core.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "commands.h"

namespace clan::tool {
namespace {

struct Variable {
  const char* name;
  const char* help;
};

// Each variable some part of CLAN reads, in the order in which a user is likely to want it.
constexpr Variable kVariables[] = {
    {"CLAN_LOG", "how much the library says on stderr: off, error, warn, info, debug"},
#ifdef CLAN_PRELOAD
    {"CLAN_DISABLE", "1: the libraries leave every connection and call on TCP"},
    {"CLAN_ONLY", "ports, like 80,8000-8010: only connections with one of them at either end move"},
    {"CLAN_EXCEPT",
     "ports, in the same form: connections with one of them at either end stay on TCP"},
    {"CLAN_CONFIG", "a file with lines like CLAN_ONLY=80, for what the environment leaves unset"},
    {"CLAN_UIDS",
     "user ids, comma-separated: other users whose processes may share memory with yours"},
    {"CLAN_MEMORY",
     "a size like 64M: what the connections of a user may take of memory; more stay on TCP"},
    {"CLAN_DIR",
     "a directory that containers share: connections between their network namespaces move, too"},
    {"CLAN_KEY", "a file with the pre-shared key of hosts that call each other by UDP (chmod 600)"},
    {"CLAN_NETWORK_MODE",
     "encrypt (the default with a key), integrity, or off: calls by UDP are neither checked nor "
     "encrypted"},
    {"CLAN_NETWORK_PACKETS",
     "sockets (the default), xdp: packets between hosts go by AF_XDP past the kernel, or auto"},
    {"CLAN_NETWORK_PORT",
     "4790: the UDP port where other hosts find this user's programs, and where they are asked"},
    {"CLAN_NET",
     "1: connections to other hosts move, too, where both ends have it and the same CLAN_KEY"},
#endif
};

}  // namespace

std::string environment_help() {
  std::string text;
  for (const Variable& variable : kVariables) {
    text += fmt::format("  {:<21} {}\n", variable.name, variable.help);
  }
  return text;
}

std::vector<std::string> variable_names() {
  std::vector<std::string> names;
  for (const Variable& variable : kVariables) names.emplace_back(variable.name);
  return names;
}

bool print_environment() {
  bool good = true;
  for (const Variable& variable : kVariables) {
    const char* value = std::getenv(variable.name);
    fmt::print("{:<20} {}\n{:<20}   {}\n", variable.name, variable.help, "",
               value != nullptr ? fmt::format("set to \"{}\"", value) : "not set");
    if (value == nullptr) continue;
    const std::string why = why_wrong(variable.name, value);
    if (!why.empty()) fmt::print("{:<18}   WRONG: {}\n", "", why);
    good = good && why.empty();
  }
  for (const std::string& sentence : unknown_variables()) fmt::print("{}\n", sentence);
  return good;
}

}  // namespace clan::tool
