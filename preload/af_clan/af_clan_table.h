// The table of descriptors that are AF_CLAN, with the names of streams, which the kernel does not
// know. It survives fork and exec. A process without any pays for one load per call.
#pragma once

#include <sys/socket.h>

#include <atomic>

#include "af_clan/af_clan_name.h"

namespace clan::preload {

inline std::atomic<bool> af_clan_used{false};

/// Returns SOCK_STREAM, …; 0: not AF_CLAN.
int af_clan_type(int fd);
inline bool is_af_clan(int fd) {
  return af_clan_used.load(std::memory_order_relaxed) && af_clan_type(fd) != 0;
}
inline bool is_af_clan_packet(int fd) {
  return af_clan_used.load(std::memory_order_relaxed) && af_clan_type(fd) > SOCK_STREAM;
}

struct AfClanNames {
  ClanName local, peer;
};
/// Copies a stream's names, as another thread may close it.
AfClanNames af_clan_names(int fd);
/// Sets a stream's names. Null: unchanged.
void remember_af_clan(int fd, const ClanName* local, const ClanName* peer);
/// Enters `fd`. False: no memory.
bool af_clan_appear(int fd, int type, const AfClanNames& names);

/// Follow dup() and close().
void duplicate_af_clan(int from, int to);
void forget_af_clan(int fd);
void forget_af_clan_range(unsigned first, unsigned last);

/// Enclose fork.
void lock_af_clan();
void unlock_af_clan();

/// For exec: returns "CLAN_INHERITED_NAMES=…", or nullptr if there is nothing to say. One thread.
char* af_clan_inheritance();
void af_clan_take_over();

}  // namespace clan::preload
