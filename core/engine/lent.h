// Lent bytes: what is larger than the peer's ring stays in the sender's memory until the peer has copied it, once.
//
//     sender                                          receiver
//       exports its bytes, word = {sequence, 0}
//       LentRecord{cookie, sequence} ────ring──────>  recv(): copies into its caller's buffer, as much as that holds
//       waits, and takes part in the peer's copy
//       word = {sequence, taken} <──compare-and-swap─
//       ends when all is taken
//
// The word is the first of the sender's offer line. Whoever changes it first decides: the receiver gives bytes to its
// caller only when it has counted them there, and the sender withdraws the rest by a bit in it, which makes every
// later count fail. So both know the same number of bytes whenever the sender stops waiting: a time-out, a signal, an
// end. What the receiver cannot read it refuses, and it goes through the ring. One lent range at a time in each
// direction: its sender waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "engine/connection.h"

namespace clan::engine {

/// Payload of RecordType::kLent. The cookie's length is the number of bytes.
struct LentRecord {
  RdmaCookie cookie;
  std::uint64_t sequence = 0;
};

/// bits 0..31 bytes taken | 32 withdrawn by the sender | 33 refused by the receiver | 34..63 sequence
struct LentWord {
  std::uint64_t word = 0;

  static constexpr std::uint64_t kWithdrawn = std::uint64_t{1} << 32;
  static constexpr std::uint64_t kRefused = std::uint64_t{1} << 33;
  static constexpr LentWord make(std::uint64_t sequence, std::uint64_t taken) { return {sequence << 34 | taken}; }
  std::uint64_t taken() const { return word & 0xffff'ffff; }
  bool refused() const { return (word & kRefused) != 0; }
  bool of(std::uint64_t sequence) const { return (word ^ sequence << 34) >> 34 == 0; }
};

/// The longest range lent at once.
constexpr std::uint64_t kMostLent = std::uint64_t{1} << 30;

/// The sending side. Thread-safety: the stream's sending thread.
class Lender {
 public:
  explicit Lender(Connection& connection) : c_(connection) {}
  /// Whether so many bytes are lent: through the ring the call would wait for the receiver as well.
  bool lends(std::size_t bytes) const {
    return bytes > c_.ring_bytes() && c_.mapped() && c_.peer_can_copy();
  }
  /// Lends and waits; `*taken` bytes have gone in any case, and no more of them will go. EOPNOTSUPP: the receiver
  /// cannot read them there. ETIMEDOUT, EINTR, EPIPE: the peer is gone.
  Status lend(std::span<const std::byte> bytes, std::uint64_t deadline_ns, std::size_t* taken);

 private:
  std::atomic<std::uint64_t>& word() { return c_.own_offer_word(0); }
  Status wait_taken(std::size_t bytes, std::uint64_t deadline_ns);

  Connection& c_;
  std::uint64_t sequence_ = 0;
};

/// The receiving side. Thread-safety: the stream's receiving thread.
class Borrower {
 public:
  explicit Borrower(Connection& connection) : c_(connection) {}
  ~Borrower() {
    if (open_ && c_.context().usable()) end();
  }
  /// The record at the front of the ring is a lent one. False: it is nonsense.
  bool begin(const shm::RingRecord& record);
  bool open() const { return open_; }
  /// Bytes are there to be taken; false: the sender has withdrawn them.
  bool there() const;
  std::size_t left() const { return length_ - taken_; }
  /// Copies what the buffer holds. 0: the rest does not come this way, withdrawn or refused. ECONNRESET.
  Result<std::size_t> take(std::span<std::byte> buffer);
  /// The record is about to be consumed.
  void end();

 private:
  std::uint64_t expected() const { return LentWord::make(sequence_, taken_).word; }
  int copy(std::span<std::byte> buffer);

  Connection& c_;
  bool open_ = false;
  RdmaCookie cookie_;
  std::uint64_t sequence_ = 0;
  std::size_t length_ = 0, taken_ = 0;
  std::optional<nic::RemoteHandle> handle_;
};

}  // namespace clan::engine
