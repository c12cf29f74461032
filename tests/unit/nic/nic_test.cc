#include "nic/nic.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace clan::nic {
namespace {

constexpr NodeId kNode{0x1234};
constexpr std::uint64_t kLength = 4 * kPageSize;

const std::function<bool(std::uint32_t)> kAllAlive = [](std::uint32_t) { return true; };

class NicTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = Nic::create(kNode, ::geteuid());
    ASSERT_TRUE(made) << made.error().message();
    nic_ = std::move(*made);
    block_ = new_block(kLength);
    ASSERT_TRUE(block_);
  }
  static std::shared_ptr<MemoryBlock> new_block(std::size_t bytes) {
    auto block = MemoryBlock::create(bytes);
    return block ? *block : nullptr;
  }
  ApertureSpec part(std::uint64_t offset, std::uint64_t length,
                    Rights rights = Rights::kReadWrite) {
    return {block_->data() + offset, length, rights, block_};
  }
  RdmaCookie export_part(std::uint64_t offset, std::uint64_t length,
                         Rights rights = Rights::kReadWrite) {
    auto cookie = nic_->export_aperture(part(offset, length, rights));
    EXPECT_TRUE(cookie) << cookie.error().message();
    return cookie ? *cookie : RdmaCookie{};
  }
  // What a peer has after it has been passed the descriptor of a cookie's memory.
  Mapping map_as_peer(const RdmaCookie& cookie,
                      Mapping::Access access = Mapping::Access::kReadWrite) {
    auto grant = nic_->check_cookie(cookie);
    if (!grant) return {};
    auto mapping = Mapping::map(grant->memfd, grant->memory_bytes, access);
    return mapping ? std::move(*mapping) : Mapping{};
  }
  std::uint32_t trip(const TripwireSpec& spec) {
    auto tripwire = nic_->add_tripwire(spec);
    EXPECT_TRUE(tripwire) << tripwire.error().message();
    return tripwire ? *tripwire : shm::kNoTripwire;
  }
  void write(std::uint32_t aperture, std::uint64_t offset, std::uint64_t length) {
    match_tripwires(nic_->image(), aperture, offset, length, AccessKind::kWrite);
  }
  void read(std::uint32_t aperture, std::uint64_t offset, std::uint64_t length) {
    match_tripwires(nic_->image(), aperture, offset, length, AccessKind::kRead);
  }

  std::unique_ptr<Nic> nic_;
  std::shared_ptr<MemoryBlock> block_;
};

using NicExport = NicTest;
using NicRevoke = NicTest;
using NicReadOnly = NicTest;
using NicTripwire = NicTest;
using NicEvents = NicTest;

// ---- export -------------------------------------------------------------------------------------

TEST_F(NicExport, GrantsMemoryToTheHolderOfItsCookie) {
  RdmaCookie cookie = export_part(100, 5000);
  EXPECT_EQ(cookie.node, kNode);
  EXPECT_EQ(cookie.offset, 100u);
  EXPECT_EQ(cookie.length, 5000u);
  auto grant = nic_->check_cookie(cookie);
  ASSERT_TRUE(grant);
  EXPECT_NE(grant->memory_id, 0u);
  EXPECT_EQ(grant->memory_bytes, kLength);
  EXPECT_FALSE(grant->read_only);
  Mapping peer = map_as_peer(cookie);
  ASSERT_TRUE(peer);
  peer.data()[150] = std::byte{42};
  EXPECT_EQ(block_->data()[150], std::byte{42});
  EXPECT_EQ(nic_->live_apertures(), 1u);
}

// Peers of several users have a NIC each, with a lock of its own, and may share a memory.
TEST_F(NicExport, OfOneMemoryByTwoNicsIsAskedForAtTheSameTime) {
  auto other = Nic::create(NodeId{0x1235}, ::geteuid());
  ASSERT_TRUE(other);
  std::atomic<int> there{0}, wrong{0};
  const auto ask = [&](Nic& nic, std::uint64_t offset) {
    const auto cookie = nic.export_aperture(part(offset, kPageSize));
    for (++there; there < 2;) std::this_thread::yield();
    for (int k = 0; k < 200'000; ++k) {
      if (!cookie || !nic.check_cookie(*cookie)) ++wrong;
    }
  };
  std::thread beside([&] { ask(**other, 0); });
  ask(*nic_, 2 * kPageSize);
  beside.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(NicExport, GrantsNoMemoryThatIsTheCallersOwn) {
  std::vector<std::byte> own(1000);
  auto cookie = nic_->export_aperture({own.data(), own.size(), Rights::kWrite, nullptr});
  ASSERT_TRUE(cookie);
  auto grant = nic_->check_cookie(*cookie);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->memory_id, 0u);
  EXPECT_EQ(grant->memfd, -1);
}

