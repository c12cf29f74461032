// Connection: from the pipe into the stream.
#include <clan/detail/clock.h>
#include <clan/detail/words.h>
#include <clan/face/socket_face.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "net/connection.h"

namespace clan::preload {

using namespace socket_face;

void RemoteConnection::no_room(int err) {
  blocked_ = err == EAGAIN;
  deaf_ = !blocked_;
  closed_there_ = err == EPIPE;
}

// False: there is no room, or no stream any more.
bool RemoteConnection::say(const Frame& frame, std::span<const std::byte> behind) {
  auto room = stream_->reserve(kFrameHead + behind.size());
  if (!room) {
    no_room(room.error().err);
    return false;
  }
  const auto head = encode(frame);
  std::memcpy(room->data(), head.data(), head.size());
  if (!behind.empty()) std::memcpy(room->data() + kFrameHead, behind.data(), behind.size());
  stream_->commit(kFrameHead + behind.size());
  return true;
}

// The words come after a check of the pipe: what lies there was put there after them.
void RemoteConnection::say_state(std::uint64_t state) {
  if (must_say_switched_) must_say_switched_ = !say({.type = FrameType::kSwitched});
  if (!said_attached_ && (state & kAttached) != 0)
    said_attached_ = say({.type = FrameType::kAttached});
  if (said_attached_ && !said_switch_ && (state & kSending) != 0) {
    const std::uint64_t at = pipe_.peer_face().words[kSwitchAt].load(std::memory_order_relaxed);
    said_switch_ = say({.type = FrameType::kSwitch, .value = at});
  }
}

// One frame of what lies in the pipe. False: nothing, or there is no room.
bool RemoteConnection::send_bytes() {
  const std::size_t most = std::min<std::size_t>(stream_->max_reserve() - kFrameHead, kChunk);
  const std::size_t n = std::min<std::uint64_t>(pipe_.readable_bytes(), most);
  if (n == 0) {
    again_ = true;  // somebody has the lock for a moment
    return false;
  }
  auto room = stream_->reserve(kFrameHead + n);
  if (!room) {
    no_room(room.error().err);
    return false;
  }
  const iovec io{room->data() + kFrameHead, n};
  const Pipe::Done done = pipe_.receive(&io, 1, false);
  if (done.bytes > 0) {
    const auto head =
        encode(Frame{.type = FrameType::kData, .length = static_cast<std::uint32_t>(done.bytes)});
    std::memcpy(room->data(), head.data(), head.size());
    stream_->commit(kFrameHead + done.bytes);
    released_ns_ = 0;  // the other end takes some: the time for the rest begins anew
  }
  if (done.must_ring) must_ring_ = true;
  if (done.err == EPROTO) lose("its pipe holds what cannot be");
  if (done.bytes == 0) again_ = true;
  return done.bytes > 0;
}

// The other end takes no more, and what it has sent may still lie in the stream: take_in() finds
// its end behind that. As TCP drops what comes for a closed socket; a program that writes does not
// wait for room.
bool RemoteConnection::drop_out() {
  if (!pipe_ || !said_switch_ || pipe_.front() != PipeFront::kBytes) return false;
  std::array<std::byte, 16384> nobody;
  const iovec io{nobody.data(), nobody.size()};
  const Pipe::Done done = pipe_.receive(&io, 1, false);
  if (done.must_ring) must_ring_ = true;
  if (done.err == EPROTO) lose("its pipe holds what cannot be");
  if (done.bytes == 0) again_ = true;
  if (done.bytes > 0 && dropped_ns_ == 0) dropped_ns_ = monotonic_ns();
  return done.bytes > 0;
}

// The program has given the connection up before it was in its pipe.
bool RemoteConnection::never_comes() const {
  // PAIR carrier.released
  if (!words::load_acquire(released_)) return false;
  // PAIR face.state
  return !pipe_ ||
         (pipe_.peer_face().words[kState].load(std::memory_order_acquire) & kAttached) == 0;
}

// True: something went, and there may be more.
bool RemoteConnection::send_out() {
  blocked_ = again_ = false;
  if (deaf_) return drop_out();
  if (!said_hello_) {
    const auto names = encode(names_);
    said_hello_ =
        say({.type = FrameType::kHello, .length = kNamesBytes, .value = kCarrierWire}, names);
  }
  if (!said_hello_) return false;
  if (never_comes()) {
    if (!said_leave_ && !blocked_) said_leave_ = say({.type = FrameType::kLeave});
    return false;
  }
  if (!pipe_) return false;
  if (said_closed_) return false;
  PipeFront front = pipe_.front();
  // PAIR face.state: sees kSwitchAt, and that the last record has been put there
  const std::uint64_t state = pipe_.peer_face().words[kState].load(std::memory_order_acquire);
  // Neither may be sent before all that was put there before it, perhaps since that check.
  if (front == PipeFront::kNothing && (state & (kGone | kClosed)) != 0) front = pipe_.front();
  say_state(state);
  if (blocked_ || deaf_) return false;
  bool moved = false;
  switch (front) {
    case PipeFront::kBytes:
      if (said_switch_) moved = send_bytes();
      return moved;
    case PipeFront::kEnd:
      if (!said_end_) moved = said_end_ = say({.type = FrameType::kEnd});
      break;
    case PipeFront::kBroken: lose("its pipe holds what cannot be"); return false;
    default: break;
  }
  if (!said_leave_ && (state & kGone) != 0 && !blocked_)
    moved = (said_leave_ = say({.type = FrameType::kLeave})) || moved;
  if ((state & kClosed) != 0 && !blocked_) {
    const std::uint8_t flags = (state & kReset) != 0 ? kFrameReset : 0;
    said_closed_ = say({.type = FrameType::kClosed, .flags = flags});
    if (said_closed_) set_stage(CarrierStage::kOver);
  }
  if (said_leave_ && heard_leave_) set_stage(CarrierStage::kOver);
  return moved;
}

}  // namespace clan::preload
