// What one wait answers, without sleeping.
#pragma once

#include <sys/epoll.h>

#include <cstdint>

#include "wait/epoll_set.h"

namespace clan::preload {

/// What one wait answers, without sleeping. Under the lock. `told`: so many events stand at
/// `events` that the kernel has answered in this call, asked at `before`; <0: it has not been
/// asked.
///
///   1  note the time   2  ask the kernel   3  check what has moved   4  again, as long as
///   something that has been found may have happened after 1
///
/// Set::looked is the 1 of the last time that 2 was answered in full, Set::happened the latest time
/// at which something that has been found may have happened. What the kernel may know and we have
/// not seen has happened between the two.
///
///   - What 3 has found was written at the time of its stamp; without one, at any time until now. A
///     socket for which the kernel has reported a ring was written to before 2 ended, and so
///     was all that was written before.
///   - What the kernel reported in 2 may be newer than 1, and so may be what happened before it: 3
///     finds that, as it comes after 2, and asks for 4 itself.
///   - When the kernel fills the room it was given, more may wait behind: `looked` stays where it
///     was.
///   - Of a socket that goes back to TCP meanwhile only the kernel tells from then on: that happens
///     now.
///
/// More may be ready than there is room for. Then the kernel comes first in one call, and what has
/// migrated in the next: so every descriptor is reported within two rounds of the set.
///
/// `kernel_is_asked_later`: the caller goes on to spin or to sleep, and asks the kernel there. Then
/// a set in which nothing that has moved has news, and of which the kernel had nothing else to tell
/// last time, costs no system call here.
///
/// `due_first`: where something is due for a socket, it may hide what came before an event: nothing
/// is reported then. What the kernel has answered meanwhile is left at `events`, and the answer is
/// -1 - its number: it is `told` of the next call, behind the lock.
int gather(Set& set, epoll_event* events, int most, int told, std::uint64_t before,
           bool kernel_is_asked_later = false, bool due_first = false);

/// The kernel may know of events that shared memory does not show.
bool has_plain(const Set& set);

/// The kernel has reported something: what a few of the sockets will be asked for comes into the
/// cache. Under the lock.
void fetch_ahead(const Set& set);

}  // namespace clan::preload
