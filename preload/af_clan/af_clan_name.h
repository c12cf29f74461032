// Names of AF_CLAN, and their forms: sockaddr_clan as the application has it, and the addresses of
// the kernel's sockets behind them. The latter are shared by all processes of a host: changing them
// needs another "clan1".
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>

#include "clan/af_clan.h"

namespace clan::preload {

struct ClanName {
  std::size_t size = 0;  ///< 0: none
  char text[CLAN_NAME_MAX] = {};

  bool empty() const { return size == 0; }
  /// One that nobody has had.
  static ClanName random();

  /// False with EINVAL, EFAULT or `wrong_family`.
  bool read(const sockaddr* address, socklen_t address_size, int wrong_family);
  /// As much as there is room for; `*address_size` becomes what it takes. 0, or -1 with errno.
  int write(sockaddr* address, socklen_t* address_size) const;

  /// The stream's place, the `attempt`th it may have.
  static constexpr unsigned kPlaces = 4;
  sockaddr_in place(unsigned attempt) const;

  /// Converts names of SOCK_SEQPACKET and SOCK_DGRAM. A name that is not the library's reads as
  /// none.
  socklen_t to_unix(int type, sockaddr_un* address) const;
  void from_unix(const sockaddr_un& address, socklen_t address_size);
  /// Fills in the address of a message. Uses the application's memory unchecked, as the C library
  /// does.
  void fill_in(sockaddr* address, socklen_t room, socklen_t* address_size) const;
};

}  // namespace clan::preload
