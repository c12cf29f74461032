// Accesses by RDMA, as to other hosts, between two domains of this process: the queues are the same
// over any link.
#include "transport/far_memory.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "libfabric/transport/two_domains.h"
#include "transport/operation_table.h"
#include "transport/remote_memory.h"

namespace clan::ofi {
namespace {

constexpr std::uint64_t kKey = 7;

class FarMemoryTest : public TwoDomains {
 protected:
  FarMemoryTest() {
    fid_mr* region = nullptr;
    EXPECT_EQ(fi_mr_reg(theirs_.get(), region_.data(), region_.size(),
                        FI_REMOTE_READ | FI_REMOTE_WRITE, 0, kKey, 0, &region, nullptr),
              0);
    mr_.reset(region);
    peer_.name = {.high = 1, .low = 2, .port = 3};  // any that is not local
    peer_.node = domain(*theirs_).context().node().value;
    peer_.uid = static_cast<std::uint32_t>(::geteuid());
    memory_ = std::make_unique<RemoteMemory>(domain(*ours_));
    far_ = std::make_unique<FarMemory>(domain(*ours_), *memory_);
  }

  int begin(bool write, std::vector<FarPiece> pieces, Operation& operation) {
    SlowCopies copies;
    copies.write = write;
    copies.key = pieces[0].key;
    copies.operation = &operation;
    return far_->begin(peer_, pieces, std::move(copies));
  }
  // What has ended: operations, and why.
  void look(std::size_t wanted) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (ended_.size() < wanted && std::chrono::steady_clock::now() < until)
      far_->look_after(note_);
    EXPECT_EQ(ended_.size(), wanted);
  }

