// Connection: one TCP connection between two hosts, whose bytes go by a stream of the engine. It is
// the other end of the program's pipe here, as its like is on the other host.
//
//   program -> pipe -> Connection == DATA ==> Connection -> pipe -> program
//
// It reads no more out of a pipe than the stream takes, and no more out of the stream than the pipe
// takes; so memory is bounded, and a program that does not read stops the one that sends.
//
// Bytes are taken by the thread that has them: one of the program that has sent, or polls, as far
// as nobody else is at it (pump()), else the carrier's thread. Both ring for a thread that sleeps;
// the callbacks that may wait for the program are made by the carrier's thread only (serve()).
//
// The words of the pipe that say what the end of this host's program does are read here and sent to
// the other host; what its like tells is written into the words of the other end.
#pragma once

#include <clan/detail/words.h>
#include <clan/event_queue.h>
#include <clan/face/pipe.h>
#include <clan/stream.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "kernel/sock_diag.h"
#include "net/frame.h"

namespace clan::preload {

enum class CarrierStage : std::uint32_t {
  kMeeting,  ///< the other end has not come
  kMet,      ///< it has, and a pipe may be attached
  kCarried,
  kOver,    ///< ended, or gone back to TCP: nothing more comes through it
  kFailed,  ///< the other end will not come, or may not
};

/// Calls of a thread of the carrier, with the socket that dial() or await() named; none after
/// release().
struct CarrierCalls {
  /// The program is to check its pipe.
  void (*ring)(void* socket);
  /// The other end is in its pipe: this direction may switch. False: a call is under way.
  bool (*may_switch)(void* socket);
  /// The other end knows where this one has switched: it may send by TCP again.
  void (*switch_is_known)(void* socket);
  /// This end is to go back, too.
  void (*answer)(void* socket);
  /// The way to the other host is gone, and bytes with it.
  void (*lost)(void* socket);
};

class RemoteConnection : public std::enable_shared_from_this<RemoteConnection> {
 public:
  /// of a DATA frame: two trains of packets at an MTU of 1500
  static constexpr std::size_t kChunk = 118 * 1024 - kFrameHead;

  RemoteConnection(const CarrierCalls& calls, EventQueue& queue, std::uint64_t tag,
                   const Route& names, bool client, void* socket);
  ~RemoteConnection();
  RemoteConnection(const RemoteConnection&) = delete;
  RemoteConnection& operator=(const RemoteConnection&) = delete;

  /// Ready to be served: an event that puts this connection into the queue.
  Status open();

  // --- any thread of the program ---------------------------------------------------------------
  CarrierStage stage() const {
    return words::load_acquire(stage_);  // PAIR carrier.stage
  }
  bool attach(Pipe&& end);
  /// Takes what can be taken, or leaves it to the carrier's thread.
  void pump();
  /// Has that thread look.
  void post();
  void tcp_ended();
  /// When this returns no callback is under way, and none will be.
  void release();

  // --- the carrier's threads -------------------------------------------------------------------
  const Route& names() const { return names_; }
  bool is_client() const { return client_; }
  /// The name in the directory, the same at both ends.
  std::string service() const;
  /// The end that accepted is to be found.
  Status listen(Context& context);
  /// The stream to the other end.
  void meet(Stream&& stream);
  void fail();
  /// Moves what there is, and makes callbacks. When it is to be called again without an event, in
  /// ns of monotonic_ns(); 0: not.
  std::uint64_t serve();
  /// Released, and nothing is left to be sent.
  bool is_done();
  /// A program has been in its pipe.
  bool has_moved() {
    const CarrierStage now = stage();
    return now == CarrierStage::kCarried || now == CarrierStage::kOver;
  }
  /// Nothing is left to be sent, wherever it lies.
  bool is_quiet();
  std::uint64_t tag() const { return tag_; }

  // The dialler's, under its lock.
  std::uint64_t dial_at = 0;  ///< not before
  std::uint64_t dial_wait_ns = 0;
  bool dialling = false, has_met = false;

 private:
  void move(bool of_carrier);
  bool send_out();
  bool say(const Frame& frame, std::span<const std::byte> behind = {});
  void say_state(std::uint64_t state);
  bool send_bytes();
  bool drop_out();
  void no_room(int err);
  bool take_in(bool of_carrier);
  std::size_t take_head(std::span<const std::byte> bytes);
  std::size_t take_data(std::span<const std::byte> bytes);
  bool obey(const Frame& frame);
  bool obey_without_pipe(const Frame& frame);
  bool put_last(bool of_carrier);
  bool heard_attached_here();
  void other_end_leaves();
  void other_end_closed(bool reset);
  void other_end_is_lost();
  void stream_ended();
  bool arm();
  void call(void (*callback)(void* socket));
  void set_stage(CarrierStage stage) {
    words::store_release(stage_, stage);  // PAIR carrier.stage
  }
  void lose(const char* why);
  std::uint64_t look_at_time();
  bool is_quiet_now() const;
  bool never_comes() const;
  bool has_switched_too_late() const;

  const CarrierCalls& calls_;
  EventQueue& queue_;
  const std::uint64_t tag_;
  const Route names_;
  const bool client_;
  std::uint32_t event_ = 0;
  bool has_event_ = false;

  /// While one is made. Inside `mutex_`, if that is held. A callback may be what releases it.
  std::recursive_mutex callbacks_;
  void* socket_;
  std::atomic<bool> released_{false};

  std::atomic<CarrierStage> stage_{CarrierStage::kMeeting};
  std::atomic<std::uint64_t> tcp_ended_ns_{0};

  std::mutex mutex_;  ///< of what follows
  std::optional<Listener> listener_;
  std::optional<Stream> stream_;
  Pipe pipe_;
  bool said_hello_ = false, said_attached_ = false, said_switch_ = false, said_end_ = false,
       said_leave_ = false, said_closed_ = false;
  bool heard_hello_ = false, heard_attached_ = false, heard_switch_ = false, heard_end_ = false,
       heard_leave_ = false, heard_switched_ = false, heard_closed_ = false;
  std::array<std::byte, kFrameHead + kNamesBytes> head_{};
  std::size_t head_bytes_ = 0;
  std::uint32_t data_left_ = 0;
  bool lost_ = false, tell_lost_ = false, went_back_ = false, asked_ = false;
  /// The other end takes nothing more; as it has closed.
  bool deaf_ = false, closed_there_ = false;
  /// In the last turn: the stream has no room; the pipe has none; a lock was in the way.
  bool blocked_ = false, full_ = false, again_ = false;
  bool must_answer_ = false, must_switch_ = false, must_ring_ = false, must_tell_switched_ = false,
       must_say_switched_ = false, for_carrier_ = false;
  /// The other end has half-closed, or left: its last record is not in the pipe yet.
  bool must_end_ = false, must_leave_ = false;
  /// Since when a program that has closed has nothing taken of what it left; the last frame.
  std::uint64_t released_ns_ = 0, heard_ns_ = 0;
  std::uint64_t dropped_ns_ = 0;  ///< when the first bytes came that nobody takes
};

}  // namespace clan::preload
