// What processes that send again ask of the kernel and of the pipe, see state/resend_words.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "clan/pipe.h"
#include "state/call_place.h"
#include "state/resend_words.h"
#include "state/socket.h"

namespace clan::preload {

/// The bytes, and the socket.
class ResendSource {
 public:
  static constexpr std::uint64_t kControl = kControlBytes;
  static constexpr std::uint64_t kMost = 16384;  ///< of a step

  /// `fd`: the caller's; `file`: of what the other end had taken from TCP, or -1.
  bool open(int fd, const Socket& s, int file);
  /// `given`: how many bytes are in the file. `alone`: no other process can take the call.
  void begin(std::uint64_t given, bool alone) { given_ = given, alone_ = alone; }
  void close() { theirs_ = Pipe(); }

  bool runs(std::uint64_t owner) const { return condition_of(owner) == Condition::kRuns; }
  bool sent(std::uint64_t* bytes) const;
  /// The bytes from `at` on.
  SentAgain send(std::uint64_t at, Ringer& place);
  /// Of that call.
  std::uint64_t count() const { return count_; }

 private:
  long fetch(std::uint64_t at);

  int fd_ = -1, file_ = -1;
  bool alone_ = false;
  std::uint64_t given_ = 0, count_ = 0;
  Pipe theirs_;
  PipeAside place_;
  char bytes_[kMost];
};

}  // namespace clan::preload
