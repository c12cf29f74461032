// One direction of a connection: bytes from an end to the other one, then the end of them.
//
//   socket -> socket    recv into the loop's buffer, send; what is not taken is held
//   socket -> stream    reserve, recv into the ring, commit
//   stream -> socket    peek, send from the ring, consume
//
// Only `held` stays with the gateway, at most a buffer of it: while there is some the source is not
// read. So a slow reader costs that, and the source feels it.
#pragma once

#include <algorithm>
#include <string>

#include "ends.h"

namespace clan::gateway {

struct Direction {
  std::string held;      ///< has been read, or is a header; goes first
  bool ended = false;    ///< the source sends no more
  bool closed = false;   ///< and the other end knows it
  bool blocked = false;  ///< the other end has no room
  std::uint64_t bytes = 0;
};

enum class Flow {
  kWaits,   ///< for either end
  kMore,    ///< may go on at once; others come first
  kBroken,  ///< an end has gone without good order
};

/// What a step of a direction came to: a number of bytes, or one of these.
enum class Step { kMoved, kDry, kFull, kEnd, kBroken };

inline Bytes bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline Step no_bytes(ssize_t n) {
  if (n == 0) return Step::kEnd;
  return n == kNotNow ? Step::kDry : Step::kBroken;
}

inline Step step(Socket& from, Socket& to, Direction& way, std::span<std::byte> buffer) {
  const ssize_t n = from.recv(buffer);
  if (n <= 0) return no_bytes(n);
  const Bytes got = buffer.first(static_cast<std::size_t>(n));
  way.bytes += got.size();
  const ssize_t sent = to.send(got);
  if (sent == kGone) return Step::kBroken;
  const std::size_t taken = sent == kNotNow ? 0 : static_cast<std::size_t>(sent);
  if (taken < got.size()) {
    way.held.assign(reinterpret_cast<const char*>(got.data()) + taken, got.size() - taken);
    return Step::kFull;
  }
  // The set reports what has come behind a short read.
  return got.size() < buffer.size() ? Step::kDry : Step::kMoved;
}

inline Step step(Socket& from, NativeEnd& to, Direction& way, std::span<std::byte> buffer) {
  const auto room = to.stream().reserve(std::min(buffer.size(), to.stream().max_reserve()));
  if (!room) {
    if (room.error().err == EAGAIN) return Step::kFull;
    const ssize_t left = from.recv(buffer);  // it has closed: only bytes for it make that a reset
    return left > 0 ? Step::kBroken : no_bytes(left);
  }
  const ssize_t n = from.recv(*room);
  if (n <= 0) return no_bytes(n);
  to.stream().commit(static_cast<std::size_t>(n));
  way.bytes += static_cast<std::size_t>(n);
  return static_cast<std::size_t>(n) < room->size() ? Step::kDry : Step::kMoved;
}

inline Step step(NativeEnd& from, Socket& to, Direction& way, std::span<std::byte>) {
  const auto there = from.stream().peek();
  if (!there) return there.error().err == EAGAIN ? Step::kDry : Step::kBroken;
  if (there->empty()) return Step::kEnd;
  const ssize_t sent = to.send(*there);
  if (sent == kGone) return Step::kBroken;
  if (sent == kNotNow) return Step::kFull;
  from.stream().consume(static_cast<std::size_t>(sent));
  way.bytes += static_cast<std::size_t>(sent);
  return static_cast<std::size_t>(sent) < there->size() ? Step::kFull : Step::kMoved;
}

/// Sends what is held. False: not all of it, and `flow` says why.
template <typename To>
bool send_held(To& to, Direction& way, Flow& flow) {
  while (!way.held.empty()) {
    const ssize_t n = to.send(bytes_of(way.held));
    if (n < 0) {
      way.blocked = n == kNotNow;
      flow = way.blocked ? Flow::kWaits : Flow::kBroken;
      return false;
    }
    way.held.erase(0, static_cast<std::size_t>(n));
  }
  if (way.held.capacity() > sizeof way.held) std::string().swap(way.held);
  return true;
}

/// Moves at most about `budget` bytes of a direction.
template <typename From, typename To>
Flow pass(From& from, To& to, Direction& way, std::span<std::byte> buffer, std::size_t budget) {
  Flow flow = Flow::kWaits;
  way.blocked = false;
  if (way.closed || !send_held(to, way, flow)) return flow;
  const std::uint64_t most = way.bytes + budget;
  while (!way.ended) {
    if (way.bytes >= most) return Flow::kMore;
    switch (step(from, to, way, buffer)) {
      case Step::kMoved: break;
      case Step::kDry: return Flow::kWaits;
      case Step::kFull: way.blocked = true; return Flow::kWaits;
      case Step::kBroken: return Flow::kBroken;
      case Step::kEnd: way.ended = true;
    }
  }
  way.closed = to.shutdown_send();
  way.blocked = !way.closed;
  return Flow::kWaits;
}

}  // namespace clan::gateway
