// Descriptors of our own: pipes, bells, offers. They must never be why the application gets none:
// they are in the upper quarter of the numbers that its soft RLIMIT_NOFILE allows or, when that is
// full, behind the soft limit if the hard one leaves room there, or in the upper half; and when the
// application is refused one, those below its limit go. Where very many are allowed they are lower.
//
// A pipe without a descriptor works on, but `clan stat` sees it only in the process at its other
// end.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <type_traits>

#include "clan/face/pipe.h"

namespace clan::preload {

struct Socket;

/// Where a process may have `limit` descriptors, and no more. The kernel's table of them is as long
/// as the highest number: where a million are allowed, half a megabyte in each process with this
/// one, and not eight.
constexpr int first_internal(int limit) { return std::min(limit / 4 * 3, 48 * 1024); }

/// `fd` with an internal number, and closed where it was. -1 with errno: there is no room, and it
/// is closed. -1 stays -1.
int move_high(int fd);
/// Does the same if that leaves enough for pipes: for descriptors that a connection can do without.
int move_high_to_spare(int fd);
/// A pipe's. False: there is no room, and it is where it was.
bool move_high(Pipe& pipe);
/// The pipe behind a memfd, which ends up with an internal number or closed.
Result<Pipe> open_high(int memfd, int end);
/// The memfd of the table of slots, by which other processes find a slot; -1: they do not.
extern std::atomic<int> passing_memfd;
/// Moves it if its number is one of these, which are needed for something else. Where no number
/// behind them is free it is closed: what would be passed from now on goes back to TCP.
/// `closed_by_caller`: the number is closed by what comes next. False: it is not one of these.
bool move_slots(unsigned first, unsigned last, bool closed_by_caller);

/// The pipe goes on without.
void close_descriptor(Socket& s);

/// It is an internal one, or was.
bool is_ours(int fd);
/// The highest that the application has, as /proc says: it takes long. -1: that is not known.
int highest_of_application();
/// The application is about to close these numbers, or to give them to something else: where they
/// are ours they are not any more.
void disown(unsigned first, unsigned last);
/// The application has been refused one. True: it may try again, as ours are closed.
bool give_up_ours();

/// `call()`, which makes a descriptor, and again if it was refused one because of internal ones.
template <typename Call>
auto with_room(Call&& call) {
  auto result = call();
  if constexpr (std::is_same_v<decltype(result), int>) {
    if (result < 0 && errno == EMFILE && give_up_ours()) result = call();
  } else {
    if (result == nullptr && errno == EMFILE && give_up_ours()) result = call();
  }
  return result;
}

}  // namespace clan::preload
