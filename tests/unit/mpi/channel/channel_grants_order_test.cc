// What the words of a segment tell the thread that decides about a channel: plain data that another
// thread has written before, under ThreadSanitizer. That both of a pair get one answer:
// channel_grants_test.cc.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>

#include "plugins/mpi/channel/channel_grants.h"
#include "support/hand_over.h"

namespace clan::mpi::order {
namespace {

constexpr NodeId kRank{0x100};

/// A word that another thread changes after the first read of it, which shows `first`.
template <typename Value>
struct Late {
  Value load(std::memory_order order) { return looks++ == 0 ? first : word.load(order); }
  void store(Value value, std::memory_order order) { word.store(value, order); }
  bool compare_exchange_strong(Value&, Value, std::memory_order) { return false; }
  Value first;
  std::atomic<Value>& word;
  int looks = 0;
};

/// With one channel.
template <typename Owner = std::atomic<std::uint64_t>&,
          typename Closed = std::atomic<std::uint32_t>&>
struct Table {
  std::uint32_t size() const { return 1; }
  std::uint32_t used() const { return 1; }
  void use(std::uint32_t) const {}
  Owner owner(std::uint32_t) const { return owner_; }
  Closed closed() const { return closed_; }
  bool leaving(std::uint32_t) const { return false; }
  Owner owner_;
  Closed closed_;
};

class GrantOrder : public ::testing::Test {
 protected:
  /// What `first` has written before is there for `second`, by what they do to the words alone.
  template <typename First, typename Second>
  void hand_over(First&& first, Second&& second) {
    std::uint64_t data = 0;
    test::hand_over([&] { data = 7, first(); },
                    [&] {
                      second();
                      EXPECT_EQ(data, 7u);
                    });
  }
  void grant() { EXPECT_TRUE(change_owner(owner_, 0, owner_word(kRank, ChannelState::kGranted))); }
  void refuse() { EXPECT_TRUE(refuse_rank(table_, kRank)); }

  std::atomic<std::uint64_t> owner_{0};
  std::atomic<std::uint32_t> closed_{0};
  const Table<> table_{owner_, closed_};
};

TEST_F(GrantOrder, OneThatFindsAChannelTakenSeesWhatItsOwnerDidBefore) {
  const std::uint64_t taken = owner_word(kRank, ChannelState::kTaken);
  hand_over([&] { EXPECT_TRUE(change_owner(owner_, 0, taken)); },
            [&] { EXPECT_TRUE(has_taken(table_, kRank)); });
}

TEST_F(GrantOrder, OneThatFindsAGrantSeesWhatCameBefore) {
  hand_over([&] { grant(); }, [&] { EXPECT_EQ(find_granted(table_, kRank), 0u); });
}

TEST_F(GrantOrder, OneThatIsTooLateWithAGrantSeesWhatCameBeforeTheOther) {
  hand_over([&] { grant(); },
            [&] {
              using Owner = Late<std::uint64_t>;
              const Table<Owner> table{{owner_word(kRank, ChannelState::kAsked), owner_}, closed_};
              EXPECT_EQ(find_granted_at(table, 0, kRank), 0u);
            });
}

TEST_F(GrantOrder, OneThatIsRefusedSeesWhatCameBefore) {
  hand_over([&] { refuse(); }, [&] { EXPECT_FALSE(ask_for_channel(table_, kRank, false)); });
}

TEST_F(GrantOrder, OneThatIsRefusedWhenItHasAskedSeesWhatCameBefore) {
  hand_over([&] { refuse(); },
            [&] {
              std::uint64_t nobody = 0;
              std::atomic<std::uint64_t> owner{nobody};
              Late<std::uint32_t> closed{0, closed_};
              const Table<std::atomic<std::uint64_t>&, Late<std::uint32_t>&> table{owner, closed};
              EXPECT_FALSE(ask_for_channel(table, kRank, false));
            });
}

}  // namespace
}  // namespace clan::mpi::order
