// Accesses to the memory of a peer, between two domains of this process.
#include "transport/remote_memory.h"

#include <clan/detail/clock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "libfabric/transport/two_domains.h"

namespace clan::ofi {
namespace {

constexpr std::uint64_t kKey = 7;
constexpr std::uint64_t kAllRights = FI_REMOTE_READ | FI_REMOTE_WRITE;

class RemoteMemoryTest : public TwoDomains {
 protected:
  RemoteMemoryTest() {
    offer(region_, kAllRights);
    peer_.node = domain(*theirs_).context().node().value;
    peer_.uid = static_cast<std::uint32_t>(::geteuid());
  }
  /// The peer's memory behind kKey from now on.
  void offer(std::vector<std::byte>& memory, std::uint64_t rights) {
    mr_.reset();
    fid_mr* region = nullptr;
    ASSERT_EQ(fi_mr_reg(theirs_.get(), memory.data(), memory.size(), rights, 0, kKey, 0, &region,
                        nullptr),
              0);
    mr_.reset(region);
  }
  int write(std::uint64_t address, std::size_t length, std::uint64_t key = kKey) {
    ours_memory_.assign(length, std::byte{5});
    return memory_.access(peer_, true, key, address, ours_memory_.data(), length);
  }
  int read(std::uint64_t address, std::size_t length, std::uint64_t key = kKey) {
    ours_memory_.assign(length, std::byte{0});
    return memory_.access(peer_, false, key, address, ours_memory_.data(), length);
  }

  std::vector<std::byte> region_ = std::vector<std::byte>(10'000), ours_memory_;
  std::unique_ptr<fid_mr, CloseFid> mr_;
  Peer peer_;
  RemoteMemory memory_{domain(*ours_)};
};

TEST_F(RemoteMemoryTest, IsWrittenAndReadInItsPlace) {
  ASSERT_EQ(write(100, 50), 0);
  ASSERT_EQ(memory_.end(), 0);
  EXPECT_EQ(region_[99], std::byte{0});
  EXPECT_EQ(region_[100], std::byte{5});
  EXPECT_EQ(region_[149], std::byte{5});
  EXPECT_EQ(region_[150], std::byte{0});
  region_[9999] = std::byte{8};
  ASSERT_EQ(read(9990, 10), 0);
  ASSERT_EQ(memory_.end(), 0);
  EXPECT_EQ(ours_memory_[9], std::byte{8});
}

TEST_F(RemoteMemoryTest, OfNoBytesNeedsNoRegion) {
  EXPECT_EQ(read(0, 0, 99), 0);
  EXPECT_TRUE(peer_.regions.empty());
}

TEST_F(RemoteMemoryTest, BehindAnUnknownKeyIsNone) {
  EXPECT_EQ(read(0, 1, 99), -FI_ENOKEY);
  EXPECT_TRUE(peer_.regions.empty());
}

TEST_F(RemoteMemoryTest, EndsWhereItsRegionDoes) {
  EXPECT_EQ(write(9'985, 16), -FI_EINVAL);
  EXPECT_EQ(write(~std::uint64_t{0} - 3, 16), -FI_EINVAL);
  EXPECT_EQ(write(9'984, 16), 0);
}

TEST_F(RemoteMemoryTest, IsAccessedWithinItsRightsAlone) {
  offer(region_, FI_REMOTE_READ);
  EXPECT_EQ(read(0, 10), 0);
  EXPECT_EQ(write(0, 10), -FI_EACCES);
  EXPECT_EQ(region_[0], std::byte{0});
}

TEST_F(RemoteMemoryTest, ThatIsGoneIsNoneAlthoughItWasKnown) {
  ASSERT_EQ(read(0, 10), 0);
  mr_.reset();
  EXPECT_EQ(read(0, 10), -FI_ENOKEY);
}

TEST_F(RemoteMemoryTest, BehindAKeyThatHasAnotherRegionNowIsThat) {
  ASSERT_EQ(write(0, 10), 0);
  std::vector<std::byte> larger(20'000);
  offer(larger, kAllRights);
  EXPECT_EQ(write(19'990, 10), 0);
  EXPECT_EQ(larger[19'999], std::byte{5});
  mr_.reset();
}

TEST_F(RemoteMemoryTest, IsNotLookedUpAnewWhileRequestsReferToIt) {
  ASSERT_EQ(read(0, 10), 0);
  std::vector<std::byte> larger(20'000);
  offer(larger, kAllRights);
  peer_.far_reads = 1;
  EXPECT_EQ(write(0, 10), -FI_EAGAIN);
  peer_.far_reads = 0;
  EXPECT_EQ(write(0, 10), 0);
  mr_.reset();
}

TEST_F(RemoteMemoryTest, IsNotLookedUpWhileItsOwnerIsSilent) {
  peer_.silence.begin(monotonic_ns());
  EXPECT_EQ(read(0, 10), -FI_EAGAIN);
  peer_.silence.end();
  EXPECT_EQ(read(0, 10), 0);
  peer_.silence.begin(monotonic_ns());
  EXPECT_EQ(read(0, 10), 0) << "it is known";
}

TEST_F(RemoteMemoryTest, InPiecesIsOneBehindTheOther) {
  std::vector<std::byte> a(300), b(500);
  const iovec pieces[] = {{a.data(), a.size()}, {b.data(), b.size()}};
  mr_.reset();
  fid_mr* region = nullptr;
  ASSERT_EQ(fi_mr_regv(theirs_.get(), pieces, 2, kAllRights, 0, kKey, 0, &region, nullptr), 0);
  mr_.reset(region);
  ASSERT_EQ(write(290, 20), 0);
  EXPECT_EQ(a[289], std::byte{0});
  EXPECT_EQ(a[299], std::byte{5});
  EXPECT_EQ(b[9], std::byte{5});
  EXPECT_EQ(b[10], std::byte{0});
  ASSERT_EQ(write(300, 10), 0);
  EXPECT_EQ(write(790, 20), -FI_EINVAL);
  std::vector<std::size_t> at;
  ASSERT_EQ(memory_.visit(
                peer_, kKey, 100, 600,
                [&](RemoteAperture&, std::uint64_t offset, std::size_t before, std::size_t length) {
                  at.insert(at.end(), {offset, before, length});
                  return Status();
                }),
            0);
  EXPECT_EQ(at, (std::vector<std::size_t>{100, 0, 200, 0, 200, 400}));
  mr_.reset();
}

TEST_F(RemoteMemoryTest, KnowsWhetherItsOwnerWantsToHearOfAccesses) {
  EXPECT_FALSE(RemoteMemory::owner_listens(peer_, kKey));
  ASSERT_EQ(read(0, 10), 0);
  peer_.regions.at(kKey).tell_owner = false;
  EXPECT_FALSE(RemoteMemory::owner_listens(peer_, kKey));
  peer_.regions.at(kKey).tell_owner = true;
  EXPECT_TRUE(RemoteMemory::owner_listens(peer_, kKey));
  EXPECT_FALSE(RemoteMemory::owner_listens(peer_, kKey + 1));
}

}  // namespace
}  // namespace clan::ofi