TEST_F(NicExport, RefusesForgedCookies) {
  const RdmaCookie good = export_part(0, 1000, Rights::kWrite);
  auto error_of = [&](auto&& change) {
    RdmaCookie cookie = good;
    change(cookie);
    auto grant = nic_->check_cookie(cookie);
    return grant ? 0 : grant.error().err;
  };
  EXPECT_EQ(error_of([](RdmaCookie&) {}), 0);
  EXPECT_EQ(error_of([](RdmaCookie& c) { c.key ^= 1; }), EACCES);
  EXPECT_EQ(error_of([](RdmaCookie& c) { c.length += 1; }), EACCES);
  EXPECT_EQ(error_of([](RdmaCookie& c) { c.length = ~std::uint64_t{0}; }), EACCES);
  EXPECT_EQ(error_of([](RdmaCookie& c) { c.rights = Rights::kReadWrite; }), EACCES);
  EXPECT_EQ(error_of([](RdmaCookie& c) { c.generation += 2; }), ESTALE);
  EXPECT_EQ(error_of([](RdmaCookie& c) { c.node.value += 1; }), ESTALE);
  EXPECT_EQ(error_of([](RdmaCookie& c) { c.aperture += 1; }), ESTALE);
  EXPECT_EQ(error_of([](RdmaCookie& c) { c.aperture = 0xffffffff; }), ESTALE);
}

TEST_F(NicExport, PublishesAnImageOfTheKeyAndNotTheKey) {
  RdmaCookie cookie = export_part(0, 1000);
  const auto& entry = nic_->image().tables->apertures[cookie.aperture];
  EXPECT_EQ(entry.key_image.load(), key_image(cookie));
  EXPECT_NE(entry.key_image.load(), cookie.key);
  for (auto change :
       {+[](RdmaCookie& c) { c.key ^= 1; }, +[](RdmaCookie& c) { c.length ^= 1; },
        +[](RdmaCookie& c) { c.rights = Rights::kRead; }, +[](RdmaCookie& c) { c.generation += 2; },
        +[](RdmaCookie& c) { c.aperture += 1; }}) {
    RdmaCookie other = cookie;
    change(other);
    EXPECT_NE(key_image(other), key_image(cookie));
  }
}

TEST_F(NicExport, RefusesWhatItCannotShow) {
  auto error_of = [&](const ApertureSpec& spec) {
    auto cookie = nic_->export_aperture(spec);
    return cookie ? 0 : cookie.error().err;
  };
  EXPECT_EQ(error_of({nullptr, 10, Rights::kRead, nullptr}), EINVAL);
  EXPECT_EQ(error_of(part(0, 0)), EINVAL);
  EXPECT_EQ(error_of(part(0, 10, Rights::kNone)), EINVAL);
  EXPECT_EQ(error_of(part(0, kLength + 1)), ERANGE);
  EXPECT_EQ(error_of(part(kLength - 1, 2)), ERANGE);
  EXPECT_EQ(error_of(part(8, ~std::uint64_t{0})), ERANGE);
  EXPECT_EQ(nic_->live_apertures(), 0u);
}

TEST_F(NicExport, ResolvesAccessesWithinBoundsAndRights) {
  RdmaCookie c = export_part(64, 1000, Rights::kWrite);
  auto at = [&](std::uint64_t offset, std::uint64_t length, Rights right = Rights::kWrite) {
    const auto landing = nic_->resolve(c.aperture, c.generation, offset, length, right);
    auto* const found = landing.get();
    return found;
  };
  EXPECT_EQ(at(0, 1000), block_->data() + 64);
  EXPECT_EQ(at(999, 1), block_->data() + 64 + 999);
  EXPECT_EQ(at(1000, 0), block_->data() + 64 + 1000);
  EXPECT_EQ(at(1000, 1), nullptr);
  EXPECT_EQ(at(1, 1000), nullptr);
  EXPECT_EQ(at(~std::uint64_t{0}, 2), nullptr);
  EXPECT_EQ(at(2, ~std::uint64_t{0}), nullptr);
  EXPECT_EQ(at(0, 1, Rights::kRead), nullptr);
  EXPECT_FALSE(nic_->resolve(c.aperture, c.generation + 2, 0, 1, Rights::kWrite));
  EXPECT_FALSE(nic_->resolve(c.aperture + 1, c.generation, 0, 1, Rights::kWrite));
  nic_->retire(c.aperture);
  EXPECT_EQ(at(0, 1), nullptr);
}

// ---- revoke -------------------------------------------------------------------------------------

TEST_F(NicRevoke, TakesTheMemoryAwayFromAPeerThatStillHasItMapped) {
  RdmaCookie cookie = export_part(0, kLength);
  Mapping peer = map_as_peer(cookie);
  ASSERT_TRUE(peer);
  std::memset(block_->data(), 'o', kLength);
  peer.data()[1] = std::byte{'p'};
  const std::byte* const before = block_->data();
  ASSERT_TRUE(nic_->revoke(cookie.aperture, kAllAlive));

  EXPECT_EQ(block_->data(), before);
  std::memset(peer.data(), 'x', kLength);  // of no use any more
  for (std::uint64_t i = 0; i < kLength; ++i) {
    ASSERT_EQ(block_->data()[i], std::byte(i == 1 ? 'p' : 'o')) << i;
  }
  block_->data()[7] = std::byte{'s'};  // and blind
  EXPECT_EQ(peer.data()[7], std::byte{'x'});
  auto grant = nic_->check_cookie(cookie);
  ASSERT_FALSE(grant);
  EXPECT_EQ(grant.error().err, ESTALE);
  EXPECT_EQ(nic_->live_apertures(), 0u);
}

