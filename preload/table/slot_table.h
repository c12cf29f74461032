// The table of Slots: memory of the processes of an end, which a child of fork() has too. A process
// that receives a descriptor by SCM_RIGHTS, or takes one by pidfd_getfd(), finds it. In the memfd of
// clan/face/reasons.h.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "table/open_file.h"

namespace clan::preload {

/// A socket by what the kernel says of it.
struct SocketIdentity {
  std::uint64_t cookie = 0, inode = 0;
};

/// False: the kernel does not say.
bool identify(int fd, SocketIdentity* id);

/// Names the slot by its socket `fd`, so that other processes find it. False: the kernel does not
/// say.
bool name_slot(int fd, OpenFileState& slot);

/// Takes a slot for a socket that is new in this process. Where there is none to be had, one that
/// is pinned, and that all such sockets share. Under the lock of the pool of Sockets.
OpenFileState* take_slot();

/// This process has the slot no more. Under that lock, too.
void give_back_slot(OpenFileState* slot);

/// take_slot() gives none but the pinned one while the process forks: the child's are counted.
/// Under that lock, too.
void give_no_slots(bool until_fork_is_over);
bool gives_slots();

/// It is not the one that sockets share which have none in a table.
bool is_in_a_table(const OpenFileState& slot);

/// Behind its slots: the words of clan/face/reasons.h. Null: there is no memory for them.
std::atomic<std::uint64_t>* reason_words();
/// It has been made.
bool has_table();

/// Finds the slot of a socket by its name: in the table of this process, of process `hint` (0: not
/// known), of our parent, or of anybody. Null: there is none in this process's pid namespace. What
/// is found is exchange_slot()'s or drop_slot()'s.
OpenFileState* find_slot(const SocketIdentity& id, pid_t hint);

/// A slot that was found is not needed any more.
void drop_slot(OpenFileState* slot);

}  // namespace clan::preload
