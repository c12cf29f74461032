// Replies by the socket that a connection has besides CLAN: how a server that cannot use CLAN any
// more (the child of a fork) answers, and how the client that waits takes it.
//
//   stream     records of fragments: | last 1 bit, length 31 bits | bytes | ...
//   datagram   a message
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <vector>

#include "rpc.h"

namespace clan::rpc {

bool is_datagram_socket(int fd);

/// Sends one encoded reply. `to`: of a datagram, else ignored. False: it did not go.
bool send_by_socket(int fd, const char* reply, std::size_t bytes, const netbuf* to);

/// Takes what has arrived on a client's socket, piece by piece, until a message is whole. It lives
/// as long as the socket is read: a call may end in the middle of a record, and the next bytes are
/// its rest.
class SocketReply {
 public:
  explicit SocketReply(int fd) : fd_(fd) {}
  enum class State { kNothing, kPart, kWhole, kEnd };
  /// Never waits. kWhole: message() is a reply, until the next call. kEnd: the peer has closed, or
  /// an error. std::bad_alloc: nothing is lost; not behind forget().
  State look();
  std::vector<char>& message() { return message_; }
  /// A part of a record has been read, and its rest has not.
  bool in_the_middle() const { return part_; }
  /// Nobody waits for what has come so far: look() passes over the rest of it, up to kNothing
  /// behind it.
  void forget();

 private:
  State read_stream();
  ssize_t read_mark();
  ssize_t read_fragment();
  int fd_;
  bool part_ = false;  ///< true within a read: a handler of a signal may ask
  bool forgotten_ = false;
  bool last_ = false;
  std::uint32_t left_ = 0;  ///< of the fragment
  unsigned mark_bytes_ = 0;
  unsigned char mark_[4] = {};
  std::vector<char> message_;
};

}  // namespace clan::rpc