TEST_F(NicRevoke, LeavesOtherPagesOfTheMemoryShared) {
  RdmaCookie first = export_part(0, kPageSize);
  RdmaCookie middle = export_part(kPageSize + 10, 100);
  RdmaCookie last = export_part(2 * kPageSize, 2 * kPageSize);
  Mapping peer = map_as_peer(first);
  ASSERT_TRUE(peer);
  ASSERT_TRUE(nic_->revoke(middle.aperture, kAllAlive));
  peer.data()[5] = std::byte{1};
  peer.data()[kPageSize + 20] = std::byte{2};
  peer.data()[2 * kPageSize] = std::byte{3};
  EXPECT_EQ(block_->data()[5], std::byte{1});
  EXPECT_EQ(block_->data()[kPageSize + 20], std::byte{0});
  EXPECT_EQ(block_->data()[2 * kPageSize], std::byte{3});
  EXPECT_TRUE(nic_->check_cookie(first));
  EXPECT_TRUE(nic_->check_cookie(last));
}

// A thread that is about to pass the descriptor on, while another one revokes: the number must not
// be that of the next file that the program opens.
TEST_F(NicRevoke, LeavesADescriptorOpenThatHasBeenGrantedBefore) {
  RdmaCookie cookie = export_part(0, kLength);
  auto grant = nic_->check_cookie(cookie);
  ASSERT_TRUE(grant);
  struct stat before {
  }, after{};
  ASSERT_EQ(::fstat(grant->memfd, &before), 0);
  const int number = grant->memfd;
  ASSERT_TRUE(nic_->revoke(cookie.aperture, kAllAlive));
  EXPECT_EQ(::fstat(number, &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino);
  grant = Error{ESTALE, "of no use any more"};
  EXPECT_LT(::fcntl(number, F_GETFD), 0) << "nothing else keeps it";
}

TEST_F(NicRevoke, AllowsAFreshExportOfTheSameMemory) {
  RdmaCookie old = export_part(0, kLength);
  Mapping old_peer = map_as_peer(old);
  const std::uint64_t old_id = nic_->check_cookie(old)->memory_id;
  ASSERT_TRUE(nic_->revoke(old.aperture, kAllAlive));
  RdmaCookie fresh = export_part(0, kLength);
  EXPECT_NE(fresh.key, old.key);
  EXPECT_FALSE(fresh.aperture == old.aperture && fresh.generation == old.generation);
  EXPECT_FALSE(nic_->check_cookie(old));
  auto grant = nic_->check_cookie(fresh);
  ASSERT_TRUE(grant);
  EXPECT_NE(grant->memory_id, old_id);
  Mapping peer = map_as_peer(fresh);
  ASSERT_TRUE(peer);
  peer.data()[9] = std::byte{9};
  EXPECT_EQ(block_->data()[9], std::byte{9});
  EXPECT_EQ(old_peer.data()[9], std::byte{0});
}

TEST_F(NicRevoke, GivesSplitMemoryOneFileAgainWhenItIsExportedAsAWhole) {
  std::memset(block_->data(), 'k', kLength);
  RdmaCookie second_page = export_part(kPageSize, kPageSize);
  ASSERT_TRUE(nic_->revoke(second_page.aperture, kAllAlive));
  RdmaCookie first_page = export_part(0, kPageSize);
  auto whole = nic_->export_aperture(part(0, kLength));
  ASSERT_FALSE(whole);
  EXPECT_EQ(whole.error().err, EBUSY);
  nic_->retire(first_page.aperture);
  RdmaCookie cookie = export_part(0, kLength);
  Mapping peer = map_as_peer(cookie);
  ASSERT_TRUE(peer);
  for (std::uint64_t i = 0; i < kLength; i += 512) ASSERT_EQ(peer.data()[i], std::byte{'k'}) << i;
  peer.data()[kLength - 1] = std::byte{'p'};
  EXPECT_EQ(block_->data()[kLength - 1], std::byte{'p'});
}

TEST_F(NicRevoke, RefusesWhileALiveApertureSharesAPage) {
  RdmaCookie a = export_part(0, kPageSize + 1);
  RdmaCookie b = export_part(kPageSize + 100, 100);
  EXPECT_EQ(nic_->revoke(a.aperture, kAllAlive).error().err, EBUSY);
  EXPECT_TRUE(nic_->check_cookie(a));
  nic_->retire(b.aperture);
  EXPECT_TRUE(nic_->revoke(a.aperture, kAllAlive));
  EXPECT_EQ(nic_->revoke(a.aperture, kAllAlive).error().err, EINVAL);
  EXPECT_EQ(nic_->revoke(12345, kAllAlive).error().err, EINVAL);
}

TEST_F(NicRevoke, MakesAccessesGoTheSlowWay) {
  RdmaCookie cookie = export_part(0, 1000);
  const auto& entry = nic_->image().tables->apertures[cookie.aperture];
  EXPECT_EQ(entry.armed.load(), 0u);
  EXPECT_EQ(entry.generation.load() & 1, 1u);
  ASSERT_TRUE(nic_->revoke(cookie.aperture, kAllAlive));
  EXPECT_NE(entry.armed.load(), 0u);
  EXPECT_EQ(entry.generation.load() & 1, 0u);
}

TEST_F(NicRevoke, WaitsForALandingUnderWay) {
  RdmaCookie cookie = export_part(0, 1000);
  Nic::Landing landing = nic_->resolve(cookie.aperture, cookie.generation, 0, 10, Rights::kWrite);
  ASSERT_TRUE(landing);
  std::atomic<bool> landed{false};
  std::thread link([&] {
    ::usleep(20000);
    std::memset(landing.get(), 'l', 10);
    landed = true;
    landing = Nic::Landing();
  });
  EXPECT_TRUE(nic_->revoke(cookie.aperture, kAllAlive));
  EXPECT_TRUE(landed);
  EXPECT_EQ(block_->data()[9], std::byte{'l'});
  link.join();
}

TEST_F(NicRevoke, OfOwnMemoryWaitsForCopiesUnderWay) {
  std::vector<std::byte> own(1000);
  auto cookie = nic_->export_aperture({own.data(), own.size(), Rights::kReadWrite, nullptr});
  ASSERT_TRUE(cookie);
  auto slot = nic_->add_peer_slot();
  ASSERT_TRUE(slot);
  auto& epoch = nic_->image().signals->activity[*slot].epoch[shm::kDmaLanes - 1];
  epoch.store(1);
  std::atomic<bool> copying{true};
  std::thread peer([&] {
    ::usleep(20000);
    copying = false;
    epoch.store(2);
  });
  EXPECT_TRUE(nic_->revoke(cookie->aperture, kAllAlive));
  EXPECT_FALSE(copying);
  peer.join();
}

TEST_F(NicRevoke, OfOwnMemoryDoesNotWaitForADeadPeer) {
  std::vector<std::byte> own(1000);
  auto cookie = nic_->export_aperture({own.data(), own.size(), Rights::kReadWrite, nullptr});
  ASSERT_TRUE(cookie);
  auto slot = nic_->add_peer_slot();
  ASSERT_TRUE(slot);
  nic_->image().signals->activity[*slot].epoch[0].store(1);
  std::vector<std::uint32_t> asked;
  EXPECT_TRUE(nic_->revoke(cookie->aperture, [&](std::uint32_t s) {
    asked.push_back(s);
    return asked.size() < 3;
  }));
  EXPECT_EQ(asked, (std::vector<std::uint32_t>(3, *slot)));
}

// ---- read-only memory ---------------------------------------------------------------------------

// Tries everything a peer with the descriptor can.
void expect_read_only(int memfd) {
  void* p = ::mmap(nullptr, kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  EXPECT_EQ(p, MAP_FAILED) << "memory granted for reading can be mapped writable";
  if (p != MAP_FAILED) ::munmap(p, kPageSize);
  EXPECT_LT(::pwrite(memfd, "x", 1, 0), 0);
  p = ::mmap(nullptr, kPageSize, PROT_READ, MAP_SHARED, memfd, 0);
  ASSERT_NE(p, MAP_FAILED);
  EXPECT_NE(::mprotect(p, kPageSize, PROT_READ | PROT_WRITE), 0);
  ::munmap(p, kPageSize);
  const int again = ::open(("/proc/self/fd/" + std::to_string(memfd)).c_str(), O_RDWR | O_CLOEXEC);
  if (again >= 0) {
    p = ::mmap(nullptr, kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
    EXPECT_EQ(p, MAP_FAILED);
    if (p != MAP_FAILED) ::munmap(p, kPageSize);
    ::close(again);
  }
}

TEST_F(NicReadOnly, CannotBeMappedForWriting) {
  RdmaCookie cookie = export_part(0, kLength, Rights::kRead);
  auto grant = nic_->check_cookie(cookie);
  ASSERT_TRUE(grant);
  EXPECT_TRUE(grant->read_only);
  expect_read_only(grant->memfd);
  Mapping peer = map_as_peer(cookie, Mapping::Access::kRead);
  ASSERT_TRUE(peer);
  block_->data()[3] = std::byte{3};
  EXPECT_EQ(peer.data()[3], std::byte{3});
}

TEST_F(NicReadOnly, CannotBeMappedForWritingAfterARevocationEither) {
  RdmaCookie cookie = export_part(0, kLength, Rights::kRead);
  ASSERT_TRUE(nic_->revoke(cookie.aperture, kAllAlive));
  cookie = export_part(0, kLength, Rights::kRead);
  auto grant = nic_->check_cookie(cookie);
  ASSERT_TRUE(grant);
  EXPECT_TRUE(grant->read_only);
  expect_read_only(grant->memfd);
  block_->data()[3] = std::byte{3};  // the owner still can
}

TEST_F(NicReadOnly, CannotBeMappedForWritingAfterItHasBeenMadeWholeAgain) {
  RdmaCookie page = export_part(0, kPageSize, Rights::kRead);
  ASSERT_TRUE(nic_->revoke(page.aperture, kAllAlive));
  RdmaCookie cookie = export_part(0, kLength, Rights::kRead);
  auto grant = nic_->check_cookie(cookie);
  ASSERT_TRUE(grant);
  expect_read_only(grant->memfd);
}

TEST_F(NicReadOnly, ExcludesExportsForWriting) {
  RdmaCookie writable = export_part(0, 100, Rights::kWrite);
  auto read_only = nic_->export_aperture(part(kPageSize, 100, Rights::kRead));
  ASSERT_FALSE(read_only);
  EXPECT_EQ(read_only.error().err, EBUSY);
  nic_->retire(writable.aperture);
  EXPECT_TRUE(nic_->export_aperture(part(kPageSize, 100, Rights::kRead)));
  auto late = nic_->export_aperture(part(0, 100, Rights::kWrite));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().err, EPERM);
}

TEST_F(NicReadOnly, ProtectsTheTablesFromPeers) {
  void* p = ::mmap(nullptr, kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED, nic_->tables_memfd(), 0);
  EXPECT_EQ(p, MAP_FAILED);
  p = ::mmap(nullptr, kPageSize, PROT_READ, MAP_SHARED, nic_->tables_memfd(), 0);
  ASSERT_NE(p, MAP_FAILED);
  EXPECT_EQ(static_cast<const shm::NicHeader*>(p)->magic, shm::kNicMagic);
  ::munmap(p, kPageSize);
}

// ---- tripwires ----------------------------------------------------------------------------------

TEST_F(NicTripwire, FiresForWritesThatOverlapItsRangeOnly) {
  RdmaCookie c = export_part(0, kLength);
  std::uint32_t t = trip({c.aperture, 1000, 100});
  struct {
    std::uint64_t offset, length;
    bool fires;
  } cases[] = {{999, 1, false},
               {1100, 1, false},
               {900, 100, false},
               {999, 2, true},
               {1000, 1, true},
               {1099, 1, true},
               {1099, 500, true},
               {0, kLength, true},
               {1050, 0, false},
               {1050, 10, true},
               {0, ~std::uint64_t{0}, true},
               {1098, ~std::uint64_t{0}, true},
               {1100, ~std::uint64_t{0} - 1, false}};
  for (const auto& k : cases) {
    nic_->arm(t);
    (void)nic_->test_and_clear(t);
    write(c.aperture, k.offset, k.length);
    EXPECT_EQ(nic_->test_and_clear(t), k.fires) << k.offset << " + " << k.length;
  }
}

TEST_F(NicTripwire, TellsReadsFromWrites) {
  RdmaCookie c = export_part(0, kLength);
  std::uint32_t on_write = trip({c.aperture, 0, 8, shm::kTripOnWrite});
  std::uint32_t on_read = trip({c.aperture, 0, 8, shm::kTripOnRead});
  std::uint32_t on_both = trip({c.aperture, 0, 8, shm::kTripOnRead | shm::kTripOnWrite});
  auto arm = [&] { nic_->arm_all(std::vector<std::uint32_t>{on_write, on_read, on_both}); };
  arm();
  write(c.aperture, 0, 8);
  EXPECT_TRUE(nic_->test_and_clear(on_write));
  EXPECT_FALSE(nic_->test_and_clear(on_read));
  EXPECT_TRUE(nic_->test_and_clear(on_both));
  arm();
  read(c.aperture, 0, 8);
  EXPECT_FALSE(nic_->test_and_clear(on_write));
  EXPECT_TRUE(nic_->test_and_clear(on_read));
  EXPECT_TRUE(nic_->test_and_clear(on_both));
}

TEST_F(NicTripwire, FiresOncePerArmingUnlessPersistent) {
  RdmaCookie c = export_part(0, kLength);
  std::uint32_t once = trip({c.aperture, 0, 8});
  std::uint32_t always = trip({c.aperture, 0, 8, shm::kTripOnWrite | shm::kTripPersistent});
  const auto& signals = nic_->image().signals->tripwires;
  write(c.aperture, 0, 8);  // not armed yet
  EXPECT_EQ(signals[once].fired.news.load(), 0u);
  EXPECT_EQ(signals[always].fired.news.load(), 0u);
  nic_->arm_all(std::vector<std::uint32_t>{once, always});
  for (int i = 0; i < 5; ++i) write(c.aperture, 0, 8);
  EXPECT_EQ(signals[once].fired.news.load(), 1u);
  EXPECT_EQ(signals[always].fired.news.load(), 5u);
  nic_->arm(once);
  write(c.aperture, 0, 8);
  EXPECT_EQ(signals[once].fired.news.load(), 2u);
  nic_->disarm(always);
  write(c.aperture, 0, 8);
  EXPECT_EQ(signals[always].fired.news.load(), 6u);
}

TEST_F(NicTripwire, SetsItsBitOfTheStateBitmapUntilItIsCleared) {
  RdmaCookie c = export_part(0, kLength);
  std::vector<std::uint32_t> trips;
  for (int i = 0; i < 130; ++i)
    trips.push_back(trip({c.aperture, 8u * static_cast<unsigned>(i), 8}));
  nic_->arm_all(trips);
  write(c.aperture, 8 * 64, 8 * 66);
  for (std::size_t i = 0; i < trips.size(); ++i) {
    const std::uint64_t word = nic_->image().signals->tripwire_state[trips[i] / 64].load();
    EXPECT_EQ(word >> trips[i] % 64 & 1, i >= 64 ? 1u : 0u) << i;
  }
  EXPECT_TRUE(nic_->test_and_clear(trips[64]));
  EXPECT_FALSE(nic_->test_and_clear(trips[64]));
  EXPECT_FALSE(nic_->test_and_clear(shm::kMaxTripwires));
}

TEST_F(NicTripwire, KeepsTheSummaryOfWhatIsArmed) {
  RdmaCookie c = export_part(0, kLength);
  const auto& armed = nic_->image().tables->apertures[c.aperture].armed;
  std::uint32_t a = trip({c.aperture, 0, 8});
  std::uint32_t b = trip({c.aperture, kLength - 8, 8});
  EXPECT_EQ(armed.load(), 0u);
  nic_->arm(a);
  EXPECT_EQ(armed.load(), shm::chunk_mask(kLength, 0, 8));
  nic_->arm(b);
  EXPECT_EQ(armed.load(),
            shm::chunk_mask(kLength, 0, 8) | shm::chunk_mask(kLength, kLength - 8, 8));
  nic_->disarm(a);
  EXPECT_EQ(armed.load(), shm::chunk_mask(kLength, kLength - 8, 8));
  nic_->remove_tripwire(b);
  EXPECT_EQ(armed.load(), 0u);
}

TEST_F(NicTripwire, OfAReceiverThatSleepsOftenStaysInTheSummaryWhileItRests) {
  RdmaCookie c = export_part(0, kLength);
  const auto& armed = nic_->image().tables->apertures[c.aperture].armed;
  const auto& signals = nic_->image().signals->tripwires;
  const std::uint32_t rests = trip({c.aperture, 0, 8}), other = trip({c.aperture, 0, 8});
  const std::uint32_t both[] = {rests, other};
  nic_->arm_all(both);
  nic_->rest(rests);
  nic_->disarm(other);
  EXPECT_EQ(armed.load(), shm::chunk_mask(kLength, 0, 8));
  EXPECT_FALSE(is_any_armed(nic_->image(), c.aperture));
  write(c.aperture, 0, 8);
  EXPECT_EQ(signals[rests].fired.news.load(), 0u);
  EXPECT_TRUE(nic_->end_rest(c.aperture));  // it was armed since the last call
  nic_->arm(rests);
  EXPECT_TRUE(is_any_armed(nic_->image(), c.aperture));
  EXPECT_FALSE(nic_->end_rest(c.aperture));  // it does not rest
  write(c.aperture, 0, 8);
  EXPECT_EQ(signals[rests].fired.news.load(), 1u);
  nic_->rest(rests);
  EXPECT_TRUE(nic_->end_rest(c.aperture));
  EXPECT_FALSE(nic_->end_rest(c.aperture));  // not armed since the last call
  EXPECT_EQ(armed.load(), 0u);
  EXPECT_FALSE(nic_->end_rest(c.aperture));
  nic_->arm(rests);
  write(c.aperture, 0, 8);
  EXPECT_EQ(signals[rests].fired.news.load(), 2u);
}

TEST_F(NicTripwire, MustLieInALiveAperture) {
  RdmaCookie c = export_part(0, 1000);
  auto error_of = [&](const TripwireSpec& spec) {
    auto t = nic_->add_tripwire(spec);
    return t ? 0 : t.error().err;
  };
  EXPECT_EQ(error_of({c.aperture, 0, 0}), ERANGE);
  EXPECT_EQ(error_of({c.aperture, 999, 2}), ERANGE);
  EXPECT_EQ(error_of({c.aperture, 1001, 1}), ERANGE);
  EXPECT_EQ(error_of({c.aperture, 8, ~std::uint64_t{0}}), ERANGE);
  EXPECT_EQ(error_of({c.aperture, 0, 8, shm::kTripPersistent}), EINVAL);
  EXPECT_EQ(error_of({c.aperture + 1, 0, 8}), EINVAL);
  nic_->retire(c.aperture);
  EXPECT_EQ(error_of({c.aperture, 0, 8}), EINVAL);
}

TEST_F(NicTripwire, GoesWithItsAperture) {
  RdmaCookie c = export_part(0, kLength);
  std::uint32_t t = trip({c.aperture, 0, 8});
  nic_->arm(t);
  EXPECT_EQ(nic_->live_tripwires(), 1u);
  nic_->retire(c.aperture);
  EXPECT_EQ(nic_->live_tripwires(), 0u);
  write(c.aperture, 0, 8);
  EXPECT_FALSE(nic_->test_and_clear(t));
  nic_->arm(t);  // of no effect
  write(c.aperture, 0, 8);
  EXPECT_FALSE(nic_->test_and_clear(t));
  // The next aperture in the same place begins without any.
  RdmaCookie next = export_part(0, kLength);
  write(next.aperture, 0, kLength);
  EXPECT_FALSE(nic_->test_and_clear(t));
}

TEST_F(NicTripwire, FindsAllOf4096OnOneApertureAndRefusesMore) {
  RdmaCookie c = export_part(0, kLength);
  std::vector<std::uint32_t> trips;
  for (std::uint64_t i = 0; i < 4096; ++i) trips.push_back(trip({c.aperture, i * 4, 4}));
  auto more = nic_->add_tripwire({c.aperture, 0, 4});
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().err, ENOSPC);
  nic_->arm_all(trips);
  for (std::uint64_t i : {0u, 1u, 2047u, 4095u}) {
    write(c.aperture, i * 4, 4);
    for (std::uint64_t k = 0; k < 4096; ++k) {
      ASSERT_EQ(nic_->test_and_clear(trips[k]), k == i) << i << ", " << k;
    }
  }
  // Another aperture has room for more than these 4096.
  auto other_block = new_block(kPageSize);
  auto other = nic_->export_aperture({other_block->data(), 64, Rights::kReadWrite, other_block});
  ASSERT_TRUE(other);
  std::uint32_t t = trip({other->aperture, 0, 64});
  EXPECT_GE(t, 4096u);
  nic_->arm(t);
  write(other->aperture, 0, 1);
  EXPECT_TRUE(nic_->test_and_clear(t));
}

TEST_F(NicTripwire, IsFoundAfterRandomRemovalsAndReuse) {
  RdmaCookie c = export_part(0, kLength);
  std::mt19937 random(7);
  struct Live {
    std::uint32_t index;
    std::uint64_t start, end;
  };
  std::vector<Live> live;
  for (int step = 0; step < 2000; ++step) {
    if (live.size() < 40 && random() % 2 == 0) {
      const std::uint64_t start = random() % kLength;
      const std::uint64_t length = random() % std::min<std::uint64_t>(kLength - start, 300) + 1;
      live.push_back({trip({c.aperture, start, std::min(length, kLength - start)}), start,
                      std::min(start + length, kLength)});
      for (std::size_t i = 0; i + 1 < live.size(); ++i) ASSERT_NE(live[i].index, live.back().index);
    } else if (!live.empty() && random() % 3 == 0) {
      std::swap(live[random() % live.size()], live.back());
      nic_->remove_tripwire(live.back().index);
      live.pop_back();
    }
    ASSERT_EQ(nic_->live_tripwires(), live.size());
    for (const Live& t : live) {
      if (random() % 2 == 0) nic_->arm(t.index);
    }
    std::vector<bool> armed;
    for (const Live& t : live) {
      armed.push_back(shm::is_armed(nic_->image().signals->tripwires[t.index].armed.load()));
    }
    const std::uint64_t offset = random() % kLength;
    const std::uint64_t length = random() % 500 + 1;
    write(c.aperture, offset, length);
    for (std::size_t i = 0; i < live.size(); ++i) {
      const bool overlaps = live[i].start < offset + length && offset < live[i].end;
      ASSERT_EQ(nic_->test_and_clear(live[i].index), armed[i] && overlaps) << "step " << step;
    }
  }
}

TEST_F(NicTripwire, EndsItsSearchInATableThatLoops) {
  RdmaCookie c = export_part(0, kLength);
  std::uint32_t t = trip({c.aperture, 0, 8});
  nic_->arm(t);
  // A hostile owner's table, as its peers read it.
  auto& entry = const_cast<shm::TripwireEntry&>(nic_->image().tables->tripwires[t]);
  entry.next.store(t);
  entry.flags.store(~0u);
  entry.event.store(~0u);
  entry.queue.store(~0u);
  write(c.aperture, 0, 8);
  entry.aperture.store(77);
  write(c.aperture, 0, 8);
  auto& aperture = const_cast<shm::ApertureEntry&>(nic_->image().tables->apertures[c.aperture]);
  for (std::uint32_t first : {shm::kMaxTripwires - 1, shm::kMaxTripwires, 0xfffffffeu}) {
    aperture.first_tripwire.store(first);
    aperture.length.store(~std::uint64_t{0});
    write(c.aperture, 0, 8);
  }
  write(shm::kMaxApertures, 0, 8);
  write(~0u, ~std::uint64_t{0}, ~std::uint64_t{0});
}

TEST_F(NicTripwire, OfManyAperturesDoNotMix) {
  std::vector<std::uint32_t> trips;
  std::vector<std::uint32_t> apertures;
  for (unsigned i = 0; i < 64; ++i) {
    apertures.push_back(export_part(i * 64, 64).aperture);
    trips.push_back(trip({apertures.back(), 0, 64}));
  }
  nic_->arm_all(trips);
  for (std::size_t i = 0; i < trips.size(); ++i) {
    write(apertures[i], 10, 1);
    for (std::size_t k = 0; k < trips.size(); ++k) {
      ASSERT_EQ(nic_->test_and_clear(trips[k]), k == i);
    }
  }
}

// ---- events -------------------------------------------------------------------------------------

struct CountingRinger final : Ringer {
  void ring(std::uint32_t queue) override { rung.push_back(queue); }
  std::vector<std::uint32_t> rung;
};

TEST_F(NicEvents, ComeFromTheTripwireThatIsBoundToThem) {
  RdmaCookie c = export_part(0, kLength);
  std::uint32_t t = trip({c.aperture, 0, 8, shm::kTripOnWrite | shm::kTripPersistent, 5, 1234});
  nic_->arm(t);
  write(c.aperture, 0, 8);
  shm::EventQueueMemory& q = nic_->image().signals->queues[5];
  std::uint32_t cursor = 0, base = 0;
  EXPECT_EQ(take_events(q, &cursor, &base), std::uint64_t{1} << 1234 % 64);
  EXPECT_EQ(base, 1234u / 64 * 64);
  EXPECT_EQ(take_events(q, &cursor, &base), 0u);
  nic_->bind_event(t, 6, 7);
  write(c.aperture, 0, 8);
  EXPECT_EQ(take_events(q, &cursor, &base), 0u);
  EXPECT_EQ(take_events(nic_->image().signals->queues[6], &cursor, &base), std::uint64_t{1} << 7);
}

TEST_F(NicEvents, RingASleeperOnADescriptorOnce) {
  CountingRinger ringer;
  nic_->set_ringer(&ringer);
  shm::EventQueueMemory& q = nic_->image().signals->queues[9];
  post_event(nic_->image(), 9, 1);
  EXPECT_TRUE(ringer.rung.empty());
  std::uint32_t word = 0, cursor = 0, base = 0;
  EXPECT_FALSE(prepare_sleep(q, shm::kSleepsOnFd, &word));
  EXPECT_NE(take_events(q, &cursor, &base), 0u);
  EXPECT_EQ(take_events(q, &cursor, &base), 0u);
  EXPECT_TRUE(prepare_sleep(q, shm::kSleepsOnFd, &word));
  post_event(nic_->image(), 9, 1);
  post_event(nic_->image(), 9, 2);
  EXPECT_EQ(ringer.rung, std::vector<std::uint32_t>{9});
  nic_->set_ringer(nullptr);
}

TEST_F(NicEvents, OutOfRangeAreIgnored) {
  post_event(nic_->image(), shm::kMaxEventQueues, 0);
  post_event(nic_->image(), 0, shm::kEventsPerQueue);
  post_event(nic_->image(), ~0u, ~0u);
  EXPECT_EQ(nic_->image().signals->queues[0].root.load(), 0u);
}

TEST_F(NicEvents, AreTakenInFairRounds) {
  shm::EventQueueMemory& q = nic_->image().signals->queues[0];
  // However often some are posted again, each gets its turn: words far apart, in one mid word,
  // alone.
  for (const std::vector<std::uint32_t>& events :
       {std::vector<std::uint32_t>{0, 64, 65472}, std::vector<std::uint32_t>{0, 20480, 20544},
        std::vector<std::uint32_t>{64, 4096, 8192, 65472},
        std::vector<std::uint32_t>{640, 704, 4032}}) {
    std::uint32_t cursor = 0;
    std::uint32_t base = 0;
    std::vector<std::uint32_t> expected, bases;
    for (int round = 0; round < 3; ++round) {
      for (std::size_t i = 0; i < events.size(); ++i) {
        for (std::uint32_t event : events) post_event(nic_->image(), 0, event);
        ASSERT_NE(take_events(q, &cursor, &base), 0u);
        bases.push_back(base);
        expected.push_back(events[i]);
      }
    }
    EXPECT_EQ(bases, expected);
    while (take_events(q, &cursor, &base) != 0) {
    }
  }
}

TEST_F(NicEvents, SurviveGarbageInTheQueue) {
  shm::EventQueueMemory& q = nic_->image().signals->queues[0];
  std::mt19937_64 random(11);
  std::uint32_t cursor = 0;
  for (int round = 0; round < 200; ++round) {
    q.root.store(random());
    q.sleeping.store(static_cast<std::uint32_t>(random()));
    for (auto& mid : q.mid) mid.store(random() & random());  // NOLINT: two draws
    for (int i = 0; i < 100; ++i) q.leaf[random() % std::size(q.leaf)].store(random());
    std::uint32_t base = 0;
    while (std::uint64_t bits = take_events(q, &cursor, &base)) {
      ASSERT_LE(base, shm::kEventsPerQueue - 64);
      ASSERT_NE(bits, 0u);
    }
    ASSERT_EQ(q.root.load(), 0u);
    ASSERT_LT(cursor, shm::kEventsPerQueue / 64);
  }
}

}  // namespace
}  // namespace clan::nic
