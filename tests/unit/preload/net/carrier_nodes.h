// Two carriers of this process over loopback; the test is both programs.
#pragma once

#include <arpa/inet.h>
#include <clan/detail/clock.h>
#include <clan/face/socket_face.h>
#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <string_view>
#include <utility>

#include "net/node.h"
#include "preload/net/two_hosts.h"

namespace clan::preload {

inline constexpr std::uint64_t kPatienceNs = 10'000'000'000;

template <typename Is>
bool becomes(Is&& is) {
  const std::uint64_t until = monotonic_ns() + kPatienceNs;
  const timespec nap{0, 100'000};
  while (!is() && monotonic_ns() < until) ::nanosleep(&nap, nullptr);
  return is();
}

inline const CarrierCalls kProgramsCalls{
    .ring = [](void* rings) { ++*static_cast<std::atomic<int>*>(rings); },
    .may_switch = [](void*) { return true; },
    .switch_is_known = [](void*) {},
    .answer = [](void*) {},
    .lost = [](void*) {},
};

// Two carriers of this process over loopback; the test is both programs. They live as long as the
// process, as they do in a program.
class CarrierNodes : public ::testing::Test {
 protected:
  void SetUp() override {
    const ContextOptions options = options_of_two_hosts();
    Route names;
    ::inet_pton(AF_INET6, "::ffff:127.0.0.1", &names.local.address);
    names.remote = names.local;
    names.local.port = static_cast<std::uint16_t>(::getpid() & 0x7fff);
    names.remote.port = 80;
    for (End& end : ends_) {
      auto node = Node::start(options, kProgramsCalls);
      ASSERT_TRUE(node) << node.error().message();
      end.node = *node;
    }
    ends_[1].carried = ends_[1].node->await({names.remote, names.local}, &ends_[1].rings);
    ends_[0].carried = ends_[0].node->dial(names, &ends_[0].rings);
    ASSERT_TRUE(ends_[0].carried != nullptr && ends_[1].carried != nullptr);
    for (End& end : ends_) {
      ASSERT_TRUE(becomes([&] { return end.node->stage(*end.carried) == CarrierStage::kMet; }));
      auto pipe = Pipe::create(socket_face::kMemfdName, 64 * 1024, 0);
      ASSERT_TRUE(pipe);
      auto other = pipe->at_other_end();
      ASSERT_TRUE(other);
      end.pipe = std::move(*pipe);
      ASSERT_TRUE(end.carried->attach(std::move(*other)));
      add(end, socket_face::kAttached);
      end.carried->pump();
    }
    for (End& end : ends_) {
      ASSERT_TRUE(becomes([&] { return (other_state(end) & socket_face::kAttached) != 0; }));
      add(end, socket_face::kSending);
      end.carried->pump();
    }
    for (End& end : ends_)
      ASSERT_TRUE(becomes([&] { return (other_state(end) & socket_face::kSending) != 0; }));
  }
  void TearDown() override {
    for (End& end : ends_) {
      if (end.carried == nullptr) continue;
      add(end, socket_face::kClosed);
      end.carried->pump();
      end.node->release(*end.carried);
      end.node->finish(2000);
    }
  }
  struct End {
    Node* node = nullptr;
    RemoteConnection* carried = nullptr;
    Pipe pipe;
    std::atomic<int> rings{0};
  };
  static void add(End& end, std::uint64_t bits) {
    end.pipe.my_face().words[socket_face::kState].fetch_or(bits, std::memory_order_acq_rel);
  }
  static std::uint64_t other_state(const End& end) {
    return end.pipe.peer_face().words[socket_face::kState].load(std::memory_order_acquire);
  }
  static void send(End& end, std::string_view text) {
    const iovec io{const_cast<char*>(text.data()), text.size()};
    ASSERT_EQ(end.pipe.send(&io, 1).bytes, text.size());
    end.carried->pump();
  }
  static std::string receive(End& end) {
    std::string text(100, 0);
    const iovec io{text.data(), text.size()};
    text.resize(end.pipe.receive(&io, 1, false).bytes);
    return text;
  }
  End ends_[2];
};

}  // namespace clan::preload
