// The table of slots: memory that the processes of an end share, also over fork(). A process that
// receives a descriptor (SCM_RIGHTS, pidfd_getfd()) finds it in clan/face/reasons.h's memfd.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "table/open_file.h"

namespace clan::preload {

/// The kernel's identity of a socket.
struct SocketIdentity {
  std::uint64_t cookie = 0, inode = 0;
};

/// Fills in the identity. False: the kernel does not give it.
bool identify(int fd, SocketIdentity* id);

/// Names the slot after its socket `fd`, for other processes. False: the kernel does not give it.
bool name_slot(int fd, OpenFileState& slot);

/// Takes a slot for a new socket; if there is none, a pinned one that such sockets share. This and
/// the next three are called under the pool's lock.
OpenFileState* take_slot();

/// Gives up this process's slot.
void give_back_slot(OpenFileState* slot);

/// Makes take_slot() return only the pinned one during a fork, as the child's slots are counted.
void give_no_slots(bool until_fork_is_over);
bool gives_slots();

/// False for the pinned slot that sockets share.
bool is_in_a_table(const OpenFileState& slot);

/// Returns the words of clan/face/reasons.h behind the slots; null if there is no memory.
std::atomic<std::uint64_t>* reason_words();
bool has_table();

/// Finds a socket's slot by its name, in the table of this process, of process `hint` (0: unknown),
/// of our parent or of any process. Null: none in this pid namespace. The result goes to
/// exchange_slot() or drop_slot().
OpenFileState* find_slot(const SocketIdentity& id, pid_t hint);

/// Drops a found slot.
void drop_slot(OpenFileState* slot);

}  // namespace clan::preload
