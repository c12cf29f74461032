// What the other end gave back is sent again, by TCP.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "clan/detail/clock.h"
#include "clan/detail/words.h"
#include "clan/face/pipe.h"
#include "demote/demote_steps.h"
#include "demote/handback.h"
#include "state/resend_words.h"
#include "state/socket.h"
#include "table/open_file.h"

namespace clan::preload {

/// What processes that send again ask of the kernel and of the pipe, see state/resend_words.h: the
/// bytes, and the socket.
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

/// Bytes that have been sent again, in this process.
extern constinit std::atomic<std::uint64_t> bytes_resent;

/// Ten seconds, from the last time that some of it was taken, and thirty in all: a peer that
/// reads a byte now and then does not keep us.
class UntilTaken {
 public:
  static constexpr std::uint64_t kMostNs = 30'000'000'000u;
  bool over() { return over(monotonic_ns(), bytes_resent.load(std::memory_order_relaxed)); }
  /// At that time, when so many have been taken.
  bool over(std::uint64_t now_ns, std::uint64_t bytes) {
    if (most_ns_ == 0) most_ns_ = now_ns + kMostNs;
    if (end_ns_ == 0 || bytes != bytes_) end_ns_ = now_ns + kForOtherEndNs;
    bytes_ = bytes;
    return now_ns >= end_ns_ || now_ns >= most_ns_;
  }

 private:
  std::uint64_t end_ns_ = 0, most_ns_ = 0, bytes_ = 0;
};

/// What was to be sent again has been, or there was none: others may send.
void resent(Socket& s, std::int32_t closer);

/// Says for all processes of this end how much is in the file of what the other end had taken from
/// TCP (-1: none), if none of them has. Before kGone, behind which the other end may close it.
void note_given(int fd, Socket& s, int file);

/// Takes it over from a thread that is dead. False: it lives, or nobody sends again. `closer`: the
/// caller, with OpenFileState::kSendsAgain.
bool take_resend_over(Socket& s, std::int32_t closer, HandedBack* given);

/// Sends it: as much as TCP takes now, and a thread sends the rest. `given`: the memfd of what the
/// other end had taken from TCP, or -1. The sends of the socket are closed by `closer`.
void resend(int fd, Socket& s, int given, std::int32_t closer);

/// Some process of this end sends again. A glance: nothing is taken over.
inline bool is_sent_again(const Socket& s) {
  // PAIR preload.gate: sees what was sent before it was opened
  return s.is_resending() || OpenFileState::is_resend(words::load_acquire(s.open_file().sends));
}

/// What the other end gave back is on its way, by this process or another: nothing may overtake it.
/// Goes on with it in the place of a process that was killed.
bool resends(int fd, Socket& s);

/// Before this process loses its threads, by exit or exec: all that has been given back is on its
/// way when this returns. A peer that does not read for ten seconds, or not all within thirty, sees
/// a reset.
void finish_resends();

/// For fork, and after it in the child: the parent goes on.
void lock_resends();

void unlock_resends();
void resends_forked();

}  // namespace clan::preload
