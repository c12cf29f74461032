#include "engine/context/packet_wait.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <cerrno>

#include "base/fd.h"
#include "clan/detail/clock.h"
#include "link/udp/node/udp_node_sleep.h"

namespace clan::engine {
namespace {

struct FakeSource final : PacketSource {
  void fetch() override { seen += 'f'; }
  int sleep(const udp::Sleep& what) override {
    seen += 's';
    slept = what;
    return EINTR;
  }
  void wake_sleepers() override { seen += 'w'; }
  void keep_watching() override { seen += 'k'; }
  std::string seen;
  udp::Sleep slept;
};

class PacketWaitTest : public testing::Test {
 protected:
  void do_all() {
    packets.fetch();
    packets.wake_sleeper();
    packets.leave_to_driver();
  }
  PacketWait packets;
  FakeSource source;
};

TEST_F(PacketWaitTest, AsksTheNetworkForNothingBeforeThereIsALinkOfPackets) {
  packets.set_source(&source);
  do_all();
  EXPECT_FALSE(packets.has_packets());
  const std::atomic<std::uint32_t> word{1};
  EXPECT_EQ(packets.sleep_on(word, 2, kNoDeadline), 0);
  EXPECT_EQ(source.seen, "");
}

TEST_F(PacketWaitTest, AsksTheNetworkOnceThereIsOne) {
  packets.set_source(&source);
  packets.link_came();
  EXPECT_TRUE(packets.has_packets());
  do_all();
  EXPECT_EQ(source.seen, "fwk");
}

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

TEST_F(PacketWaitTest, SleepsInTheNetworkOnAWordOrOnDescriptorsWithoutLocks) {
  packets.set_source(&source);
  packets.link_came();
  const std::atomic<std::uint32_t> word{1};
  EXPECT_EQ(packets.sleep_on(word, 1, 77), EINTR);
  EXPECT_EQ(source.slept.word, &word);
  EXPECT_EQ(source.slept.seen, 1u);
  EXPECT_EQ(source.slept.deadline_ns, 77u);
  EXPECT_EQ(source.slept.locks, udp::Sleep::Locks::kNone);
  pollfd fds[2] = {{0, POLLIN, 0}, {1, POLLIN, 0}};
  EXPECT_EQ(packets.sleep_on(fds, 78), EINTR);
  EXPECT_EQ(source.slept.word, nullptr);
  EXPECT_EQ(source.slept.fds.data(), fds);
  EXPECT_EQ(source.slept.fds.size(), 2u);
  EXPECT_EQ(source.slept.deadline_ns, 78u);
  EXPECT_EQ(source.slept.locks, udp::Sleep::Locks::kNone);
  EXPECT_EQ(source.seen, "ss");
}

}  // namespace
}  // namespace clan::engine
