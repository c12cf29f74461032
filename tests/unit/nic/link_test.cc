// What a link does that has nothing of its own to do: sleep on the word, and answer for itself.
#include "nic/link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "clan/detail/clock.h"
#include "nic/nic.h"

namespace clan::nic {
namespace {

// Only what has no default.
class BareLink final : public Link {
 public:
  LinkCapabilities capabilities() const override { return {}; }
  NodeId remote_node() const override { return {}; }
  uid_t remote_uid() const override { return 0; }
  pid_t remote_pid() const override { return 0; }
  bool alive() const override { return true; }
  Result<RemoteHandle> import(const RdmaCookie&, bool) override { return RemoteHandle{}; }
  void release(const RemoteHandle&) override {}
  Status grant(const RdmaCookie&) override { return {}; }
  Status put(const RemoteHandle&, std::uint64_t, std::span<const std::byte>, PutOrder) override {
    return {};
  }
  Status get(const RemoteHandle&, std::uint64_t, std::span<std::byte>) override { return {}; }
  Status after_access(const RemoteHandle&, std::uint64_t, std::uint64_t, AccessKind) override {
    return {};
  }
  TransferResult transfer(const Transfer&) override { return {}; }
  void cancel(std::uint64_t) override {}
  Status send_oob(const OobMessage&) override { return {}; }
  void shut_down() override {}
};

TEST(LinkSleep, EndsAtOnceWhereTheTripwireHasFiredSince) {
  BareLink link;
  shm::TripwireSignal signal{};
  signal.fired.news = 4;
  EXPECT_NE(link.sleep(signal.fired, 3, monotonic_ns() + 20'000'000'000u), ETIMEDOUT);
}

TEST(LinkSleep, EndsAtItsDeadline) {
  BareLink link;
  shm::TripwireSignal signal{};
  EXPECT_EQ(link.sleep(signal.fired, 0, monotonic_ns() + 5'000'000), ETIMEDOUT);
}

// The one that fires looks there whether somebody has to be woken.
TEST(LinkSleep, SaysThatSomebodySleepsBeforeItDoes) {
  BareLink link;
  shm::TripwireSignal signal{};
  std::thread fires([&] {
    while (signal.fired.sleepers.load() == 0) std::this_thread::yield();
    signal.fired.notify();
  });
  while (signal.fired.news.load() == 0) {
    ASSERT_NE(link.sleep(signal.fired, 0, monotonic_ns() + 20'000'000'000u), ETIMEDOUT);
  }
  fires.join();
  EXPECT_EQ(signal.fired.sleepers.load(), 0u);
}

TEST(LinkSleep, IsWokenThoughSomebodyHasSpoiltTheCount) {
  BareLink link;
  shm::TripwireSignal signal{};
  signal.fired.sleepers = UINT32_MAX;
  std::thread fires([&] {
    while (signal.fired.sleepers.load() != 1) std::this_thread::yield();
    signal.fired.notify();
  });
  while (signal.fired.news.load() == 0) {
    ASSERT_NE(link.sleep(signal.fired, 0, monotonic_ns() + 20'000'000'000u), ETIMEDOUT);
  }
  fires.join();
}

TEST(BareLink, MayBeReliedOnAndKnowsOfNothingRevoked) {
  BareLink link;
  EXPECT_TRUE(link.settled());
  EXPECT_TRUE(link.check({}).ok());
  EXPECT_EQ(link.remote_address(), "");
  auto nic = Nic::create(NodeId{1}, 0);
  ASSERT_TRUE(nic.ok());
  EXPECT_FALSE(link.holds_slot(**nic, 0));
}

}  // namespace
}  // namespace clan::nic
