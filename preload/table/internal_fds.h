// The library's own descriptors: pipes, bells, offers. They must never cost the application one.
// They take the upper quarter of the numbers below the soft RLIMIT_NOFILE; when that is full, those
// above the soft limit if the hard limit allows, else the upper half. With a very high limit they
// start lower. When the application is refused a descriptor, those below its limit are closed.
//
// A pipe works without a descriptor, but `clan stat` sees it only in the peer's process.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <type_traits>

#include "clan/face/pipe.h"

namespace clan::preload {

struct Socket;

/// Returns the first internal number under `limit`. It is capped because the kernel's table is as
/// long as the highest number: half a megabyte per process instead of eight.
constexpr int first_internal(int limit) { return std::min(limit / 4 * 3, 48 * 1024); }

/// Moves `fd` to an internal number. -1 with errno: no room, and `fd` is closed. -1 stays -1.
int move_high(int fd);
/// Does the same, but leaves room for pipes: for descriptors that a connection can do without.
int move_high_to_spare(int fd);
/// Moves a pipe's memfd. False: no room, and it is where it was.
bool move_high(Pipe& pipe);
/// Opens the pipe behind a memfd, which ends up with an internal number or closed.
Result<Pipe> open_high(int memfd, int end);
/// The memfd of the table of slots, by which other processes find slots; -1: they cannot.
extern std::atomic<int> passing_memfd;
/// Moves it out of this range of numbers, which others need. If no higher number is free it is
/// closed, and sockets passed later go back to TCP. `closed_by_caller`: the caller closes the old
/// number. False: it was not in the range.
bool move_slots(unsigned first, unsigned last, bool closed_by_caller);

/// Closes the memfd of a pipe, which works on.
void close_descriptor(Socket& s);

/// Whether the number is or was internal.
bool is_ours(int fd);
/// Returns the application's highest descriptor, from /proc, which is slow; -1: unknown.
int highest_of_application();
/// The application is about to close or reuse these numbers: ours among them are ours no longer.
void disown(unsigned first, unsigned last);
/// Closes ours because the application was refused one. True: it may try again.
bool give_up_ours();

/// Calls `call()`, which makes a descriptor, and again if internal ones left it no room.
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
