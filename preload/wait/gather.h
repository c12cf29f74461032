#pragma once

#include <sys/epoll.h>

#include <cstdint>

#include "wait/epoll_set.h"

namespace clan::preload {

/// Returns what one wait answers, without sleeping. Under the lock. `told`: as many events of this
/// call, asked for at `before`, are at `events` from the kernel; <0: it was not asked.
///
///   1  note the time   2  ask the kernel   3  check moved sockets   4  repeat while something
///   found may have happened after 1
///
/// Set::looked is the time of the last 1 whose 2 was answered in full, Set::happened the latest at
/// which something found may have happened. What the kernel may know and we have not seen happened
/// between the two.
///
///   - What 3 found was written at its stamp's time; without a stamp, at any time until now. If the
///     kernel reported a ring, the socket and all before it were written to before 2 ended.
///   - What 2 reported may be newer than 1, and so may what happened before it: 3 follows 2, finds
///     that, and asks for 4.
///   - If the kernel's answer fills its room, it may have more: `looked` stays.
///   - Only the kernel reports a socket that goes back to TCP meanwhile: that happens now.
///
/// If more is ready than there is room for, the kernel and the moved sockets take turns to go
/// first: every descriptor is reported within two rounds of the set.
///
/// `kernel_is_asked_later`: the caller will spin or sleep, and ask the kernel. Then a set whose
/// moved sockets have no news, and of which the kernel last had no other, costs no system call.
///
/// `due_first`: if something is due for a socket, it may hide what came before an event. Then
/// nothing is reported, n events of the kernel stay at `events`, and the answer is -1 - n: the next
/// call, after the lock, gets `told` = n.
int gather(Set& set, epoll_event* events, int most, int told, std::uint64_t before,
           bool kernel_is_asked_later = false, bool due_first = false);

/// Whether the kernel may know events that shared memory does not show.
bool has_plain(const Set& set);

/// Prefetches what a few sockets will be asked for after a report of the kernel. Under the lock.
void fetch_ahead(const Set& set);

}  // namespace clan::preload
