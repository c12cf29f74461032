// Two carriers joined by a stream, with a pipe each; the test is both programs.
#pragma once

#include <arpa/inet.h>
#include <clan/context.h>
#include <clan/event_queue.h>
#include <clan/face/pipe.h>
#include <clan/face/socket_face.h>
#include <clan/stream.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "net/connection.h"

namespace clan::preload {

/// How often the carrier has made each of its calls.
struct CallsMade {
  int rings = 0, switches = 0, known = 0, answers = 0, losses = 0;
};

inline const CarrierCalls kCountedCalls{
    .ring = [](void* socket) { ++static_cast<CallsMade*>(socket)->rings; },
    .may_switch = [](void* socket) { return ++static_cast<CallsMade*>(socket)->switches > 0; },
    .switch_is_known = [](void* socket) { ++static_cast<CallsMade*>(socket)->known; },
    .answer = [](void* socket) { ++static_cast<CallsMade*>(socket)->answers; },
    .lost = [](void* socket) { ++static_cast<CallsMade*>(socket)->losses; },
};

inline Route names_of_end(bool client) {
  Route names;
  ::inet_pton(AF_INET6, "::ffff:10.0.0.1", &names.local.address);
  ::inet_pton(AF_INET6, "::ffff:10.0.0.2", &names.remote.address);
  names.local.port = 40000;
  names.remote.port = 80;
  return client ? names : Route{names.remote, names.local};
}

class CarrierConnection : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string service = "carrier-test-" + std::to_string(::getpid());
    auto listener = Listener::create(context_, service);
    ASSERT_TRUE(listener);
    auto connected = Stream::connect(context_, service, 5000);
    ASSERT_TRUE(connected);
    auto accepted = listener->accept(5000);
    ASSERT_TRUE(accepted);
    for (int end = 0; end < 2; ++end) {
      ends_[end].carried = std::make_unique<RemoteConnection>(
          kCountedCalls, queue_, static_cast<std::uint64_t>(end + 1), names_of_end(end == 0),
          end == 0, &ends_[end].calls);
      ASSERT_TRUE(ends_[end].carried->open());
    }
    ends_[0].carried->meet(std::move(*connected));
    stream_ = std::make_unique<Stream>(std::move(*accepted));
  }

  // The other end is a carrier, too.
  void join() {
    ends_[1].carried->meet(std::move(*stream_));
    turn();
    for (auto& end : ends_) {
      ASSERT_EQ(end.carried->stage(), CarrierStage::kMet);
      auto pipe = Pipe::create(socket_face::kMemfdName, 64 * 1024, 0);
      ASSERT_TRUE(pipe);
      auto other = pipe->at_other_end();
      ASSERT_TRUE(other);
      end.pipe = std::move(*pipe);
      ASSERT_TRUE(end.carried->attach(std::move(*other)));
      add(end, socket_face::kAttached);
    }
    turn();
  }
  struct End {
    CallsMade calls;
    std::unique_ptr<RemoteConnection> carried;
    Pipe pipe;
  };
  static void add(End& end, std::uint64_t bits) {
    end.pipe.my_face().words[socket_face::kState].fetch_or(bits, std::memory_order_acq_rel);
  }
  static std::uint64_t other_state(const End& end) {
    return end.pipe.peer_face().words[socket_face::kState].load(std::memory_order_acquire);
  }
  void turn() {
    for (int i = 0; i < 6; ++i) {
      for (auto& end : ends_) (void)end.carried->serve();
    }
  }
  void turn_first() {
    for (int i = 0; i < 3; ++i) (void)ends_[0].carried->serve();
  }
  void switch_both() {
    for (auto& end : ends_) {
      end.pipe.my_face().words[socket_face::kSwitchAt].store(77, std::memory_order_relaxed);
      add(end, socket_face::kSending);
    }
    turn();
  }
  static std::size_t send(End& end, std::string_view text) {
    const iovec io{const_cast<char*>(text.data()), text.size()};
    return end.pipe.send(&io, 1).bytes;
  }
  static std::string receive(End& end) {
    std::string text(65536, 0);
    const iovec io{text.data(), text.size()};
    text.resize(end.pipe.receive(&io, 1, false).bytes);
    return text;
  }

  Context context_ = std::move(*Context::create());
  EventQueue queue_ = std::move(*EventQueue::create(context_));
  End ends_[2];
  std::unique_ptr<Stream> stream_;
};

}  // namespace clan::preload
