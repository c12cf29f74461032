// What processes that send again ask of the kernel and of the pipe, see state/resend_words.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "clan/face/pipe.h"
#include "state/resend_words.h"
#include "state/socket.h"

namespace clan::preload {

/// The bytes, and the socket.
class ResendSource {
 public:
  static constexpr std::uint64_t kMost = 16384;  ///< of a step

  /// `bytes`: memory for kMost.
  explicit ResendSource(char* bytes) : bytes_(bytes) {}

  /// `fd`: the caller's; `file`: of what the other end had taken from TCP, or -1.
  void open(int fd, int file) { fd_ = fd, file_ = file; }
  /// And behind it what is in the other end's pipe.
  bool open_pipe(const Socket& s);
  /// `given`: how many bytes are in the file.
  void begin(std::uint64_t given) { given_ = given; }
  void close() { theirs_ = Pipe(); }

  bool sent(std::uint64_t* bytes) const;
  /// The bytes from `at` on.
  SentAgain send(std::uint64_t at);
  /// The bytes of that call.
  std::uint64_t count() const { return count_; }

 private:
  long fetch(std::uint64_t at);

  int fd_ = -1, file_ = -1;
  std::uint64_t given_ = 0, count_ = 0;
  Pipe theirs_;
  PipeAside place_;
  char* const bytes_;
};

}  // namespace clan::preload
