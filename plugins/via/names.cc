// The name service: the resolver's. Addresses stay usable behind VipNSShutdown().
#include <netdb.h>
#include <netinet/in.h>

#include <cstring>

#include "address.h"
#include "provider.h"

using namespace clan::via;

namespace {

VIP_RETURN find_with_names(VIP_NIC_HANDLE handle, Nic** nic) {
  if (const VIP_RETURN rc = find(handle, nic); rc != VIP_SUCCESS) return rc;
  return clan::words::load_acquire((*nic)->names) ? VIP_SUCCESS : VIP_ERROR_NAMESERVICE;
}

}  // namespace

extern "C" CLAN_EXPORT VIP_RETURN VipNSInit(VIP_NIC_HANDLE handle, VIP_PVOID) {
  Nic* nic = nullptr;
  if (const VIP_RETURN rc = find(handle, &nic); rc != VIP_SUCCESS) return rc;
  clan::words::store_release(nic->names, true);
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipNSShutdown(VIP_NIC_HANDLE handle) {
  Nic* nic = nullptr;
  if (const VIP_RETURN rc = find_with_names(handle, &nic); rc != VIP_SUCCESS) return rc;
  clan::words::store_release(nic->names, false);
  return VIP_SUCCESS;
}

// The discriminator, which follows the host's address, is the caller's.
extern "C" CLAN_EXPORT VIP_RETURN VipNSGetHostByName(VIP_NIC_HANDLE handle, VIP_CHAR* name,
                                                     VIP_NET_ADDRESS* address, VIP_ULONG index) {
  Nic* nic = nullptr;
  if (const VIP_RETURN rc = find_with_names(handle, &nic); rc != VIP_SUCCESS) return rc;
  if (name == nullptr || address == nullptr) return VIP_INVALID_PARAMETER;
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(name, nullptr, &wanted, &list) != 0) return VIP_ERROR_NAMESERVICE;
  const addrinfo* found = list;
  for (VIP_ULONG i = 0; found != nullptr && i < index; ++i) found = found->ai_next;
  HostAddress host{};
  const bool there = found != nullptr;
  if (there) host = address_of(*found->ai_addr);
  ::freeaddrinfo(list);
  if (!there) return VIP_ERROR_NAMESERVICE;
  if (is_own(host)) host = own_address();
  const std::uint16_t length = kHostBytes;
  std::memcpy(address, &length, sizeof length);
  std::memcpy(reinterpret_cast<std::uint8_t*>(address) + 4, host.data(), host.size());
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipNSGetHostByAddr(VIP_NIC_HANDLE handle,
                                                     VIP_NET_ADDRESS* address, VIP_CHAR* name,
                                                     VIP_ULONG* name_length) {
  Nic* nic = nullptr;
  if (const VIP_RETURN rc = find_with_names(handle, &nic); rc != VIP_SUCCESS) return rc;
  NetAddress net;
  if (name == nullptr || name_length == nullptr || !read_address(address, &net))
    return VIP_INVALID_PARAMETER;
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  std::memcpy(&in.sin6_addr, net.host.data(), net.host.size());
  char text[NI_MAXHOST];
  if (::getnameinfo(reinterpret_cast<sockaddr*>(&in), sizeof in, text, sizeof text, nullptr, 0,
                    0) != 0) {
    return VIP_ERROR_NAMESERVICE;
  }
  const std::size_t bytes = std::strlen(text) + 1;
  const bool fits = bytes <= *name_length;
  *name_length = bytes;
  if (!fits) return VIP_ERROR_RESOURCE;
  std::memcpy(name, text, bytes);
  return VIP_SUCCESS;
}
