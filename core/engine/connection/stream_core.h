// StreamCore: a byte stream over a Connection. Records of kData, of which the front one may be read
// in part.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>

#include "engine/connection/connection.h"

namespace clan::engine {

class StreamCore {
 public:
  explicit StreamCore(std::shared_ptr<Connection> connection) : c_(std::move(connection)) {
    chunk_ = std::min(c_->max_payload(), c_->mapped() ? shm::kRingPiece : kPacketsPiece);
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

  Status append(std::span<const std::byte> first, std::span<const std::byte> second, Notify wakes) {
    const std::size_t bytes = first.size() + second.size();
    if (bytes > max_reserve()) [[unlikely]]
      return Error{EMSGSIZE, "more than max_reserve() at once"};
    if (!can_send()) [[unlikely]]
      return send_error();
    if (c_->mapped()) [[likely]] {
      if (c_->append(first, second, RecordType::kData, wakes)) [[likely]]
        return {};
    } else if (std::byte* const room = c_->reserve(bytes); room != nullptr) {
      copy_short(room, first.data(), first.size());
      copy_short(room + first.size(), second.data(), second.size());
      c_->commit(bytes, RecordType::kData, wakes);
      return {};
    }
    return Error{EAGAIN, "no room to send"};
  }

  // Waits for room.
  Result<std::size_t> send(std::span<const std::byte> bytes, std::uint64_t deadline_ns);

  // The front of the ring. 1 = bytes, 0 = nothing yet, -1 = end of stream or error (end_error()).
  int front(Fetch fetch = Fetch::kYes) {
    if (closed_ || !c_->context().usable()) return -1;
    if (left_ > 0) return 1;
    for (bool last_look = false;;) {
      // In place: a copy right after would stall on store forwarding.
      int rc = c_->peek(&record_, fetch);
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
        default:
          record_ = {};
          c_->reset_hostile("a record that is not a stream's");
          return -1;
      }
    }
  }

  // Whether front() may have something to say, without a store.
  bool glance() const {
    return left_ > 0 || !c_->mapped() || c_->readable() || c_->peer_gone() || eof_ || closed_ ||
           !c_->context().usable();
  }

  // After front() < 0.
  Result<std::size_t> end() const;

  const std::byte* front_data() const { return front_end_ - left_; }
  std::size_t front_size() const { return left_; }

  void consume(std::size_t bytes) {
    if (closed_ || !c_->context().usable()) return;
    left_ -= std::min<std::size_t>(bytes, left_);
    if (left_ == 0 && record_.lines != 0) {
      c_->consume(record_);
      record_ = {};
    }
  }

  Result<std::size_t> try_recv(std::span<std::byte> buffer) {
    std::size_t got = 0;
    while (got < buffer.size()) {
      int rc = front();
      if (rc < 0) return got > 0 ? Result<std::size_t>(got) : end();
      if (rc == 0) {
        if (got > 0) return got;
        return Error{EAGAIN, "nothing to receive"};
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
      if (auto s = c_->wait_readable(deadline_ns); !s) return s.error();
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
  /// kRingPiece over packets: two trains at an MTU of 1500
  static constexpr std::uint64_t kPacketsPiece = 118 * 1024;

  std::shared_ptr<Connection> c_;
  std::uint64_t chunk_ = 0;
  shm::RingRecord record_;
  std::size_t left_ = 0;                  ///< unread bytes of record_
  const std::byte* front_end_ = nullptr;  ///< where they end
  bool eof_ = false;
  bool closed_ = false;
};

}  // namespace clan::engine
