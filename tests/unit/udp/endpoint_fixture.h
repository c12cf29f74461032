// Endpoints over the simulated network, for tests that promise one thing each.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "link/udp/transport/endpoint.h"
#include "udp/simulation.h"

namespace clan::test {

using udp::kMillisecond;
using udp::kSecond;

inline Traffic traffic(std::uint64_t seed, std::uint32_t urgent, std::uint32_t bulk,
                       std::size_t urgent_bytes = 64, std::size_t bulk_bytes = 100'000) {
  Traffic t;
  t.seed = seed;
  t.messages[0] = urgent;
  t.messages[3] = bulk;
  t.most_bytes[0] = urgent_bytes;
  t.most_bytes[3] = bulk_bytes;
  t.interval = 50'000;
  return t;
}

class EndpointTest : public testing::Test {
 protected:
  EndpointTest() : network_(7) {}
  void TearDown() override { EXPECT_EQ(network_.problem(), ""); }

  Node& add(udp::Options options = {}, udp::Security* security = nullptr) {
    return network_.add_node(options, security);
  }
  bool finish(std::uint64_t within = 5 * kSecond) {
    return network_.run(network_.now() + within, [&] {
      for (std::size_t i = 0; i < network_.nodes(); ++i) {
        if (network_.node(i).busy()) return false;
      }
      return true;
    });
  }
  template <typename Condition>
  bool until(Condition&& condition, std::uint64_t within = 60 * kSecond) {
    return network_.run(network_.now() + within, condition);
  }

  Network network_;
};

}  // namespace clan::test
