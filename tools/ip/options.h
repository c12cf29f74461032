// The command line of `clan ip up`.
#pragma once

#include <string>
#include <vector>

#include "address.h"

namespace clan::ip {

struct PeerOption {
  std::vector<Prefix> prefixes;  ///< the first is the address that it is found by
  std::string host;              ///< empty: of this host; else "udp:HOST" or "udp:HOST:PORT"
};

struct UpOptions {
  std::string device;
  std::vector<Prefix> addresses;
  std::vector<PeerOption> peers;
  unsigned mtu = 1500;
  std::string key_file;
  bool offload = true;
};

/// Empty, or what is wrong, as a sentence.
std::string parse_up(int argc, char** argv, UpOptions* options);
/// The name under which the `clan ip` of that address is found, in `directory` where it is shared
/// by network namespaces.
std::string service_of(const Address& address, const std::string& host,
                       const std::string& directory);
/// Whether packets to that host would go to one of these prefixes, and so into the device.
bool leads_into(const std::string& host, const std::vector<Prefix>& prefixes);

inline constexpr char kUsage[] =
    "clan ip up DEVICE --address ADDRESS/BITS [--address ...]\n"
    "              [--peer ADDRESS[,PREFIX...]=local|udp:HOST[:PORT]]...\n"
    "              [--mtu BYTES] [--key FILE] [--no-offload]\n"
    "clan ip down DEVICE\n"
    "clan ip status [DEVICE] [--json]\n"
    "\n"
    "A network device whose packets go over CLAN links: in the foreground until it is ended.\n"
    "Addresses of the device's own prefix are looked for on this host, those of --peer where it\n"
    "says. Network namespaces of one host meet in the directory that CLAN_DIR names; hosts have\n"
    "the same key (--key or CLAN_KEY).\n";

}  // namespace clan::ip
