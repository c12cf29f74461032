#include "options.h"

#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cstdlib>

namespace clan::ip {
namespace {

constexpr unsigned kLeastMtu = 68, kLeastMtu6 = 1280, kMostMtu = 65'535;

/// HOST of "udp:HOST" and "udp:HOST:PORT".
std::string name_of(const std::string& host) {
  const std::string rest = host.substr(4);
  if (rest.starts_with('[')) return rest.substr(1, rest.find(']') - 1);
  return rest.substr(0, rest.find(':'));
}

bool parse_peer(const std::string& text, PeerOption* peer) {
  const auto equals = text.find('=');
  if (equals == std::string::npos) return false;
  const std::string where = text.substr(equals + 1);
  if (where.starts_with("udp:") && where.find('/') == std::string::npos && !name_of(where).empty())
    peer->host = where;
  else if (where != "local")
    return false;
  for (std::size_t at = 0; at < equals;) {
    const auto comma = std::min(text.find(',', at), equals);
    const auto prefix = parse_prefix(text.substr(at, comma - at));
    if (!prefix) return false;
    peer->prefixes.push_back(*prefix);
    at = comma + 1;
  }
  return !peer->prefixes.empty() && peer->prefixes[0].address.is_of_one() &&
         peer->prefixes[0].bits == peer->prefixes[0].address.size() * 8;
}

bool has_family(const UpOptions& options, bool v6) {
  for (const Prefix& own : options.addresses) {
    if (own.address.v6 == v6) return true;
  }
  return false;
}

std::string check(const UpOptions& options) {
  if (options.device.empty() || options.addresses.empty())
    return "a device and an --address are needed";
  const bool small = options.mtu < (has_family(options, true) ? kLeastMtu6 : kLeastMtu);
  if (small || options.mtu > kMostMtu) return "--mtu has from 68 bytes, with IPv6 1280, to 65535";
  for (const PeerOption& peer : options.peers) {
    const Address& address = peer.prefixes[0].address;
    if (!has_family(options, address.v6))
      return to_string(address) + " needs an --address of its kind (IPv4, IPv6)";
    for (const Prefix& own : options.addresses) {
      if (own.address == address) return to_string(address) + " is this device's own address";
    }
    if (peer.host.empty()) continue;
    std::vector<Prefix> inside = options.addresses;
    for (const PeerOption& other : options.peers)
      inside.insert(inside.end(), other.prefixes.begin(), other.prefixes.end());
    if (leads_into(peer.host, inside))
      return peer.host + " lies behind the device itself: its packets would never leave";
  }
  return "";
}

}  // namespace

bool leads_into(const std::string& host, const std::vector<Prefix>& prefixes) {
  addrinfo* found = nullptr;
  if (::getaddrinfo(name_of(host).c_str(), nullptr, nullptr, &found) != 0) return false;
  bool inside = false;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const bool v6 = one->ai_family == AF_INET6;
    if (!v6 && one->ai_family != AF_INET) continue;
    const void* const bytes =
        v6 ? static_cast<const void*>(&reinterpret_cast<sockaddr_in6*>(one->ai_addr)->sin6_addr)
           : &reinterpret_cast<sockaddr_in*>(one->ai_addr)->sin_addr;
    for (const Prefix& prefix : prefixes)
      inside = inside || prefix.contains(Address::of(v6, bytes));
  }
  ::freeaddrinfo(found);
  return inside;
}

std::string service_of(const Address& address, const std::string& host,
                       const std::string& directory) {
  const std::string name = "ip." + to_string(address);
  if (!host.empty()) return host + "/" + name;
  return directory.empty() ? name : directory + "/" + name;
}

std::string parse_up(int argc, char** argv, UpOptions* options) {
  static const option kLong[] = {
      {"address", required_argument, nullptr, 'a'}, {"peer", required_argument, nullptr, 'p'},
      {"mtu", required_argument, nullptr, 'm'},     {"key", required_argument, nullptr, 'k'},
      {"no-offload", no_argument, nullptr, 'n'},    {}};
  for (int c = 0; (c = ::getopt_long(argc, argv, "", kLong, nullptr)) != -1;) {
    const std::string value = optarg != nullptr ? optarg : "";
    if (c == 'a') {
      const auto address = parse_prefix(value);
      if (!address || !address->address.is_of_one())
        return value + " is no address of one host with its prefix, as 10.9.0.1/24";
      options->addresses.push_back(*address);
    } else if (c == 'p') {
      PeerOption peer;
      if (!parse_peer(value, &peer))
        return value + " is not ADDRESS[,PREFIX...]=local or =udp:HOST[:PORT]";
      options->peers.push_back(peer);
    } else if (c == 'm') {
      options->mtu = static_cast<unsigned>(std::atoi(value.c_str()));
    } else if (c == 'k') {
      options->key_file = value;
    } else if (c == 'n') {
      options->offload = false;
    } else {
      return "`clan ip --help` names the options";
    }
  }
  for (; optind < argc; ++optind) {
    if (!options->device.empty()) return std::string(argv[optind]) + " is one word too many";
    options->device = argv[optind];
  }
  return check(*options);
}

}  // namespace clan::ip
