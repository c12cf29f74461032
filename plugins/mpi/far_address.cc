#include "far_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace clan::mpi {
namespace {

/// The bytes of an address, and how many there are; 0: of another family.
std::size_t bytes_of(const sockaddr* address, std::array<std::uint8_t, 16>* bytes) {
  if (address == nullptr) return 0;
  if (address->sa_family == AF_INET) {
    std::memcpy(bytes->data(), &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, 4);
    return 4;
  }
  if (address->sa_family != AF_INET6) return 0;
  std::memcpy(bytes->data(), &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, 16);
  return 16;
}

bool read_host(const char* text, Interface* host) {
  host->text = text;
  for (const int family : {AF_INET, AF_INET6}) {
    host->family = family;
    if (::inet_pton(family, text, host->bytes.data()) == 1) return true;
  }
  return false;
}

bool in_network_of(const Interface& own, const Interface& host) {
  if (own.family != host.family) return false;
  for (unsigned bit = 0; bit < own.prefix; ++bit) {
    if (((own.bytes[bit / 8] ^ host.bytes[bit / 8]) >> (7 - bit % 8) & 1) != 0) return false;
  }
  return true;
}

}  // namespace

std::vector<Interface> interfaces() {
  std::vector<Interface> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if ((i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0) continue;
    Interface own;
    const std::size_t size = bytes_of(i->ifa_addr, &own.bytes);
    const bool of_one_link = size == 16 && own.bytes[0] == 0xfe && (own.bytes[1] & 0xc0) == 0x80;
    if (size == 0 || of_one_link) continue;
    own.family = i->ifa_addr->sa_family;
    char text[INET6_ADDRSTRLEN];
    if (::inet_ntop(own.family, own.bytes.data(), text, sizeof text) == nullptr) continue;
    own.text = text;
    std::array<std::uint8_t, 16> mask{};
    (void)bytes_of(i->ifa_netmask, &mask);
    for (const std::uint8_t byte : mask) own.prefix += static_cast<unsigned>(std::popcount(byte));
    found.push_back(std::move(own));
  }
  ::freeifaddrs(list);
  return found;
}

FarAddress far_address(std::span<const Interface> own, std::uint16_t port,
                       NetworkOptions::Mode mode) {
  FarAddress address;
  address.mode = static_cast<std::uint8_t>(mode);
  for (const Interface& one : own) {
    if (address.hosts == FarAddress::kMostHosts || one.text.size() >= FarAddress::kMostText) break;
    std::memcpy(address.host[address.hosts++], one.text.c_str(), one.text.size() + 1);
  }
  address.port = address.hosts > 0 ? port : 0;
  return address;
}

std::vector<std::string> hosts_to_try(std::span<const Interface> own, const FarAddress& peer) {
  std::vector<std::string> near, others;
  for (std::size_t i = 0; i < std::min<std::size_t>(peer.hosts, FarAddress::kMostHosts); ++i) {
    Interface host;
    const char* text = peer.host[i];
    if (std::memchr(text, 0, FarAddress::kMostText) == nullptr || !read_host(text, &host)) continue;
    const auto is_this = [&](const Interface& o) { return o.text == host.text; };
    if (std::any_of(own.begin(), own.end(), is_this)) continue;
    const auto reaches = [&](const Interface& o) { return in_network_of(o, host); };
    auto& list = std::any_of(own.begin(), own.end(), reaches) ? near : others;
    list.push_back(host.family == AF_INET6 ? "[" + host.text + "]" : host.text);
  }
  near.insert(near.end(), others.begin(), others.end());
  return near;
}

}  // namespace clan::mpi
