// Fd: an owned file descriptor, and the few system calls on descriptors that CLAN needs.
//
// Every descriptor made here is close-on-exec. Thread-safety: as an int (one owner at a time).
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "clan/result.h"

namespace clan {

/// Owns one descriptor; closes it on destruction.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

/// A second descriptor for the same open file.
Result<Fd> duplicate(int fd);

/// An anonymous file of `bytes`, sealed against resizing. Nothing of it is left after a crash.
Result<Fd> create_memfd(const char* name, std::size_t bytes);

/// Forbids any further writable mapping of a memfd; mappings that exist stay writable.
Status seal_future_write(int memfd);

/// Forbids any further seal, or a holder of the descriptor could seal the memfd against its other
/// users. Once or more often.
Status seal_seals(int memfd);

/// An eventfd with counter 0, non-blocking.
Result<Fd> create_eventfd();

/// False for what a peer passed instead of an eventfd and what would hurt when it is written to: a
/// pipe, a socket, a file. (An eventfd has no type of file; what else has none refuses to be
/// written.)
bool may_be_eventfd(int fd);

/// Adds 1 to an eventfd's counter. Does not block unless a peer that shares it races with us on
/// purpose.
void signal_eventfd(int fd);

/// Sets an eventfd's counter to 0. Does not block either.
void drain_eventfd(int fd);

/// Passed with a datagram by SCM_RIGHTS.
constexpr std::size_t kMaxPassedFds = 4;

/// What receive_datagram() found.
struct Datagram {
  std::size_t bytes = 0;  ///< 0 = the peer closed the socket
  std::array<Fd, kMaxPassedFds> fds;
  std::size_t fd_count = 0;
  bool fds_lost = false;  ///< there were more, for which this process had no room (RLIMIT_NOFILE)
};

/// Sends one datagram with up to kMaxPassedFds descriptors on a SOCK_SEQPACKET socket. Never raises
/// SIGPIPE.
Status send_datagram(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                     bool may_block);

/// Receives one datagram. EAGAIN when there is none and `may_block` is false, and when the kernel
/// has no memory to hand it out: it stays where it is. EMSGSIZE when it is longer than `bytes` or
/// brings more than kMaxPassedFds.
Result<Datagram> receive_datagram(int socket, std::span<std::byte> bytes, bool may_block);

/// A listening abstract AF_UNIX SOCK_SEQPACKET socket: the name vanishes with the last descriptor.
/// One that begins with a slash is a file's, for other network namespaces: it stays until somebody
/// unlinks it, or binds to it when nobody listens there.
Result<Fd> listen_abstract(std::string_view name);

/// Ends a listener at a file and removes the file, unless another listener has it by now.
void end_listener(int fd, const std::string& file);

/// Connects to one. ECONNREFUSED when nobody listens; ETIMEDOUT when the listener has not made room
/// for us until the deadline (CLOCK_MONOTONIC, kNoDeadline = wait for ever); EAGAIN with a deadline
/// of 0, which does not wait.
Result<Fd> connect_abstract(std::string_view name, std::uint64_t deadline_ns);

/// The process at the other end, by the kernel's word.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};
Result<PeerCredentials> peer_credentials(int socket);

}  // namespace clan
