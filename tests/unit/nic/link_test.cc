// What a link does that has nothing of its own to do: sleep on the word, and answer for itself.
#include "nic/link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

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
  struct Put {
    std::uint64_t offset;
    std::size_t bytes;
    PutOrder order;
    bool operator==(const Put&) const = default;
  };
  Status put(const RemoteHandle&, std::uint64_t offset, std::span<const std::byte> bytes,
             PutOrder order) override {
    puts.push_back({offset, bytes.size(), order});
    return answer;
  }
  Status get(const RemoteHandle&, std::uint64_t, std::span<std::byte>) override { return {}; }
  Status after_access(const RemoteHandle&, std::uint64_t, std::uint64_t, AccessKind) override {
    return {};
  }
  TransferResult transfer(const Transfer&) override { return {}; }
  void cancel(std::uint64_t) override {}
  Status send_oob(const OobMessage&) override { return {}; }
  void shut_down() override {}
  std::vector<Put> puts;
  Status answer;
};

TEST(LinkSleep, EndsAtOnceWhereTheTripwireHasFiredSince) {
  BareLink link;
  shm::TripwireSignal signal{};
  signal.fired = 4;
  EXPECT_NE(link.sleep(signal, 3, monotonic_ns() + 20'000'000'000u), ETIMEDOUT);
}

TEST(LinkSleep, EndsAtItsDeadline) {
  BareLink link;
  shm::TripwireSignal signal{};
  EXPECT_EQ(link.sleep(signal, 0, monotonic_ns() + 5'000'000), ETIMEDOUT);
}

// The one that fires looks there whether somebody has to be woken.
TEST(LinkSleep, SaysThatSomebodySleepsBeforeItDoes) {
  BareLink link;
  shm::TripwireSignal signal{};
  std::thread fires([&] {
    while (signal.sleepers.load() == 0) std::this_thread::yield();
    signal.fired.fetch_add(1);
    futex_wake(signal.fired);
  });
  while (signal.fired.load() == 0) {
    ASSERT_NE(link.sleep(signal, 0, monotonic_ns() + 20'000'000'000u), ETIMEDOUT);
  }
  fires.join();
  EXPECT_EQ(signal.sleepers.load(), 1u);
}

TEST(BareLink, PublishesTheFirstWordBehindTheRest) {
  BareLink link;
  const std::byte bytes[24] = {};
  EXPECT_TRUE(link.publish({}, 64, bytes).ok());
  using Put = BareLink::Put;
  EXPECT_EQ(link.puts,
            (std::vector<Put>{{72, 16, PutOrder::kAny}, {64, 8, PutOrder::kAfterEarlier}}));
  link.puts.clear();
  EXPECT_TRUE(link.publish({}, 64, std::span(bytes).first(8)).ok());
  EXPECT_EQ(link.puts, (std::vector<Put>{{64, 8, PutOrder::kAfterEarlier}}));
  link.puts.clear();
  link.answer = Error{ESTALE, "gone"};
  EXPECT_EQ(link.publish({}, 64, bytes).error().err, ESTALE);
  EXPECT_EQ(link.puts.size(), 1u) << "no word without what belongs to it";
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
