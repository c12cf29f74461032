// Accesses to a peer's memory: small ones as messages, which the peer makes, or the initiator where
// the peer does not come to them.
#include <gtest/gtest.h>

#include <cstring>

#include "libfabric/transport/two_endpoints.h"

namespace clan::ofi {
namespace {

class AccessesTest : public TwoEndpoints {
 protected:
  static constexpr std::uint64_t kAccessKey = 7;
  AccessesTest() {
    fid_mr* mr = nullptr;
    EXPECT_EQ(fi_mr_reg(theirs_.get(), region.data(), region.size(),
                        FI_REMOTE_READ | FI_REMOTE_WRITE, 0, kAccessKey, 0, &mr, nullptr),
              0);
    mr_.reset(mr);
  }
  int start(bool write, std::string& local, std::uint64_t address, std::uint64_t key = kAccessKey) {
    piece_ = {local.data(), local.size()};
    SmallTransfer transfer;
    transfer.write = write;
    transfer.key = key;
    transfer.address = address;
    transfer.local = &piece_;
    transfer.local_count = 1;
    transfer.length = local.size();
    transfer.program_context = local.data();
    transfer.completion = true;
    return ours.transport().start_small_access(ours.endpoint(), *peer, transfer);
  }
  std::string at(std::size_t offset, std::size_t length) const {
    return std::string(reinterpret_cast<const char*>(region.data()) + offset, length);
  }

  std::vector<std::byte> region = std::vector<std::byte>(20'000);

 private:
  std::unique_ptr<fid_mr, CloseFid> mr_;
  iovec piece_{};
};

TEST_F(AccessesTest, OfAPeerThatMakesProgressAreMadeByIt) {
  ASSERT_TRUE(connect());
  std::string bytes = "written";
  ASSERT_EQ(start(true, bytes, 100), 0);
  EXPECT_EQ(at(100, 7), std::string(7, '\0'));
  while (at(100, 7) != "written" && theirs.transport().progress()) {
  }
  EXPECT_EQ(at(100, 7), "written");
  EXPECT_TRUE(until([&] { return !ours.completed().empty(); }));
  std::string back(7, '\0');
  ASSERT_EQ(start(false, back, 100), 0);
  EXPECT_TRUE(until([&] { return !ours.completed().empty(); }));
  EXPECT_EQ(back, "written");
}

TEST_F(AccessesTest, OfAPeerThatDoesNotAreMadeHereAndOnce) {
  ASSERT_TRUE(connect());
  std::string bytes = "written";
  ASSERT_EQ(start(true, bytes, 0), 0);
  for (int i = 0; i < 1'000'000 && at(0, 7) != "written"; ++i) ours.transport().progress();
  EXPECT_EQ(at(0, 7), "written");
  EXPECT_EQ(ours.completed().size(), 1u);
  std::memset(region.data(), 'n', 7);  // the owner goes on
  for (int i = 0; i < 100; ++i) theirs.transport().progress();
  EXPECT_EQ(at(0, 7), "nnnnnnn") << "it is not made again";
}

TEST_F(AccessesTest, AreFinishedBeforeSomethingThatMustNotOvertakeThem) {
  ASSERT_TRUE(connect());
  std::string bytes = "written";
  ASSERT_EQ(start(true, bytes, 0), 0);
  EXPECT_EQ(ours.transport().finish_accesses(*peer), AccessesLeft::kNone);
  EXPECT_EQ(at(0, 7), "written");
  EXPECT_EQ(ours.transport().finish_accesses(), AccessesLeft::kNone);
  EXPECT_EQ(ours.transport().fence(*peer), 0);
}

TEST_F(AccessesTest, EndWithAnErrorWhereThereIsNoSuchMemory) {
  ASSERT_TRUE(connect());
  std::string bytes = "nowhere";
  for (const bool write : {true, false}) {
    ASSERT_EQ(start(write, bytes, 0, 99), 0);
    int err = 0;
    EXPECT_TRUE(until([&] { return (err = ours.failed()) != 0; }));
    EXPECT_EQ(err, FI_ENOKEY);
    ASSERT_EQ(start(write, bytes, region.size() - 3), 0);
    EXPECT_TRUE(until([&] { return (err = ours.failed()) != 0; }));
    EXPECT_NE(err, 0);
  }
}

TEST_F(AccessesTest, OfOnePeerAreSoManyUnderWayAndNoMore) {
  ASSERT_TRUE(connect());
  std::string byte = "x";
  int rc = 0;
  std::size_t started = 0;
  while (started <= SmallAccesses::kMost && (rc = start(true, byte, started)) == 0) ++started;
  EXPECT_LE(started, SmallAccesses::kMost);
  EXPECT_NE(rc, 0);
  EXPECT_TRUE(until([&] { return ours.transport().fence(*peer) == 0; }));
  EXPECT_EQ(at(0, started), std::string(started, 'x'));
}

TEST_F(AccessesTest, OfAnySizeAreMadeByTheKernel) {
  ASSERT_TRUE(connect());
  std::string bytes(15'000, 'k');
  ASSERT_EQ(ours.transport().access(*peer, true, kAccessKey, 1,
                                    reinterpret_cast<std::byte*>(bytes.data()), bytes.size()),
            0);
  RemoteMemory& memory = ours.transport().memory();
  if (memory.has_begun()) {
    int ended = memory.end();
    EXPECT_EQ(ended, 0);
  }
  EXPECT_EQ(at(1, bytes.size()), bytes);
  EXPECT_EQ(at(0, 1), std::string(1, '\0'));
}

}  // namespace
}  // namespace clan::ofi
