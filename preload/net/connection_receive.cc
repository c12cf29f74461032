// Connection: from the stream into the pipe. What comes is input: a frame that makes no sense, or
// comes when it cannot, ends the connection.
#include <clan/detail/clock.h>
#include <clan/detail/words.h>
#include <clan/face/socket_face.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "net/connection.h"

namespace clan::preload {

using namespace socket_face;

namespace {

void add(PipePage::Face& face, std::uint64_t bits) {
  face.words[kState].fetch_or(bits, std::memory_order_acq_rel);  // PAIR face.state
}

}  // namespace

// True: something came, and there may be more.
bool RemoteConnection::take_in(bool of_carrier) {
  bool moved = false;
  full_ = false;
  while (!lost_ && !full_ && put_last(of_carrier)) {
    auto bytes = stream_->peek_fetched();
    if (!bytes || bytes->empty()) {
      if (bytes || bytes.error().err != EAGAIN) stream_ended();
      break;
    }
    const std::size_t type = head_bytes_ > 0 ? static_cast<std::size_t>(head_[0])
                                             : static_cast<std::size_t>(bytes->front());
    if (!of_carrier && data_left_ == 0 && type != static_cast<std::size_t>(FrameType::kData)) {
      for_carrier_ = true;
      break;
    }
    const std::size_t used = data_left_ > 0 ? take_data(*bytes) : take_head(*bytes);
    stream_->consume(used);
    moved = moved || used > 0;
    if (used > 0) heard_ns_ = monotonic_ns();
    if (used == 0) break;
  }
  return moved;
}

// How many it has taken.
std::size_t RemoteConnection::take_data(std::span<const std::byte> bytes) {
  const std::size_t n = std::min<std::size_t>(bytes.size(), data_left_);
  // PAIR face.state
  const std::uint64_t state = pipe_.peer_face().words[kState].load(std::memory_order_acquire);
  if ((state & kClosed) != 0) {  // as TCP drops what comes for a socket that is closed
    data_left_ -= static_cast<std::uint32_t>(n);
    return n;
  }
  // What is under way when the program goes back has to lie in the pipe: the window is the smaller
  // part of that.
  const PipeRoom room = (state & kLeaving) != 0 ? PipeRoom::kWhole : PipeRoom::kWindow;
  const iovec io{const_cast<std::byte*>(bytes.data()), n};
  const Pipe::Done done = pipe_.send(&io, 1, room);
  if (done.must_ring) must_ring_ = true;
  if (done.err != 0) lose("its pipe holds what cannot be");
  if (done.bytes < n) full_ = true;
  data_left_ -= static_cast<std::uint32_t>(done.bytes);
  return done.bytes;
}

std::size_t RemoteConnection::take_head(std::span<const std::byte> bytes) {
  const bool hello = head_bytes_ >= kFrameHead;  // its names are still to come
  const std::size_t whole = hello ? kFrameHead + kNamesBytes : kFrameHead;
  const std::size_t n = std::min(bytes.size(), whole - head_bytes_);
  std::memcpy(&head_[head_bytes_], bytes.data(), n);
  head_bytes_ += n;
  if (head_bytes_ < whole) return n;
  const auto frame = decode(std::span(head_).first<kFrameHead>());
  if (!frame) {
    lose("the other host sends what is no frame");
    return n;
  }
  if (frame->type == FrameType::kHello && !hello) return n;
  head_bytes_ = 0;
  if (!obey(*frame)) lose("the other host sends a frame that cannot come now");
  return n;
}

// False: it breaks the protocol.
bool RemoteConnection::obey(const Frame& frame) {
  if (frame.type == FrameType::kHello) {
    if (heard_hello_) return false;
    heard_hello_ = true;
    const bool ours = frame.value == kCarrierWire &&
                      mirrors(names_, std::span(head_).subspan<kFrameHead, kNamesBytes>());
    if (!ours) return false;
    CarrierStage expected = CarrierStage::kMeeting;
    // PAIR carrier.stage
    words::cas(stage_, expected, CarrierStage::kMet);
    return true;
  }
  if (!heard_hello_ || heard_closed_) return false;
  if (!pipe_) return obey_without_pipe(frame);
  auto& theirs = pipe_.my_face();
  switch (frame.type) {
    case FrameType::kAttached:
      if (heard_attached_) return false;
      return heard_attached_here();
    case FrameType::kSwitch:
      if (heard_switch_ || heard_leave_ || !heard_attached_) return false;
      heard_switch_ = true;
      theirs.words[kSwitchAt].store(frame.value, std::memory_order_relaxed);
      add(theirs, kSending);
      must_say_switched_ = true;
      return true;
    case FrameType::kSwitched:
      if (!said_switch_ || heard_switched_) return false;
      return heard_switched_ = must_tell_switched_ = true;
    case FrameType::kData:
      if (!heard_switch_ || heard_end_ || heard_leave_) return false;
      data_left_ = frame.length;
      return true;
    case FrameType::kEnd:
      if (!heard_switch_ || heard_end_ || heard_leave_) return false;
      return heard_end_ = must_end_ = true;
    case FrameType::kLeave:
      if (heard_leave_) return false;
      return must_leave_ = true;
    case FrameType::kClosed:
      heard_closed_ = true;
      other_end_closed((frame.flags & kFrameReset) != 0);
      return true;
    default: return false;
  }
}

// Before the next frame is taken. False: the component's thread has to do it.
bool RemoteConnection::put_last(bool of_carrier) {
  if (!must_end_ && !must_leave_) return true;
  if (must_leave_ && !of_carrier) {
    for_carrier_ = true;
    return false;
  }
  Pipe::Done done;
  if (must_end_) done = pipe_.end_sending();
  if (must_leave_ && heard_switch_) done = pipe_.leave();
  must_ring_ = must_ring_ || done.must_ring;
  must_end_ = false;
  if (!std::exchange(must_leave_, false)) return true;
  heard_leave_ = true;
  other_end_leaves();
  if (said_leave_) set_stage(CarrierStage::kOver);
  return true;
}

bool RemoteConnection::heard_attached_here() {
  heard_attached_ = true;
  add(pipe_.my_face(), kAttached);
  must_switch_ = true;
  return true;
}

// The program has not come into its pipe yet. What the other one says of itself is kept until then.
bool RemoteConnection::obey_without_pipe(const Frame& frame) {
  if (frame.type == FrameType::kAttached && !heard_attached_) {
    heard_attached_ = true;
    return true;
  }
  if (frame.type != FrameType::kLeave && frame.type != FrameType::kClosed) return false;
  lose("the other end stays on TCP");
  return true;
}

void RemoteConnection::other_end_leaves() {
  auto& theirs = pipe_.my_face();
  words::store_release(theirs.words[kGivenBack], socket_face::kReadsOn);  // PAIR face.given
  add(theirs, kLeaving);
  add(theirs, kGone);
  must_answer_ = must_ring_ = true;
}

void RemoteConnection::other_end_closed(bool reset) {
  if (!reset && heard_switch_ && !heard_end_ && !heard_leave_) (void)pipe_.end_sending();
  add(pipe_.my_face(), kClosed | (reset ? std::uint64_t{kReset} : 0));
  set_stage(CarrierStage::kOver);
  must_ring_ = true;
}

// The stream says that it is over.
void RemoteConnection::stream_ended() {
  if (heard_closed_ || said_closed_ || (heard_leave_ && said_leave_)) {
    if (stage() == CarrierStage::kCarried) set_stage(CarrierStage::kOver);
    lost_ = true;
    return;
  }
  lose("the way to the other host is gone");
}

// Before that, nobody checks without an event. False: there is something to be done.
bool RemoteConnection::arm() {
  if (!pipe_ || again_) return true;
  // A full stream reports room; the last record stays where it is.
  const PipeFront front = pipe_.front();
  const bool takes = front == PipeFront::kNothing || (front == PipeFront::kBytes && said_switch_);
  if (!blocked_ && takes && !said_closed_ && !pipe_.want_data()) return false;
  if (full_ && !pipe_.want_room(PipeRoom::kWindow)) return false;
  return true;
}

}  // namespace clan::preload
