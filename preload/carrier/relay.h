// Relay: one connection by a name of AF_CLAN of another host. The program has one end of a TCP
// connection inside this host, the relay has the other one, and hands on bytes between it and a
// stream of the engine.
//
//   program == TCP == Relay ===== stream ===== Relay == TCP == program
//
// To the kernel the program's end is a socket as any other: fork, exec and SCM_RIGHTS may do with
// it what they do, as long as the process that has the relay lives. When that ends before the
// connection has, both other ends are reset: bytes may be missing.
//
// Of one thread.
#pragma once

#include <clan/stream.h>

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace clan::preload {

class Relay {
 public:
  /// `fd`: connected, does not wait, and is the relay's from now on.
  Relay(int fd, Stream&& stream);
  /// Either end that has not heard the other's end is reset.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  enum class Turn {
    kWaits,  ///< for either end
    kMore,   ///< it has given others their turn
    kOver,
  };
  Turn serve();
  /// The process ends, and its program sends nothing any more. True: nothing is left to be handed
  /// on, and the other host has been told of the end.
  bool finish();
  int fd() const { return fd_; }
  Stream& stream() { return stream_; }

 private:
  struct Way {
    std::vector<std::byte> bytes;
    std::size_t begin = 0, end = 0;
    bool read_all = false;  ///< the end has been read
    bool told = false;      ///< and told
    bool empty() const { return begin == end; }
    std::span<const std::byte> left() const { return std::span(bytes).subspan(begin, end - begin); }
  };
  bool send_out();
  bool take_in();
  void drop();
  bool is_over() const { return failed_ || (in_.told && (out_.told || deaf_)); }

  const int fd_;
  Stream stream_;
  Way out_, in_;                        ///< to the other host, and from it
  bool failed_ = false, deaf_ = false;  ///< deaf: the other host takes nothing more
  std::size_t dropped_ = 0;             ///< bytes that it did not take
};

}  // namespace clan::preload
