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

/// Takes what has arrived on a client's socket, piece by piece, until a message is whole.
class SocketReply {
 public:
  explicit SocketReply(int fd) : fd_(fd) {}
  enum class State { kNothing, kPart, kWhole, kEnd };
  /// Never waits. kWhole: message() is a reply, until the next call. kEnd: the peer has closed, or
  /// an error.
  State look();
  std::vector<char>& message() { return message_; }

 private:
  State read_stream();
  int fd_;
  bool part_ = false;
  bool last_ = false;
  std::uint32_t left_ = 0;  ///< of the fragment
  unsigned mark_bytes_ = 0;
  unsigned char mark_[4] = {};
  std::vector<char> message_;
};

}  // namespace clan::rpc
