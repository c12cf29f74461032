// Two contexts of one process on the network, whose threads sleep as soon as they wait.
#pragma once

#include <clan/context.h>
#include <clan/stream.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "engine/context/context_core.h"
#include "support/held_driver.h"
#include "support/streams.h"

namespace clan::test {

inline Context sleeping_context() {
  ContextOptions options;
  options.wait.mode = WaitOptions::Mode::kSleep;
  options.network.enabled = true;
  options.network.mode = NetworkOptions::Mode::kOff;
  options.network.directory_port = 0;
  return must(Context::create(options));
}

class SleepTest : public testing::Test {
 protected:
  std::pair<Stream, Stream> connect() {
    auto client = must(Stream::connect(b_, name(service_), 10'000));
    return {std::move(client), must(listener_.accept(10'000))};
  }
  std::string name(const std::string& service) const {
    return "udp:127.0.0.1:" + std::to_string(a_.network_port()) + "/" + service;
  }
  // Echoes single bytes until the peer closes.
  static void echo(Stream& stream) {
    std::byte byte{};
    while (must(stream.recv({&byte, 1}, 20'000)) == 1) (void)must(stream.send({&byte, 1}));
  }
  static void ask(Stream& stream, int times) {
    for (int i = 0; i < times; ++i) {
      std::byte byte{static_cast<unsigned char>(i)}, back{};
      ASSERT_EQ(must(stream.send({&byte, 1})), 1u);
      ASSERT_EQ(must(stream.recv({&back, 1}, 20'000)), 1u);
      ASSERT_EQ(back, byte);
    }
  }

  Context a_ = sleeping_context(), b_ = sleeping_context();
  const std::string service_ = unique_name("sleep");
  Listener listener_ = must(Listener::create(a_, service_));
};

inline constexpr int kTimes = 200;

/// Makes the driver thread's writes happen before what follows. A completion does so, too, but by
/// packets, which ThreadSanitizer does not see.
inline void synchronize_with_driver(Context& context) {
  const HeldDriver held(context.core()->reactor());
}

inline void answer(Stream& stream, int times) {
  for (int i = 0; i < times; ++i) {
    std::byte byte{};
    ASSERT_EQ(must(stream.recv({&byte, 1}, 20'000)), 1u);
    (void)must(stream.send({&byte, 1}));
  }
}

}  // namespace clan::test
