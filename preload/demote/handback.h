// Bytes that an end which goes back to TCP has not read, and gives back to their sender.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/sock_diag.h"
#include "state/socket.h"

namespace clan::preload {

/// Begins the memfd of bytes that were taken out of TCP unread. A process that opens one by
/// another's number sees that it belongs to its connection, and not to one of a process that has
/// that number here.
struct TakenHead {
  std::uint64_t magic = 0x316e656b61746e63;  // "cntaken1"
  std::uint64_t pipe = 0;                    // the inode of its memfd
  bool operator==(const TakenHead&) const = default;
};

constexpr char kTakenName[] = "clan-given-back";
TakenHead head_of(const Socket& s);

/// What the other end, which leaves, has to say of the bytes it has not read.
struct HandedBack {
  std::uint64_t word = 0;
  int memfd = -1;     ///< of those it has taken from TCP
  bool lost = false;  ///< it has taken some, which cannot be had
};

/// What it has said by now.
HandedBack given_back(const Socket& s);

/// The file, by a descriptor of it: pid << 32 | number. -1: it is not to be had.
int file_of_given(const Socket& s, std::uint64_t where);

/// How many bytes this process has put into such a file. None: there is no file.
std::uint64_t bytes_in(int taken);
inline bool has_nothing_back(int taken) { return bytes_in(taken) == 0; }

/// Puts more into it. False: there is no memory.
bool keep(int taken, const char* bytes, std::size_t n);

/// Shows the other end what take_unread() has put into `taken`: it is to send that again, and what
/// lies in the pipe. Where there is nothing it rings no more. False: not for now.
bool give_back(Socket& s, int taken);

/// Takes the other end back to TCP without its help. `taken`: what it sent by TCP and nobody has
/// read. False: that is not to be had.
bool do_their_part(int fd, Socket& s, int taken);

/// A memfd for bytes that are taken from TCP. -1: none is to be had.
int file_for_taken(const Socket& s);

/// Reads what is left of TCP before the other end's switch. True: all of it is in `to`. A peer
/// that says that it switches far ahead and goes on sending is read until the deadline. What cannot
/// be kept resets the connection; without a file nothing is read.
bool take_unread(int fd, Socket& s, int to, std::uint64_t deadline_ns);

}  // namespace clan::preload
