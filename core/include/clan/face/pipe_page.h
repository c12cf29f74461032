// PipePage: the first page of a pipe's memfd, which tools read as well (clan/face/pipe.h says what
// a pipe is).
//
//      page 0     head | end 0: sender, receiver, face | end 1: sender, receiver, face
//      ring 0     written by end 0, read by end 1 (records of shm/ring.h, at most 16 KB each, which
//                 begin with a PipeStamp)
//      ring 1     written by end 1, read by end 0
//
// A ring is as large as the most that TCP would buffer, and sparse: as long as the reader keeps up,
// its first page is all that is touched; it grows with what has not been read
// (shm/ring.h).
//
// Trust: everything in the memfd is the peer's word as much as ours. Cursors are copied, checked
// and masked before use; a Pipe with impossible contents is `broken` for good.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace clan {

/// When a record was put into a pipe, by the word of its writer: for putting in order what several
/// have written.
///   bits 0..47 order_stamp() | 48..59 and 60..63, n and e: n << e units of 16 before that the
///   thread last wrote past pipes; exact to a two-thousandth, up to a second (2^31 steps of the
///   clock)
struct PipeStamp {
  static constexpr std::uint64_t kTimeMask = (std::uint64_t{1} << 48) - 1;
  static constexpr std::uint64_t kLongAgo = 0xffff;
  static constexpr unsigned kDigits = 12;
  std::uint64_t word = 0;  ///< 0: none

  static PipeStamp make(std::uint64_t now, std::uint64_t last_kernel_write) {
    const std::uint64_t ago = ((now - last_kernel_write) >> 4) + 1;  // rounded up: it was before
    const auto digits = static_cast<unsigned>(std::bit_width(ago));
    unsigned e = digits > kDigits ? digits - kDigits : 0;
    std::uint64_t n = (ago + (std::uint64_t{1} << e) - 1) >> e;
    e += static_cast<unsigned>(n >> kDigits);  // rounded up to one digit more
    n >>= n >> kDigits;
    const std::uint64_t said = std::uint64_t{e} << kDigits | n;
    return {(now & kTimeMask) | (said < kLongAgo ? said : kLongAgo) << 48};
  }
  std::uint64_t time() const { return word & kTimeMask; }
  bool has_kernel_write() const { return word >> 48 != kLongAgo; }  ///< in the last second
  std::uint64_t last_kernel_write() const {
    const std::uint64_t n = word >> 48 & ((1u << kDigits) - 1);
    return (time() - (n << (word >> (48 + kDigits)) << 4)) & kTimeMask;
  }
  /// Times wrap: those of events that wait to be told of lie close together.
  static bool before(std::uint64_t a, std::uint64_t b) {
    return ((a - b) & kTimeMask) > kTimeMask / 2;
  }
};

/// The shared page of a pipe. Plain atomics: tools read it without taking part. Counters never
/// decrease.
struct PipePage {
  static constexpr std::uint64_t kMagic = 0x31657069702d6e63;  // "cn-pipe1"
  /// of this page, with what faces mean by their words
  static constexpr std::uint32_t kVersion = 14;

  /// Written by the creator before anyone else sees it.
  struct Head {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t ring_bytes;
    std::uint64_t created_ns;  ///< CLOCK_REALTIME
    std::uint64_t reserved[4];
    std::atomic<std::uint32_t> broken;  ///< written by the end that finds out
    std::uint32_t pad;
  };
  /// Written by this end when it sends; `waiting` also by the other end, which clears it.
  struct alignas(64) Sender {
    std::atomic<std::uint64_t> tail;  ///< cursors of shm::RingProducer
    std::atomic<std::uint64_t> bound;
    std::atomic<std::uint64_t> consumed;
    std::atomic<std::uint64_t> bytes;     ///< sent
    std::atomic<std::uint64_t> messages;  ///< calls that sent something
    std::atomic<std::uint64_t> look_at;   ///< more of shm::RingProducer
    std::atomic<std::uint64_t> skip_at;
    std::uint32_t pad0;
    std::atomic<std::uint32_t> ended;  ///< 1: half-closed, 2: left
    /// lines of the ring, from line 0 on, that may have memory
    alignas(64) std::atomic<std::uint64_t> touched;
    std::atomic<std::uint64_t> jump_at;      ///< and the rest
    std::atomic<std::uint64_t> jump_gap;     ///< likewise
    std::atomic<std::uint64_t> released_at;  ///< tail when memory was last released
    /// head of this end's receiver when its sender last looked
    std::atomic<std::uint64_t> answered;
    std::atomic<std::uint64_t> rang;  ///< the reader slept; cleared when this end looks
    /// of `bytes`, what a test has been told (); by either end
    std::atomic<std::uint64_t> counted;
    alignas(64) std::atomic<std::uint32_t> waiting;  ///< not 0: ring when there is room
    std::uint32_t pad2;
    std::atomic<std::uint64_t> limit;  ///< bytes; see Pipe::set_limits(). 0: none
    std::uint64_t pad3[6];
  };
  /// Written by this end when it receives; `waiting` as above.
  struct alignas(64) Receiver {
    /// cursors of shm::RingConsumer
    std::atomic<std::uint64_t> head;
    std::uint32_t pad0;
    std::atomic<std::uint32_t> offset;  ///< bytes read of the front record
    std::atomic<std::uint64_t> published;
    std::atomic<std::uint64_t> bytes;  ///< received
    std::uint64_t pad[4];
    alignas(64) std::atomic<std::uint64_t> credit;  ///< lines consumed, for the sender
    std::uint64_t pad1[7];
    /// not 0: ring when there are bytes; see want_data()
    alignas(64) std::atomic<std::uint32_t> waiting;
    std::uint32_t pad2;
    std::atomic<std::uint64_t> limit;  ///< bytes << 1, bit 0: grows with the sender's. 0: none
    std::uint64_t pad3[6];
  };
  /// The owner's of the socket, for what it has to share with its other end. Not looked at here.
  struct alignas(64) Face {
    std::atomic<std::uint64_t> words[16];
  };
  struct End {
    Sender sender;
    Receiver receiver;
    Face face;
  };

  Head head;
  End ends[2];

  /// Where a word of an end's face stands in the memfd.
  static constexpr std::size_t place_of_word(int end, std::uint32_t word);
};
static_assert(sizeof(PipePage) <= 4096);

constexpr std::size_t PipePage::place_of_word(int end, std::uint32_t word) {
  return offsetof(PipePage, ends) + static_cast<std::size_t>(end) * sizeof(End) +
         offsetof(End, face) + word * sizeof(std::uint64_t);
}

}  // namespace clan
