// Slots of sockets that are passed on, in memory that the receivers find.
#pragma once

#include <atomic>
#include <cstdint>

#include "state/open_file.h"

namespace clan::preload {

/// Of one socket.
struct alignas(128) SlotEntry {
  Slot slot;
  std::atomic<std::uint64_t> cookie;  // SO_COOKIE
  std::atomic<std::uint64_t> inode;   // of the socket
  // the inode of the pid namespace: locks of a pipe hold thread ids
  std::atomic<std::uint64_t> pids;
  std::atomic<std::uint32_t> client;
};

static_assert(sizeof(SlotEntry) == 256);

/// By what the kernel says of a socket.
struct SocketIdentity {
  std::uint64_t cookie = 0, inode = 0, pids = 0;
};

/// False: the kernel does not say.
bool identify(int fd, SocketIdentity* id);

/// This process has a table that others can find.
bool has_findable_table();

/// One of our own table that nobody has, or null.
SlotEntry* new_entry();

/// Behind its slots: the words of clan/reasons.h. Null: there is no memory for them.
std::atomic<std::uint64_t>* reason_words();
/// It has been made.
bool has_table();

/// The slot is where receivers can find it.
bool is_passable(const Slot* slot);

/// By the process that made the AF_UNIX socket, our parent, or anybody.
SlotEntry* find_entry(int through, const SocketIdentity& id);

}  // namespace clan::preload
