// The table of descriptors that are AF_CLAN, with the names of streams, which the kernel does not
// know. A program that is executed has the kernel's sockets behind them. A process that has none pays for one load per call.
#pragma once

#include <sys/socket.h>

#include <atomic>

#include "af_clan/af_clan_name.h"

namespace clan::preload {

inline std::atomic<bool> af_clan_used{false};

/// SOCK_STREAM, …; 0: it is not of AF_CLAN.
int af_clan_type(int fd);
inline bool is_af_clan(int fd) {
  return af_clan_used.load(std::memory_order_relaxed) && af_clan_type(fd) != 0;
}
/// Its messages may carry names.
inline bool is_af_clan_packet(int fd) {
  return af_clan_used.load(std::memory_order_relaxed) && af_clan_type(fd) > SOCK_STREAM;
}

/// For a stream.
struct AfClanNames {
  ClanName local, peer;
};
/// Copies, as another thread may close it.
AfClanNames af_clan_names(int fd);
/// Null: as it was.
void remember_af_clan(int fd, const ClanName* local, const ClanName* peer);
/// `fd` is one from now on. False: there is no memory.
bool af_clan_appear(int fd, int type, const AfClanNames& names);

/// As those of descriptors.
void duplicate_af_clan(int from, int to);
void forget_af_clan(int fd);
void forget_af_clan_range(unsigned first, unsigned last);

/// Around fork.
void lock_af_clan();
void unlock_af_clan();
}  // namespace clan::preload
