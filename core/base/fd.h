// Fd: an owned file descriptor, and the few system calls on descriptors that CLAN needs.
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

/// Forbids further seals, by which a holder could harm the memfd's other users. May be repeated.
Status seal_seals(int memfd);

/// An eventfd with counter 0, non-blocking.
Result<Fd> create_eventfd();

/// Returns false for what a peer passed instead of an eventfd and what a write would hurt: a pipe,
/// a socket, a file. (An eventfd has no file type; whatever else has none refuses the write.)
bool may_be_eventfd(int fd);

/// Adds 1 to an eventfd's counter. Blocks only if a peer that shares it races with us on purpose.
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

/// Sends one datagram with up to kMaxPassedFds descriptors and no SIGPIPE. EAGAIN.
Status send_datagram(int socket, std::span<const std::byte> bytes, std::span<const int> fds);

/// Receives one datagram. EAGAIN: there is none, or the kernel has no memory to hand it out, so it
/// stays where it is. EMSGSIZE: it is longer than `bytes` or brings more than kMaxPassedFds.
Result<Datagram> receive_datagram(int socket, std::span<std::byte> bytes);

/// Makes a listening abstract AF_UNIX SOCK_SEQPACKET socket: the name goes with the last
/// descriptor. A name with a leading slash is a file's, for other network namespaces: it stays
/// until someone unlinks it, or binds to it when nobody listens there.
Result<Fd> listen_abstract(std::string_view name);

/// Ends a listener at a file and removes the file, unless another listener has it by now.
void end_listener(int fd, const std::string& file);

/// Connects to one. ECONNREFUSED: nobody listens; ETIMEDOUT: the listener made no room by the
/// deadline (CLOCK_MONOTONIC, or kNoDeadline); EAGAIN: a deadline of 0, which does not wait.
Result<Fd> connect_abstract(std::string_view name, std::uint64_t deadline_ns);

/// The process at the other end, by the kernel's word.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};
Result<PeerCredentials> peer_credentials(int socket);

}  // namespace clan
