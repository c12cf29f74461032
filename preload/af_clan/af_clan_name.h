// Names of AF_CLAN in their forms: sockaddr_clan for the application, and the addresses of the
// kernel's sockets, which all processes of a host share: another form needs another "clan1".
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>

#include "clan/af_clan.h"

namespace clan::preload {

/// Copies by the kernel, so that bad memory of the application is EFAULT and no crash.
bool copy_checked(void* to, const void* from, std::size_t n);

struct ClanName {
  std::size_t size = 0;  ///< 0: none
  char text[CLAN_NAME_MAX] = {};

  bool empty() const { return size == 0; }
  /// Makes a name that nobody has had.
  static ClanName random();

  /// Reads an address by `copy(to, from, n)`. False, with EINVAL, `wrong_family` or its errno.
  bool read(const sockaddr* address, socklen_t address_size, int wrong_family,
            bool (*copy)(void*, const void*, std::size_t) = copy_checked);
  /// Writes as much as fits; `*address_size` becomes the whole size. 0, or -1 with errno.
  int write(sockaddr* address, socklen_t* address_size) const;

  /// Returns a place of a stream's name, the `attempt`th that it may have.
  static constexpr unsigned kPlaces = 4;
  sockaddr_in place(unsigned attempt) const;

  /// Convert names of SOCK_SEQPACKET and SOCK_DGRAM. A name that is not AF_CLAN's reads as none.
  socklen_t to_unix(int type, sockaddr_un* address) const;
  void from_unix(const sockaddr_un& address, socklen_t address_size);
  /// Fills in the address of a message, without checking the application's memory.
  void fill_in(sockaddr* address, socklen_t room, socklen_t* address_size) const;
};

}  // namespace clan::preload
