// The table of Slots: memory of the processes of an end, which a child of fork() has too, and which
// others find that get a descriptor by exec or SCM_RIGHTS. In the memfd of clan/face/reasons.h.
#pragma once

#include <cstdint>
#include <span>

#include "table/open_file.h"

namespace clan::preload {

/// A socket by what the kernel says of it.
struct SocketIdentity {
  std::uint64_t cookie = 0, inode = 0;
};

/// False: the kernel does not say.
bool identify(int fd, SocketIdentity* id);

/// Takes a slot for a socket that is new in this process. Where there is none to be had, one that
/// is pinned, and that all such sockets share. Under the lock of the pool of Sockets.
OpenFileState* take_slot();

/// This process has the slot no more. Under that lock, too.
void give_back_slot(OpenFileState* slot);

/// take_slot() gives none but the pinned one while the process forks: the child's are counted.
/// Under that lock, too.
void give_no_slots(bool until_fork_is_over);

/// Others can find the slot, by a descriptor of this process.
bool is_findable(const OpenFileState& slot);
/// It is not the one that sockets share which have none in a table.
bool is_in_a_table(const OpenFileState& slot);

/// Behind its slots: the words of clan/face/reasons.h. Null: there is no memory for them.
std::atomic<std::uint64_t>* reason_words();
/// It has been made.
bool has_table();

/// The file is the table of slots of some process.
bool is_slot_table(int memfd);

/// Takes over the table of the program that executed this one. `memfd` passes.
void take_over_table(int memfd);

/// Finds the slot of a socket that others have named by its identity: in the table of the process
/// that made the AF_UNIX socket `through`, of our parent, or of anybody. Null: there is none in
/// this process's pid namespace. What is found is exchange_slot()'s or drop_slot()'s.
OpenFileState* find_slot(int through, const SocketIdentity& id);

/// Finds the slot of that end of a pipe: among tables that came with its descriptor (`memfds`), in
/// that of process `hint`, or of anybody. As find_slot().
OpenFileState* find_slot_of_pipe(pid_t hint, std::uint64_t pipe, int end,
                                 std::span<const int> memfds = {});

/// A slot that was found is not needed any more.
void drop_slot(OpenFileState* slot);

}  // namespace clan::preload