  std::vector<std::byte> region_ = std::vector<std::byte>(200'000);
  std::unique_ptr<fid_mr, CloseFid> mr_;
  Peer peer_;
  std::unique_ptr<RemoteMemory> memory_;
  std::unique_ptr<FarMemory> far_;
  std::vector<std::pair<const Operation*, int>> ended_;
  std::function<void(Peer&, const SlowCopies&)> note_ = [this](Peer&, const SlowCopies& copies) {
    ended_.emplace_back(copies.operation, copies.err);
  };
};

TEST_F(FarMemoryTest, AccessesEndInTheOrderBegunWithTheirBytesInPlace) {
  std::vector<std::byte> out(100'000, std::byte{5}), in(100'000);
  Operation operations[3];
  ASSERT_EQ(begin(true, {{out.data(), out.size(), kKey, 10}}, operations[0]), 0);
  ASSERT_EQ(
      begin(true, {{out.data(), 8, kKey, 190'000}, {out.data(), 8, kKey, 150'000}}, operations[1]),
      0);
  EXPECT_EQ(peer_.far_writes, 2u);
  ASSERT_EQ(begin(false, {{in.data(), in.size(), kKey, 10}}, operations[2]), 0);
  EXPECT_TRUE(far_->any());
  look(3);
  for (std::size_t i = 0; i < ended_.size(); ++i) {
    EXPECT_EQ(ended_[i].first, &operations[i]);
    EXPECT_EQ(ended_[i].second, 0);
  }
  EXPECT_EQ(in, out);
  EXPECT_EQ(region_[190'007], std::byte{5});
  EXPECT_EQ(region_[150'008], std::byte{0});
  EXPECT_FALSE(far_->any());
  EXPECT_EQ(peer_.far_writes + peer_.far_reads, 0u);
}

TEST_F(FarMemoryTest, WhatCannotBeReachedHasBegunNothing) {
  std::byte bytes[16]{};
  Operation operation;
  EXPECT_EQ(begin(true, {{bytes, 16, kKey, 199'990}}, operation), -FI_EINVAL);
  EXPECT_EQ(begin(true, {{bytes, 8, kKey, 0}, {bytes, 8, 99, 0}}, operation), -FI_ENOKEY);
  EXPECT_FALSE(far_->any());
  mr_.reset();
  EXPECT_EQ(begin(true, {{bytes, 8, kKey, 0}}, operation), -FI_ENOKEY) << "it was known before";
}

TEST_F(FarMemoryTest, MoreThanItsQueueHoldsIsTriedAgainLater) {
  std::vector<std::byte> byte(1);
  std::vector<Operation> operations(5000);
  std::size_t begun = 0;
  for (Operation& operation : operations) {
    const int rc = begin(true, {{byte.data(), 1, kKey, 0}}, operation);
    if (rc == -FI_EAGAIN) break;
    ASSERT_EQ(rc, 0);
    ++begun;
  }
  ASSERT_LT(begun, operations.size());
  look(begun);
  EXPECT_EQ(begin(true, {{byte.data(), 1, kKey, 0}}, operations.back()), 0);
  look(begun + 1);
}

TEST_F(FarMemoryTest, AnAccessWhoseOwnerHasGoneIsCancelled) {
  std::vector<std::byte> bytes(100'000);
  Operation operation;
  ASSERT_EQ(begin(false, {{bytes.data(), bytes.size(), kKey, 0}}, operation), 0);
  operation.owner = nullptr;
  far_->cancel_abandoned(note_);
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(ended_[0].second, ECANCELED);
  EXPECT_FALSE(far_->any());
}

// A message of so many bytes to the region of kKey, from its first byte on.
FarMessage message_to(RemoteMemory& memory, Peer& peer, const std::vector<std::byte>& bytes,
                      Context& context, const RdmaCookie& cookie) {
  FarMessage message;
  std::byte first;
  EXPECT_EQ(memory.access(peer, false, kKey, 0, &first, 1), 0) << "the link is there";
  auto place = RemoteAperture::import(context, cookie, 0);
  EXPECT_TRUE(place.ok());
  message.places.push_back(std::move(*place));
  message.parts = {
      {bytes.data(), bytes.size() / 2, 0, 0},
      {bytes.data() + bytes.size() / 2, bytes.size() - bytes.size() / 2, 0, bytes.size() / 2}};
  return message;
}

TEST_F(FarMemoryTest, MessagesAreWrittenToWhereTheyGoAndHoldUpNothing) {
  auto owned = Aperture::export_region(domain(*theirs_).context(), region_, Rights::kWrite);
  ASSERT_TRUE(owned.ok());
  const std::vector<std::byte> bytes(100'001, std::byte{6});
  Operation operations[2];
  for (Operation& operation : operations) {
    SlowCopies copies;
    copies.write = true;
    copies.operation = &operation;
    copies.receive = 5;
    far_->begin_message(
        peer_, message_to(*memory_, peer_, bytes, domain(*ours_).context(), owned->cookie()),
        std::move(copies));
  }
  EXPECT_EQ(peer_.far_writes, 0u);
  EXPECT_TRUE(far_->any());
  look(2);
  EXPECT_EQ(ended_[0].first, &operations[0]);
  EXPECT_EQ(ended_[0].second, 0);
  EXPECT_EQ(ended_[1].second, 0);
  EXPECT_EQ(region_[100'000], std::byte{6});
  EXPECT_EQ(region_[100'001], std::byte{0});
  EXPECT_FALSE(far_->any());
}

TEST_F(FarMemoryTest, AMessageWhosePlaceIsGoneEndsWithAnError) {
  auto owned = Aperture::export_region(domain(*theirs_).context(), region_, Rights::kWrite);
  ASSERT_TRUE(owned.ok());
  const std::vector<std::byte> bytes(50'000, std::byte{6});
  FarMessage message =
      message_to(*memory_, peer_, bytes, domain(*ours_).context(), owned->cookie());
  ASSERT_TRUE(owned->revoke());
  Operation operation;
  SlowCopies copies;
  copies.write = true;
  copies.operation = &operation;
  copies.receive = 5;
  far_->begin_message(peer_, std::move(message), std::move(copies));
  look(1);
  EXPECT_EQ(ended_[0].second, ESTALE);
  EXPECT_EQ(region_[0], std::byte{0});
}

TEST_F(FarMemoryTest, AMessageBesideAnAbandonedOneArrivesAllTheSame) {
  auto owned = Aperture::export_region(domain(*theirs_).context(), region_, Rights::kWrite);
  ASSERT_TRUE(owned.ok());
  const std::vector<std::byte> bytes(100'000, std::byte{6}), others(100'000, std::byte{7});
  // Only compared, never used.
  auto* const owner = reinterpret_cast<Endpoint*>(&peer_);
  Operation abandoned, kept;
  kept.owner = owner;
  for (auto [operation, from] : {std::pair{&abandoned, &others}, std::pair{&kept, &bytes}}) {
    SlowCopies copies;
    copies.write = true;
    copies.operation = operation;
    copies.receive = 5;
    far_->begin_message(
        peer_, message_to(*memory_, peer_, *from, domain(*ours_).context(), owned->cookie()),
        std::move(copies));
  }
  far_->cancel_abandoned(note_);
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(ended_[0].first, &abandoned);
  EXPECT_EQ(ended_[0].second, ECANCELED);
  look(2);
  EXPECT_EQ(ended_[1].first, &kept);
  EXPECT_EQ(ended_[1].second, 0);
  EXPECT_EQ(region_[99'999], std::byte{6});
}

}  // namespace
}  // namespace clan::ofi
