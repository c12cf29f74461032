#include "af_clan/af_clan_name.h"

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "os/sys.h"

namespace clan::preload {
namespace {

constexpr std::size_t kFamily = sizeof(sa_family_t);

socklen_t form(const ClanName& name, sockaddr_clan* address) {
  address->sclan_family = AF_CLAN;
  std::memcpy(address->sclan_name, name.text, name.size);
  std::memset(address->sclan_name + name.size, 0, CLAN_NAME_MAX - name.size);
  const bool zero = !name.empty() && name.size < CLAN_NAME_MAX;
  return static_cast<socklen_t>(kFamily + name.size + (zero ? 1 : 0));
}

// FNV-1a with the finalizer of splitmix64.
std::uint64_t hash(const char* text, std::size_t size, unsigned attempt) {
  std::uint64_t h = 0xcbf29ce484222325 + attempt;
  for (std::size_t i = 0; i < size; ++i)
    h = (h ^ static_cast<unsigned char>(text[i])) * 0x100000001b3;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9;
  h = (h ^ (h >> 27)) * 0x94d049bb133111eb;
  return h ^ (h >> 31);
}

constexpr std::size_t kPrefix = 12;  // "\0clan1/af/p/"
static_assert(kPrefix + CLAN_NAME_MAX == sizeof(sockaddr_un::sun_path));
constexpr char kBefore[] = "\0clan1/af/";
constexpr std::size_t kKindAt = sizeof kBefore - 1;

}  // namespace

bool copy_checked(void* to, const void* from, std::size_t n) {
  const iovec target{to, n}, source{const_cast<void*>(from), n};
  const long rc = sys::call(SYS_process_vm_readv, ::getpid(), &target, 1, &source, 1, 0);
  if (rc < 0 && errno != EFAULT) std::memcpy(to, from, n);  // not allowed here: unchecked
  if (rc == static_cast<long>(n) || (rc < 0 && errno != EFAULT)) return true;
  errno = EFAULT;
  return false;
}

ClanName ClanName::random() {
  std::uint64_t dice[2] = {};
  sys::call(SYS_getrandom, dice, sizeof dice, 0);
  ClanName name;
  const int n = std::snprintf(name.text, sizeof name.text, "~%016llx%016llx",
                              static_cast<unsigned long long>(dice[0]),
                              static_cast<unsigned long long>(dice[1]));
  name.size = static_cast<std::size_t>(n);
  return name;
}

bool ClanName::read(const sockaddr* address, socklen_t address_size, int wrong_family,
                    bool (*copy)(void*, const void*, std::size_t)) {
  if (address_size < kFamily || address_size > sizeof(sockaddr_storage))
    return errno = EINVAL, false;
  sockaddr_clan mine{};
  const std::size_t n = std::min<std::size_t>(address_size, sizeof mine);
  if (!copy(&mine, address, n)) return false;
  if (mine.sclan_family != AF_CLAN) return errno = wrong_family, false;
  size = ::strnlen(mine.sclan_name, n - kFamily);
  std::memcpy(text, mine.sclan_name, size);
  return true;
}

int ClanName::write(sockaddr* address, socklen_t* address_size) const {
  socklen_t room = 0;
  if (!copy_checked(&room, address_size, sizeof room)) return -1;
  if (static_cast<int>(room) < 0) return fail(EINVAL);
  sockaddr_clan filled;
  const socklen_t n = form(*this, &filled);
  room = std::min(room, n);
  if (room > 0 && !copy_checked(address, &filled, room)) return -1;
  return copy_checked(address_size, &n, sizeof n) ? 0 : -1;
}

sockaddr_in ClanName::place(unsigned attempt) const {
  const std::uint64_t h = hash(text, size, attempt);
  // Not 127.0.x.y, which is in use, nor an address that ends in 0 or 255.
  const std::uint32_t a = 1 + h % 254, b = h >> 8 & 0xff, c = 1 + (h >> 16) % 254;
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(127u << 24 | a << 16 | b << 8 | c);
  at.sin_port = htons(static_cast<std::uint16_t>(32768 + (h >> 48) % 16384));
  return at;
}

socklen_t ClanName::to_unix(int type, sockaddr_un* address) const {
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path, kBefore, kKindAt);
  address->sun_path[kKindAt] = type == SOCK_DGRAM ? 'd' : 'p';
  address->sun_path[kKindAt + 1] = '/';
  std::memcpy(address->sun_path + kPrefix, text, size);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + kPrefix + size);
}

void ClanName::from_unix(const sockaddr_un& address, socklen_t address_size) {
  constexpr std::size_t kText = offsetof(sockaddr_un, sun_path) + kPrefix;
  size = 0;
  if (address_size <= kText || address.sun_family != AF_UNIX ||
      std::memcmp(address.sun_path, kBefore, kKindAt) != 0 ||
      address.sun_path[kKindAt + 1] != '/') {
    return;
  }
  size = ::strnlen(address.sun_path + kPrefix,
                   std::min<std::size_t>(address_size - kText, CLAN_NAME_MAX));
  std::memcpy(text, address.sun_path + kPrefix, size);
}

void ClanName::fill_in(sockaddr* address, socklen_t room, socklen_t* address_size) const {
  sockaddr_clan filled;
  const socklen_t n = form(*this, &filled);
  std::memcpy(address, &filled, std::min(room, n));
  *address_size = n;
}

}  // namespace clan::preload
