#include "address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace clan::via {
namespace {

struct OwnAddresses {
  HostAddress best = mapped(htonl(INADDR_LOOPBACK));
  std::vector<HostAddress> all;
  OwnAddresses() {
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) != 0) return;
    bool found = false;
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
      const int family = i->ifa_addr->sa_family;
      if (family != AF_INET && family != AF_INET6) continue;
      all.push_back(address_of(*i->ifa_addr));
      if (found || family != AF_INET || (i->ifa_flags & IFF_LOOPBACK) != 0) continue;
      best = all.back();
      found = true;
    }
    ::freeifaddrs(list);
  }
};

const OwnAddresses& own() {
  static const OwnAddresses addresses;
  return addresses;
}

constexpr std::uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
bool is_mapped(const HostAddress& host) { return std::memcmp(host.data(), kMappedPrefix, 12) == 0; }

void add_hex(std::string* text, const std::uint8_t* bytes, std::size_t n) {
  static constexpr char kDigits[] = "0123456789abcdef";
  for (std::size_t i = 0; i < n; ++i) {
    *text += kDigits[bytes[i] >> 4];
    *text += kDigits[bytes[i] & 15];
  }
}

// FNV-1a: names are no secret, and both ends check which one they have met.
std::uint64_t hash(std::uint64_t h, const NetAddress& address) {
  const auto mix = [&h](std::uint8_t byte) { h = (h ^ byte) * 0x100000001b3; };
  std::for_each(address.host.begin(), address.host.end(), mix);
  std::for_each_n(address.discriminator.begin(), address.discriminator_bytes, mix);
  mix(static_cast<std::uint8_t>(address.discriminator_bytes));
  return h;
}

}  // namespace

HostAddress mapped(std::uint32_t ipv4) {
  HostAddress host{};
  std::memcpy(host.data(), kMappedPrefix, sizeof kMappedPrefix);
  std::memcpy(host.data() + sizeof kMappedPrefix, &ipv4, sizeof ipv4);
  return host;
}

HostAddress address_of(const sockaddr& from) {
  HostAddress host{};
  if (from.sa_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, &from, sizeof in);
    return mapped(in.sin_addr.s_addr);
  }
  sockaddr_in6 in;
  std::memcpy(&in, &from, sizeof in);
  std::memcpy(host.data(), &in.sin6_addr, host.size());
  return host;
}

std::string text_of(const HostAddress& host) {
  char text[INET6_ADDRSTRLEN] = "";
  if (is_mapped(host)) {
    (void)::inet_ntop(AF_INET, host.data() + sizeof kMappedPrefix, text, sizeof text);
  } else {
    (void)::inet_ntop(AF_INET6, host.data(), text, sizeof text);
  }
  return text;
}

const HostAddress& own_address() { return own().best; }

bool is_own(const HostAddress& host) {
  if (is_mapped(host) && host[12] == 127) return true;
  const auto& all = own().all;
  return host == own().best || std::find(all.begin(), all.end(), host) != all.end();
}

bool read_address(const VIP_NET_ADDRESS* address, NetAddress* read) {
  if (address == nullptr) return false;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(address);
  std::uint16_t lengths[2];
  std::memcpy(lengths, bytes, sizeof lengths);
  bytes += sizeof lengths;
  if (lengths[0] != kHostBytes || lengths[1] > kMostDiscriminator) return false;
  *read = {};
  std::memcpy(read->host.data(), bytes, kHostBytes);
  read->discriminator_bytes = lengths[1];
  std::memcpy(read->discriminator.data(), bytes + kHostBytes, lengths[1]);
  if (is_own(read->host)) read->host = own_address();
  return true;
}

void write_address(const NetAddress& address, VIP_NET_ADDRESS* written) {
  auto* bytes = reinterpret_cast<std::uint8_t*>(written);
  const std::uint16_t lengths[2] = {kHostBytes,
                                    static_cast<std::uint16_t>(address.discriminator_bytes)};
  std::memcpy(bytes, lengths, sizeof lengths);
  std::memcpy(bytes + sizeof lengths, address.host.data(), kHostBytes);
  std::memcpy(bytes + sizeof lengths + kHostBytes, address.discriminator.data(),
              address.discriminator_bytes);
}

std::string service_of(const NetAddress& address) {
  std::string name = "vipl:";
  add_hex(&name, address.discriminator.data(), address.discriminator_bytes);
  return name;
}

std::string service_of_pair(const NetAddress& serves, const NetAddress& asks) {
  const std::uint64_t h = hash(hash(0xcbf29ce484222325, serves), asks);
  std::string name = "vipl-peer:";
  add_hex(&name, reinterpret_cast<const std::uint8_t*>(&h), sizeof h);
  return name;
}

std::string place_of_service(const HostAddress& host, const std::string& service) {
  if (is_own(host)) return service;
  const std::string text = text_of(host);
  return "udp:" + (is_mapped(host) ? text : "[" + text + "]") + "/" + service;
}

}  // namespace clan::via
