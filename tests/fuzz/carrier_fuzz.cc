// Fuzzes a connection that is carried to another host (preload/net/), with a carrier at the
// other end that means no good: frames that make sense, at any time, others, and any bytes, in
// pieces of any size; and beside it a program of this end that is in any of its states. What the
// program reads is what was sent as DATA, never more; calls come back at once; what ends stays so.
//
// Input: steps of a byte and what it takes. The stream between the two is the engine's, in this
// process.
#include <clan/context.h>
#include <clan/detail/clock.h>
#include <clan/event_queue.h>
#include <clan/face/pipe.h>
#include <clan/face/socket_face.h>
#include <clan/stream.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "input.h"
#include "net/connection.h"

namespace {

using namespace clan;
using namespace clan::preload;
using fuzz::Input;

/// of one call, on a machine at work
constexpr std::uint64_t kLongNs = 1'000'000'000;
constexpr std::size_t kMostSent = 256 * 1024;  ///< less than the stream holds

void expect(bool holds) {
  if (!holds) std::abort();
}

/// The program, whose calls the carrier makes.
struct Program {
  Pipe pipe;
  bool lets_switch = true, is_lost = false;
};

const CarrierCalls kProgram{
    .ring = [](void*) {},
    .may_switch = [](void* socket) { return static_cast<Program*>(socket)->lets_switch; },
    .switch_is_known = [](void*) {},
    .answer = [](void*) {},
    .lost = [](void* socket) { static_cast<Program*>(socket)->is_lost = true; },
};

/// Made once: contexts have threads.
struct World {
  Context context = std::move(Context::create().value());
  EventQueue queue = std::move(EventQueue::create(context).value());
  std::string service = "carrier-fuzz-" + std::to_string(::getpid());
  Listener listener = std::move(Listener::create(context, service).value());
};

class Session {
 public:
  Session(Input& in, World& world, bool client) : in_(in) {
    names_.local.port = 40000;
    names_.remote.port = 80;
    auto ours = Stream::connect(world.context, world.service, 5000);
    auto theirs = world.listener.accept(5000);
    expect(ours.ok() && theirs.ok());
    carried_.emplace(kProgram, world.queue, 1, names_, client, &program_);
    expect(carried_->open().ok());
    carried_->meet(std::move(*ours));
    hostile_ = std::make_unique<Stream>(std::move(*theirs));
  }

  void run() {
    while (!in_.empty()) {
      const std::uint64_t begin = monotonic_ns();
      step();
      expect(monotonic_ns() - begin < kLongNs);
      const CarrierStage now = carried_->stage();
      expect(now <= CarrierStage::kFailed);
      if (is_over(stage_)) expect(is_over(now));
      stage_ = now;
    }
    carried_->release();
    (void)carried_->serve();
  }

 private:
  static bool is_over(CarrierStage stage) {
    return stage == CarrierStage::kOver || stage == CarrierStage::kFailed;
  }

  void step() {
    switch (in_.byte() % 12) {
      case 0:
      case 1: (void)carried_->serve(); break;
      case 2: carried_->pump(); break;
      case 3:
      case 4: say_frame(); break;
      case 5: say(in_.bytes(in_.byte())); break;
      case 6: attach(); break;
      case 7: add(std::uint64_t{1} << in_.byte() % 12); break;
      case 8: send(); break;
      case 9: receive(); break;
      case 10: end(in_.byte()); break;
      default: greet(); break;
    }
  }

  void say(std::span<const std::byte> bytes) {
    while (hostile_ && !bytes.empty() && said_ + bytes.size() < kMostSent) {
      const auto n = hostile_->try_send(bytes);
      if (!n) return;
      said_ += *n;
      bytes = bytes.subspan(*n);
    }
  }

  /// The beginning that most of the rest takes.
  void greet() {
    const Route theirs{names_.remote, names_.local};
    say(encode(Frame{.type = FrameType::kHello, .length = kNamesBytes, .value = kCarrierWire}));
    say(encode(theirs));
    (void)carried_->serve();
    attach();
    say(encode(Frame{.type = FrameType::kAttached}));
    (void)carried_->serve();
  }

  void say_frame() {
    Frame frame;
    frame.type = static_cast<FrameType>(in_.byte() % 10);
    const bool has_bytes = frame.type == FrameType::kData;
    std::span<const std::byte> behind;
    if (has_bytes) behind = in_.bytes(in_.byte());
    frame.length = static_cast<std::uint32_t>(behind.size());
    if (frame.type == FrameType::kSwitch) frame.value = in_.take<std::uint16_t>();
    const std::uint8_t how = in_.byte();
    if (how % 8 == 1) frame.flags = in_.byte();
    if (how % 8 == 2) frame.length = static_cast<std::uint32_t>(in_.number());
    if (how % 8 == 3) frame.value = in_.number();
    say(encode(frame));
    say(behind);
  }

  void attach() {
    if (program_.pipe || carried_->stage() != CarrierStage::kMet) return;
    auto pipe = Pipe::create(socket_face::kMemfdName, 4096, 0);
    expect(pipe.ok());
    auto other = pipe->at_other_end();
    expect(other.ok());
    if (!carried_->attach(std::move(*other))) return;
    program_.pipe = std::move(*pipe);
    add(socket_face::kAttached);
  }

  void add(std::uint64_t bits) {
    if (!program_.pipe) return;
    auto& words = program_.pipe.my_face().words;
    words[socket_face::kSwitchAt].store(in_.byte(), std::memory_order_relaxed);
    words[socket_face::kState].fetch_or(bits, std::memory_order_acq_rel);
  }

  void send() {
    if (!program_.pipe) return;
    std::vector<char> bytes(in_.take<std::uint16_t>());
    const iovec io{bytes.data(), bytes.size()};
    expect(program_.pipe.send(&io, 1).bytes <= bytes.size());
  }

  void receive() {
    if (!program_.pipe) return;
    std::vector<char> bytes(in_.take<std::uint16_t>());
    const iovec io{bytes.data(), bytes.size()};
    read_ += program_.pipe.receive(&io, 1, false).bytes;
    expect(read_ <= said_);
    expect(program_.pipe.front() != PipeFront::kBroken);
  }

  void end(std::uint8_t how) {
    switch (how % 8) {
      case 0: hostile_.reset(); break;
      case 1: carried_->tcp_ended(); break;
      case 2:
        if (program_.pipe) (void)program_.pipe.end_sending();
        break;
      case 3:
        if (program_.pipe) (void)program_.pipe.leave();
        break;
      case 4: program_.lets_switch = !program_.lets_switch; break;
      case 5: (void)carried_->is_done(); break;
      case 6: carried_->release(); break;
      default: read_what_is_said();
    }
  }

  /// So that the carrier's own frames find room.
  void read_what_is_said() {
    std::array<std::byte, 4096> bytes;
    while (hostile_ && hostile_->try_recv(bytes)) {
    }
  }

  Input& in_;
  Route names_;
  Program program_;
  std::optional<RemoteConnection> carried_;
  std::unique_ptr<Stream> hostile_;
  CarrierStage stage_ = CarrierStage::kMeeting;
  std::size_t said_ = 0, read_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static World& world = *new World;
  Input in(data, size);
  const bool client = in.byte() % 2 == 0;
  Session(in, world, client).run();
  return 0;
}
