// Copies to and from the peer's memory: by this process, by both, and by the peer's driver where
// the kernel forbids the first.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iterator>
#include <thread>

#include "link/shm_pair.h"
#include "support/pattern.h"

namespace clan::link {
namespace {

using Kind = nic::TransferResult::Kind;
using test::is_pattern;
using test::must;
using test::pattern;

struct Copy : test::ShmPair {
  explicit Copy(bool direct_copy = true) : ShmPair(direct_copy) {}
  nic::RemoteHandle handle_of(const RdmaCookie& cookie) { return must(a->import(cookie, false)); }
  nic::TransferResult transfer(RdmaOp op, const nic::RemoteHandle& handle, std::uint64_t offset,
                               std::span<std::byte> local, std::uint64_t token = 0) {
    return a->transfer({op, &handle, offset, local.data(), local.size(), token});
  }
};

TEST_F(Copy, GoesToThePlaceInThePeersMemoryAndBack) {
  if (!a->capabilities().direct_copy) GTEST_SKIP() << "process_vm_writev() is forbidden here";
  const nic::RemoteHandle handle = handle_of(export_own());
  std::vector<std::byte> bytes = pattern(1000, 1);
  EXPECT_EQ(transfer(RdmaOp::kWrite, handle, 500, bytes).kind, Kind::kDone);
  EXPECT_TRUE(is_pattern(std::span(own).subspan(500, 1000), 1, 0));
  EXPECT_EQ(own[499], std::byte{0});
  EXPECT_EQ(own[1500], std::byte{0});
  std::vector<std::byte> back(1000);
  EXPECT_EQ(transfer(RdmaOp::kRead, handle, 500, back).kind, Kind::kDone);
  EXPECT_EQ(back, bytes);
  EXPECT_OK(a->put(handle, 0, bytes, nic::PutOrder::kAny));
  EXPECT_OK(a->get(handle, 0, back));
  EXPECT_EQ(back, bytes);
}

TEST_F(Copy, ToMappedMemoryIsAPlainStore) {
  const RdmaCookie cookie = export_block();
  ASSERT_OK(b->grant(cookie));
  exchange();
  const nic::RemoteHandle handle = handle_of(cookie);
  std::vector<std::byte> bytes = pattern(64, 2), back(64);
  EXPECT_EQ(transfer(RdmaOp::kWrite, handle, 8192 - 64, bytes).kind, Kind::kDone);
  EXPECT_TRUE(is_pattern({block->data() + 8192 - 64, 64}, 2, 0));
  EXPECT_EQ(transfer(RdmaOp::kRead, handle, 8192 - 64, back).kind, Kind::kDone);
  EXPECT_EQ(back, bytes);
  server.nic->retire(cookie.aperture);
  EXPECT_EQ(transfer(RdmaOp::kWrite, handle, 0, bytes).err, ESTALE);
}

TEST_F(Copy, StaysInsideTheApertureAndWithinItsRights) {
  const nic::RemoteHandle handle = handle_of(export_own(Rights::kRead));
  std::vector<std::byte> bytes(100);
  EXPECT_EQ(transfer(RdmaOp::kWrite, handle, 0, bytes).err, EACCES);
  EXPECT_EQ(transfer(RdmaOp::kRead, handle, own.size() - 99, bytes).err, ERANGE);
  EXPECT_EQ(transfer(RdmaOp::kRead, handle, ~std::uint64_t{0}, bytes).err, ERANGE);
  EXPECT_NE(transfer(RdmaOp::kRead, handle, own.size() - 100, bytes).kind, Kind::kError);
}

TEST_F(Copy, FindsAnApertureGoneThatWasTakenAway) {
  if (!a->capabilities().direct_copy) GTEST_SKIP() << "process_vm_writev() is forbidden here";
  const RdmaCookie cookie = export_own();
  const nic::RemoteHandle handle = handle_of(cookie);
  ASSERT_OK(server.nic->revoke(cookie.aperture, [](std::uint32_t) { return true; }));
  std::vector<std::byte> bytes = pattern(100, 3);
  EXPECT_EQ(transfer(RdmaOp::kWrite, handle, 0, bytes).err, ESTALE);
  EXPECT_EQ(own[0], std::byte{0});
  EXPECT_ERR(a->after_access(handle, 0, 100, nic::AccessKind::kWrite), ESTALE);
}

TEST_F(Copy, OfManyBytesIsOfferedToThePeerWhichTakesItsPart) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the helper says by another mapping of the word that it has done its part";
#endif
  if (!a->capabilities().direct_copy) GTEST_SKIP() << "process_vm_writev() is forbidden here";
  const nic::RemoteHandle handle = handle_of(export_own());
  std::vector<std::byte> bytes = pattern(own.size(), 4);
  EXPECT_FALSE(b->wants_help());
  bool helped = false;
  for (int round = 0; round < 20'000 && !helped; ++round) {
    server.nic->image().signals->help_wanted.store(0);  // it has looked since the last copy
    std::atomic<bool> looks{false}, ended{false};
    std::thread helper([&] {
      for (; !ended; looks = true) helped = b->help() || helped;
    });
    while (!looks) std::this_thread::yield();  // else the copy is over before the thread begins
    EXPECT_EQ(transfer(RdmaOp::kWrite, handle, 0, bytes).kind, Kind::kDone);
    EXPECT_TRUE(is_pattern(own, 4, 0));
    ended = true;
    helper.join();
    std::fill(own.begin(), own.end(), std::byte{0});
  }
  EXPECT_TRUE(helped);
  EXPECT_FALSE(b->wants_help()) << "nothing is left of it";
}

TEST_F(Copy, IsNotOfferedToAPeerThatHasNotLookedSinceTheLast) {
  if (!a->capabilities().direct_copy) GTEST_SKIP() << "process_vm_writev() is forbidden here";
  const nic::RemoteHandle handle = handle_of(export_own());
  std::vector<std::byte> bytes = pattern(own.size(), 5);
  auto& wanted = server.nic->image().signals->help_wanted;
  EXPECT_EQ(transfer(RdmaOp::kWrite, handle, 0, bytes).kind, Kind::kDone);
  EXPECT_NE(wanted.load(), 0u);
  auto& job = server.nic->image().signals->jobs[0];
  const std::uint64_t claim = job.claim.load();
  EXPECT_EQ(transfer(RdmaOp::kWrite, handle, 0, bytes).kind, Kind::kDone);
  EXPECT_EQ(job.claim.load(), claim);
}

TEST_F(Copy, IsNotOfferedForAWhileToAPeerThatLooksAndTakesNoPart) {
  if (!a->capabilities().direct_copy) GTEST_SKIP() << "process_vm_writev() is forbidden here";
  const nic::RemoteHandle handle = handle_of(export_own());
  std::vector<std::byte> bytes = pattern(own.size(), 5);
  auto& signals = *server.nic->image().signals;
  const auto offered = [&] {
    signals.help_wanted.store(0);  // it has looked since the last copy
    const std::uint64_t before = signals.jobs[0].claim.load();
    EXPECT_EQ(transfer(RdmaOp::kWrite, handle, 0, bytes).kind, Kind::kDone);
    return signals.jobs[0].claim.load() != before;
  };
  int asked = 0, alone = 0;
  while (offered() && ++asked < 100) {
  }
  EXPECT_GT(asked, 1) << "one time may be an accident";
  EXPECT_LT(asked, 100);
  while (!offered() && ++alone < 1000) {
  }
  EXPECT_GT(alone, 1);
  EXPECT_LT(alone, 1000) << "it is asked again";
  EXPECT_TRUE(is_pattern(own, 5, 0));
}

TEST_F(Copy, HelpIsRefusedOutsideWhatThePeerHasARightTo) {
  auto& job = server.nic->image().signals->jobs[0];
  std::vector<std::byte> target(100'000, std::byte{7});
  const RdmaCookie cookie = export_own(Rights::kRead);
  job.address.store(reinterpret_cast<std::uint64_t>(target.data()));
  job.length.store(target.size());
  job.aperture.store(cookie.aperture);
  job.generation.store(cookie.generation);
  job.op.store(static_cast<std::uint32_t>(RdmaOp::kWrite));
  job.claim.store(std::uint64_t{1} << 32 | std::uint64_t{1} << 16);
  EXPECT_TRUE(b->wants_help());
  EXPECT_TRUE(b->help());
  EXPECT_EQ(job.err.load(), static_cast<std::uint32_t>(ESTALE));
  EXPECT_EQ(job.done.load(), 1u) << "the peer does not wait for it";
  EXPECT_EQ(own[0], std::byte{0});
  EXPECT_FALSE(b->wants_help());
  EXPECT_FALSE(b->help());
}

// The peer waits for our copies no more when the link has gone.
TEST_F(Copy, IsOverWhenTheLinkIsShutDown) {
  if (!a->capabilities().direct_copy) GTEST_SKIP() << "process_vm_writev() is forbidden here";
  own.resize(64 << 20);
  const nic::RemoteHandle handle = handle_of(export_own());
  std::vector<std::byte> bytes = pattern(own.size(), 8);
  const auto& epochs = server.nic->image().signals->activity[0].epoch;
  const auto copying = [&] {
    return std::any_of(std::begin(epochs), std::end(epochs),
                       [](const auto& epoch) { return epoch.load() % 2 != 0; });
  };
  std::atomic<bool> over{false};
  std::thread copies([&] {
    EXPECT_EQ(transfer(RdmaOp::kWrite, handle, 0, bytes).kind, Kind::kDone);
    over = true;
  });
  while (!copying() && !over) std::this_thread::yield();
  a->shut_down();
  EXPECT_FALSE(copying());
  copies.join();
  EXPECT_EQ(transfer(RdmaOp::kWrite, handle, 0, std::span(bytes).first(1)).err, ECONNRESET);
  EXPECT_FALSE(copying());
}

/// Where the kernel forbids process_vm_writev().
struct CopyByPeer : Copy {
  CopyByPeer() : Copy(false) {}
};

TEST_F(CopyByPeer, EndsWhenThePeersDriverHasMadeIt) {
  const nic::RemoteHandle handle = handle_of(export_own());
  std::vector<std::byte> bytes = pattern(1000, 6), back(1000);
  EXPECT_EQ(transfer(RdmaOp::kWrite, handle, 40, bytes, 11).kind, Kind::kPending);
  EXPECT_EQ(transfer(RdmaOp::kWrite, handle, 40, bytes, 12).kind, Kind::kBusy) << "one at a time";
  exchange();
  ASSERT_EQ(a_notes.transfers.size(), 1u);
  EXPECT_EQ(a_notes.transfers[0].token, 11u);
  EXPECT_EQ(a_notes.transfers[0].err, 0);
  EXPECT_EQ(a_notes.transfers[0].bytes, 1000u);
  EXPECT_TRUE(is_pattern(std::span(own).subspan(40, 1000), 6, 0));
  own[50] = bytes[10] = std::byte{1};  // written by its owner since
  EXPECT_EQ(transfer(RdmaOp::kRead, handle, 40, back, 13).kind, Kind::kPending);
  exchange();
  EXPECT_EQ(back, bytes);
  EXPECT_EQ(a_notes.transfers.back().token, 13u);
}

TEST_F(CopyByPeer, IsForRequestsAloneAndNoLongerThanItsStaging) {
  const nic::RemoteHandle handle = handle_of(export_own());
  std::vector<std::byte> bytes(100);
  EXPECT_ERR(a->put(handle, 0, bytes, nic::PutOrder::kAny), EOPNOTSUPP);
  EXPECT_ERR(a->get(handle, 0, bytes), EOPNOTSUPP);
  own.resize(1 << 20);
  const nic::RemoteHandle large = handle_of(export_own());
  std::vector<std::byte> much(own.size());
  EXPECT_EQ(transfer(RdmaOp::kWrite, large, 0, much).err, EMSGSIZE);
}

TEST_F(CopyByPeer, OfAnApertureThatIsGoneEndsWithAnError) {
  const RdmaCookie cookie = export_own();
  const nic::RemoteHandle handle = handle_of(cookie);
  std::vector<std::byte> bytes = pattern(100, 7);
  EXPECT_EQ(transfer(RdmaOp::kWrite, handle, 0, bytes, 1).kind, Kind::kPending);
  server.nic->retire(cookie.aperture);
  exchange();
  ASSERT_EQ(a_notes.transfers.size(), 1u);
  EXPECT_EQ(a_notes.transfers[0].err, ESTALE);
  EXPECT_EQ(a_notes.transfers[0].bytes, 0u);
  EXPECT_EQ(own[0], std::byte{0});
}

TEST_F(CopyByPeer, ThatIsNoLongerWantedLeavesTheCallersMemoryAlone) {
  const nic::RemoteHandle handle = handle_of(export_own());
  std::fill(own.begin(), own.end(), std::byte{9});
  std::vector<std::byte> back(100);
  EXPECT_EQ(transfer(RdmaOp::kRead, handle, 0, back, 21).kind, Kind::kPending);
  a->cancel(20);
  a->cancel(21);
  exchange();
  EXPECT_EQ(back, std::vector<std::byte>(100));
  ASSERT_EQ(a_notes.transfers.size(), 1u);
}

TEST_F(CopyByPeer, FailsWhenThePeerGoes) {
  const nic::RemoteHandle handle = handle_of(export_own());
  std::vector<std::byte> bytes(100);
  EXPECT_EQ(transfer(RdmaOp::kWrite, handle, 0, bytes, 31).kind, Kind::kPending);
  b->shut_down();
  a->on_ready(EPOLLIN);
  ASSERT_EQ(a_notes.transfers.size(), 1u);
  EXPECT_EQ(a_notes.transfers[0].token, 31u);
  EXPECT_EQ(a_notes.transfers[0].err, ECONNRESET);
  EXPECT_EQ(transfer(RdmaOp::kWrite, handle, 0, bytes, 32).err, ECONNRESET);
}

}  // namespace
}  // namespace clan::link
