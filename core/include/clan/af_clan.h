/* AF_CLAN: sockets by name, for C and C++ programs that run under `clan run`.
 *
 *   int fd = socket(AF_CLAN, SOCK_STREAM, 0);           also SOCK_SEQPACKET and SOCK_DGRAM
 *   struct sockaddr_clan address;
 *   socklen_t size = clan_address(&address, "jobs");
 *   bind(fd, (struct sockaddr*)&address, size);         or connect, sendto, …
 *
 * Everything else is the socket API as it is: listen, accept, getsockname, poll, fork, dup. This
 * header is all a program needs; it links with nothing. In a process without the interposer
 * socket() fails with EAFNOSUPPORT, by the kernel's word. What names mean and which users may have
 * them: docs/interposition.md, "AF_CLAN".
 */
#ifndef CLAN_AF_CLAN_H_
#define CLAN_AF_CLAN_H_

#include <string.h>
#include <sys/socket.h>

#define AF_CLAN 0x434c /* "CL"; far above every family of the kernel */
#define PF_CLAN AF_CLAN
#define CLAN_NAME_MAX 96

/* The name ends at the first zero byte, or with the address. An address without a name has the size
 * of its family: bind() then finds a name that nobody has. */
struct sockaddr_clan {
  sa_family_t sclan_family; /* AF_CLAN */
  char sclan_name[CLAN_NAME_MAX];
};

/* Fills in an address; its size, or 0 when the name is longer than CLAN_NAME_MAX. */
static inline socklen_t clan_address(struct sockaddr_clan* address, const char* name) {
  const size_t length = strlen(name);
  memset(address, 0, sizeof *address);
  if (length > CLAN_NAME_MAX) return 0;
  address->sclan_family = AF_CLAN;
  memcpy(address->sclan_name, name, length);
  return (socklen_t)(sizeof address->sclan_family + length +
                     (length > 0 && length < CLAN_NAME_MAX));
}

/* The name in an address that accept(), getsockname(), recvfrom() or their like have filled in,
 * with a zero byte behind it; its length. Empty when there is none, or when the address is of
 * another family. */
static inline size_t clan_name(const struct sockaddr_clan* address, socklen_t size,
                               char name[CLAN_NAME_MAX + 1]) {
  size_t room = 0, length = 0;
  if (size > sizeof address->sclan_family && address->sclan_family == AF_CLAN) {
    room = size - sizeof address->sclan_family;
    if (room > CLAN_NAME_MAX) room = CLAN_NAME_MAX;
  }
  while (length < room && address->sclan_name[length] != 0) ++length;
  memcpy(name, address->sclan_name, length);
  name[length] = 0;
  return length;
}

#endif
