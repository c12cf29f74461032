// What the gateway is to do: rules, from the command line or from a file with a rule on a line.
//
//   listen=*:6379 to=clan:cache1,clan:cache2 balance=least check=2
//
// The command line has the same words with two dashes: --listen '*:6379' --to clan:cache1 ...
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "address.h"
#include "proxy_header.h"

namespace clan::gateway {

/// Where connections go.
struct TargetName {
  std::string text;                ///< as it was written
  std::vector<Address> addresses;  ///< of TCP, all that the host has, or a name of AF_CLAN
  std::string service{};  ///< of a native listener (clan/stream.h); then there are no addresses
};

enum class Balance { kRoundRobin, kLeast, kFirst };

/// A listener, and what is done with its connections. Times in ms; 0: none.
struct Rule {
  std::string listen_text;
  Address listen;
  std::vector<TargetName> targets;
  Balance balance = Balance::kRoundRobin;
  bool accepts_proxy = false;
  std::vector<Network> proxies;  ///< which send a header, and nobody else may come
  ProxyVersion sends_proxy = ProxyVersion::kNone;
  std::uint64_t connect_ms = 5'000, idle_ms = 0, header_ms = 3'000;
  std::uint64_t check_ms = 0, retry_ms = 2'000;
  std::string check_send, check_expect;  ///< a target works that answers the one by the other
  std::uint32_t keep_alive_s = 0;        ///< 0: as the kernel does
  std::uint32_t most = 0, most_of_source = 0, backlog = 1024;
  bool logs = true;
};

/// The most targets of a rule.
constexpr std::size_t kMostTargets = 64;

struct Config {
  std::vector<Rule> rules;
  std::string file;                 ///< of the rules; empty: they were on the command line
  std::uint64_t drain_ms = 60'000;  ///< for connections of a gateway that has been replaced
  std::uint64_t exit_idle_ms = 0;   ///< ends after so long without a connection; 0: never
  bool checks_only = false;
  std::string error;  ///< why there is no configuration; empty: there is
};

/// Reads "key=value" words into a rule. The empty string, or what is wrong.
using Setting = std::pair<std::string, std::string>;
std::string read_rule(const std::vector<Setting>& settings, Rule& rule);

/// Reads the rules of a file.
Config read_file(const std::string& path);
Config read_text(const std::string& text);
/// Reads the arguments behind the program's name, and the file that they name.
Config read_arguments(const std::vector<std::string>& arguments);

std::string usage();

}  // namespace clan::gateway
