#include "engine/context/packet_wait.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <cerrno>

#include "base/fd.h"
#include "clan/detail/clock.h"

namespace clan::engine {
namespace {

class PacketWaitTest : public testing::Test {
 protected:
  void do_all() {
    packets.fetch();
    packets.wake_sleeper();
    packets.leave_to_driver();
  }
  PacketWait packets;
};

TEST_F(PacketWaitTest, DoesWithoutANetworkWhereLinksAreMadeElsewhere) {
  packets.link_came();
  EXPECT_TRUE(packets.linked());
  EXPECT_FALSE(packets.has_packets());
  do_all();
  const std::atomic<std::uint32_t> word{1};
  EXPECT_EQ(packets.sleep_on(word, 1, monotonic_ns()), ETIMEDOUT);
}

TEST_F(PacketWaitTest, SleepsInTheKernelWithoutPackets) {
  auto bell = create_eventfd();
  ASSERT_TRUE(bell.ok());
  pollfd fd{bell->get(), POLLIN, 0};
  EXPECT_EQ(packets.sleep_on({&fd, 1}, monotonic_ns()), ETIMEDOUT);
  ASSERT_EQ(::eventfd_write(bell->get(), 1), 0);
  EXPECT_EQ(packets.sleep_on({&fd, 1}, kNoDeadline), 0);
  EXPECT_EQ(fd.revents, POLLIN);
}

}  // namespace
}  // namespace clan::engine
