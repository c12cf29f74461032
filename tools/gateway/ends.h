// The two kinds of ends that bytes go between: sockets, which the interposer may have moved to
// shared memory, and native streams. Nothing here waits.
#pragma once

#include <clan/stream.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace clan::gateway {

using Bytes = std::span<const std::byte>;

/// Other answers of recv and send than a number of bytes.
constexpr ssize_t kNotNow = -1, kGone = -2;

/// A socket that closes itself, and what an epoll set watches of it.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), watched_(std::exchange(other.watched_, kUnwatched)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

  ssize_t recv(std::span<std::byte> to);  // 0: the other end sends no more
  ssize_t send(Bytes bytes);
  /// Tells the other end that there is no more. False: not now.
  bool shutdown_send();
  void close();
  /// The other end sees a reset.
  void reset();

  /// Has `set` watch for these events; the data of an event is `tag`.
  void watch(int set, std::uint32_t events, std::uint64_t tag);
  void unwatch(int set);

  static constexpr std::uint32_t kUnwatched = ~0u;

 private:
  int fd_ = -1;
  std::uint32_t watched_ = kUnwatched;
};

/// A stream as an end.
class NativeEnd {
 public:
  explicit NativeEnd(Stream& stream) : stream_(stream) {}
  Stream& stream() { return stream_; }
  ssize_t recv(std::span<std::byte> to);
  ssize_t send(Bytes bytes);
  bool shutdown_send();

 private:
  Stream& stream_;
};

}  // namespace clan::gateway
