// StreamCore: a byte stream over a Connection. Records of kData, of which the front one may be read in part, and of
// kLent, whose bytes lie with the sender (lent.h).
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "engine/connection.h"
#include "engine/lent.h"

namespace clan::engine {

// A byte stream: records of kData, of which the front one may be read in part.
class StreamCore {
 public:
  explicit StreamCore(std::shared_ptr<Connection> connection)
      : c_(std::move(connection)), lender_(*c_), borrower_(*c_) {
    chunk_ = std::min(c_->max_payload(), shm::kRingPiece);
  }

  Connection& connection() { return *c_; }
  std::size_t max_reserve() const { return c_->max_payload(); }

  Status send_error() const {
    if (!c_->context().usable()) return unusable_error();
    int reason = c_->reset_reason();
    if (reason != 0 && !closed_) return Error{reason, "the connection was reset"};
    return Error{EPIPE, "the stream is closed for sending"};
  }

  bool can_send() const {
    return !closed_ && !c_->finished() && !c_->peer_gone() && c_->context().usable();
  }

  // Sends what fits now; the count of bytes, possibly 0.
  Result<std::size_t> send_some(std::span<const std::byte> bytes) {
    std::size_t sent = 0;
    while (sent < bytes.size()) {
      if (!can_send()) {
        if (sent > 0) break;
        return send_error().error();
      }
      const std::size_t n = std::min<std::size_t>(bytes.size() - sent, chunk_);
      std::byte* room = c_->reserve(n);
      if (room == nullptr) break;
      std::memcpy(room, bytes.data() + sent, n);
      c_->commit(n, RecordType::kData);
      sent += n;
    }
    return sent;
  }

  // Waits for room.
  Result<std::size_t> send(std::span<const std::byte> bytes, std::uint64_t deadline_ns);
  // The same, where what is larger than the ring is lent.
  Result<std::size_t> send_lent(std::span<const std::byte> bytes, std::uint64_t deadline_ns);

  // The front of the ring. 1 = bytes, or lent ones, 0 = nothing yet, -1 = end of stream or error (end_error()).
  int front() {
    if (closed_ || !c_->context().usable()) return -1;
    if (left_ > 0) return 1;
    if (borrower_.open()) [[unlikely]] {
      if (borrower_.there()) return 1;
      end_lent();
    }
    for (bool last_look = false;;) {
      int rc = c_->peek(&record_);  // in place: a copy right after would stall on store forwarding
      if (rc < 0) return -1;
      if (rc == 0) {
        if (eof_) return -1;
        if (!c_->peer_gone()) return 0;
        if (last_look) return -1;
        last_look = true;  // what it wrote before it went is visible now
        continue;
      }
      switch (static_cast<RecordType>(record_.head.type())) {
        case RecordType::kFin:
          eof_ = true;
          c_->consume(record_);
          record_ = {};
          return -1;
        case RecordType::kData:
          left_ = record_.head.length();
          front_end_ = record_.payload + left_;
          if (left_ > 0 && !eof_) return 1;
          if (left_ == 0) {  // nobody sends one, and a ring full of them would have no end
            record_ = {};
            c_->reset_hostile("an empty record");
            return -1;
          }
          c_->consume(record_);
          record_ = {};
          left_ = 0;
          continue;
        case RecordType::kLent:
          if (borrower_.begin(record_) && !eof_ && ++withdrawn_ <= kMostWithdrawn) {
            if (borrower_.there()) return 1;
            end_lent();
            continue;
          }
          [[fallthrough]];
        default:
          record_ = {};
          c_->reset_hostile("a record that is not a stream's");
          return -1;
      }
    }
  }

  // After front() < 0.
  Result<std::size_t> end() const;

  const std::byte* front_data() const { return front_end_ - left_; }
  std::size_t front_size() const { return left_; }

  void consume(std::size_t bytes) {
    if (closed_ || !c_->context().usable()) return;
    left_ -= std::min<std::size_t>(bytes, left_);
    if (left_ == 0 && record_.lines != 0 && !borrower_.open()) {
      c_->consume(record_);
      record_ = {};
    }
  }

  // For peek(), after front() > 0 without front_size(): fetches some of the lent bytes. False: they were withdrawn.
  Result<bool> fetch_lent();

  Result<std::size_t> try_recv(std::span<std::byte> buffer) {
    std::size_t got = 0;
    while (got < buffer.size()) {
      int rc = front();
      if (rc < 0) return got > 0 ? Result<std::size_t>(got) : end();
      if (rc == 0) {
        if (got > 0) return got;
        return Error{EAGAIN, "nothing to receive"};
      }
      if (left_ == 0) [[unlikely]] {  // what is lent goes straight to where it is wanted
        if (got > 0) return got;
        auto taken = take_lent(buffer);
        if (!taken || *taken > 0) return taken;
        continue;
      }
      const std::size_t n = std::min(left_, buffer.size() - got);
      std::memcpy(buffer.data() + got, front_data(), n);
      consume(n);
      got += n;
    }
    return got;
  }

  Status wait_readable(std::uint64_t deadline_ns) {
    if (front() != 0) return c_->context().usable() ? Status() : Status(unusable_error());
    return c_->wait_readable(deadline_ns);
  }

  Result<std::size_t> recv(std::span<std::byte> buffer, std::uint64_t deadline_ns) {
    if (buffer.empty()) return std::size_t{0};
    for (;;) {
      auto n = try_recv(buffer);
      if (n.ok()) return *n;  // not `n`: a Result just made is slow to copy
      if (n.error().err != EAGAIN) return n.error();
      if (auto s = wait_readable(deadline_ns); !s) return s.error();
    }
  }

  Status shutdown_send(std::uint64_t deadline_ns) {
    return closed_ ? Status() : c_->finish(deadline_ns);
  }

  void close() {
    if (closed_) return;
    closed_ = true;
    // A full ring must not make close wait: the out-of-band close ends the stream as well.
    (void)c_->finish(0);
    c_->close();
  }

 private:
  static constexpr unsigned kMostWithdrawn = 1u << 20;  ///< lent ranges in a row; more than any ring holds

  Result<std::size_t> take_lent(std::span<std::byte> buffer);
  void end_lent();

  std::shared_ptr<Connection> c_;
  Lender lender_;
  Borrower borrower_;
  std::uint64_t chunk_ = 0;
  shm::RingRecord record_;
  std::size_t left_ = 0;  ///< unread bytes at the front: of record_, or of fetched_
  const std::byte* front_end_ = nullptr;  ///< where they end
  std::vector<std::byte> fetched_;        ///< lent ones that peek() has been asked for
  unsigned withdrawn_ = 0;                ///< lent ranges since some of one was taken
  bool eof_ = false;
  bool closed_ = false;
};

}  // namespace clan::engine
