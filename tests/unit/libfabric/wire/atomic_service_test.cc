// Atomic operations at the owner of the memory, which is an array here.
#include "wire/atomic_service.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <vector>

#include "wire/pieces.h"

namespace clan::ofi {
namespace {

struct Reply {
  WireHeader header;
  AtomicReply reply;
  std::vector<std::uint64_t> values;
};

/// Regions are arrays of 64-bit values; addresses count their bytes from 0.
class Memory final : public AtomicHost {
 public:
  std::map<std::uint64_t, std::vector<std::uint64_t>> regions;
  std::vector<std::byte> offered;  ///< what lies with the sender
  std::vector<Reply> replies;
  std::vector<std::uint64_t> noted;
  int finished = 0;
  int read_err = 0;

  int find(std::uint64_t key) override { return regions.contains(key) ? 0 : FI_ENOKEY; }
  int allows(std::uint64_t key, std::uint64_t address, std::uint64_t length,
             std::uint64_t) override {
    if (!regions.contains(key)) return FI_ENOKEY;
    const std::uint64_t size = regions[key].size() * 8;
    return address <= size && length <= size - address ? 0 : FI_EACCES;
  }
  int apply(std::uint64_t key, std::uint64_t address, fi_datatype type, fi_op op, AtomicKind kind,
            const std::byte* operands, const std::byte* comparands, std::byte* found,
            std::size_t count) override {
    const int err = allows(key, address, count * atomic_size(type), atomic_access(op, kind));
    if (err != 0) return err;
    std::byte* const target = reinterpret_cast<std::byte*>(regions[key].data()) + address;
    apply_atomic(type, op, target, operands, comparands, found, count);
    return 0;
  }
  void note_region(std::uint64_t key, std::uint64_t) override { noted.push_back(key); }
  void note_endpoint(std::uint16_t, std::uint64_t) override {}
  int read(const SetAside&, std::uint64_t offset, std::span<std::byte> to) override {
    if (read_err != 0) return read_err;
    EXPECT_LE(offset + to.size(), offered.size());
    std::memcpy(to.data(), offered.data() + offset, to.size());
    return 0;
  }
  void finish(const SetAside&) override { ++finished; }
  void reply(std::span<const std::byte> message) override {
    Reply r;
    ASSERT_TRUE(take_front(message, &r.header) && take_front(message, &r.reply));
    r.values.resize(message.size() / 8);
    if (!message.empty()) std::memcpy(r.values.data(), message.data(), message.size());
    replies.push_back(r);
  }
};

AtomicRequest request(fi_op op, AtomicKind kind, std::uint32_t count, std::uint64_t address = 0) {
  AtomicRequest r;
  r.address = address;
  r.count = count;
  r.type = FI_UINT64;
  r.op = static_cast<std::uint8_t>(op);
  r.kind = static_cast<std::uint8_t>(kind);
  return r;
}

template <typename T>
void append(std::vector<std::byte>& to, const T& value) {
  const auto bytes = bytes_of(value);
  to.insert(to.end(), bytes.begin(), bytes.end());
}

void serve(Memory& memory, const AtomicRequest& r, const std::vector<std::uint64_t>& operands) {
  std::vector<std::byte> body;
  append(body, r);
  for (auto value : operands) append(body, value);
  serve_atomic(memory, {.op = Op::kAtomic, .id = 77, .tag = 1}, body);
}

TEST(AtomicService, CarriesOutAShortOneAndAnswersWithWhatItFound) {
  Memory memory;
  memory.regions[1] = {10, 20, 30};
  serve(memory, request(FI_SUM, AtomicKind::kFetch, 2, 8), {1, 2});
  EXPECT_EQ(memory.regions[1], std::vector<std::uint64_t>({10, 21, 32}));
  ASSERT_EQ(memory.replies.size(), 1u);
  EXPECT_EQ(memory.replies[0].header.id, 77u);
  EXPECT_EQ(memory.replies[0].reply.err, 0);
  EXPECT_EQ(memory.replies[0].values, std::vector<std::uint64_t>({20, 30}));
  EXPECT_EQ(memory.noted, std::vector<std::uint64_t>({1}));
}

TEST(AtomicService, RefusesAShortOneThatIsNotWhatItSays) {
  Memory memory;
  memory.regions[1] = {10};
  const auto before = memory.regions;
  serve(memory, request(FI_SUM, AtomicKind::kFetch, 2), {1});  // an operand is missing
  // the product would overflow
  serve(memory, request(FI_SUM, AtomicKind::kFetch, 0xffff'ffff), {1});
  AtomicRequest kind = request(FI_SUM, AtomicKind::kFetch, 1);
  kind.kind = 3;
  serve(memory, kind, {1});
  AtomicRequest type = request(FI_SUM, AtomicKind::kFetch, 1);
  type.type = 255;
  serve(memory, type, {1});
  serve(memory, request(FI_SUM, AtomicKind::kFetch, 1, 8), {1});  // beyond the region
  ASSERT_EQ(memory.replies.size(), 5u);
  for (const Reply& r : memory.replies) {
    EXPECT_NE(r.reply.err, 0);
    EXPECT_TRUE(r.values.empty());
  }
  EXPECT_EQ(memory.regions, before);
  EXPECT_TRUE(memory.noted.empty());
}

TEST(AtomicService, DropsAShortOneWithoutAWholeRequest) {
  Memory memory;
  serve_atomic(memory, {.op = Op::kAtomic}, std::vector<std::byte>(sizeof(AtomicRequest) - 1));
  EXPECT_TRUE(memory.replies.empty());
}

/// A long one, of two targets of `count` values each.
std::vector<std::byte> two_targets(std::uint64_t count) {
  std::vector<std::byte> body;
  append(body, AtomicTarget{0, count, 1});
  append(body, AtomicTarget{0, count, 2});
  for (std::uint64_t i = 0; i < 2 * count; ++i) append(body, i);
  return body;
}

struct LongAtomicTest : testing::Test {
  static constexpr std::uint64_t kCount = 3000;  // several steps of 1024 values
  Memory memory;
  LongAtomicTest() {
    memory.regions[1].assign(kCount, 100);
    memory.regions[2].assign(kCount, 200);
  }
  void expect_done() {
    EXPECT_EQ(memory.regions[1][5], 105u);
    EXPECT_EQ(memory.regions[2][0], 200 + kCount);
    EXPECT_EQ(memory.regions[2].back(), 200 + 2 * kCount - 1);
  }
};

TEST_F(LongAtomicTest, WorksThroughItsTargetsInStepsAndAnswersInTheEnd) {
  const auto body = two_targets(kCount);
  LongAtomic work({.op = Op::kLongAtomic, .id = 9}, std::nullopt, body);
  ASSERT_EQ(work.check(memory, request(FI_SUM, AtomicKind::kFetch, 2)), 0);
  EXPECT_FALSE(work.has_many_results());
  EXPECT_TRUE(work.run(memory, [] { return true; }));
  expect_done();
  // Results come in pieces that say where they belong, and all but the last say that there is more.
  std::uint64_t at = 0;
  for (const Reply& r : memory.replies) {
    EXPECT_EQ(r.header.id, 9u);
    EXPECT_EQ((r.header.flags & kMore) != 0, &r != &memory.replies.back());
    if (r.values.empty()) continue;
    EXPECT_EQ(r.header.tag, at);
    for (std::uint64_t value : r.values) {
      EXPECT_EQ(value, at < kCount * 8 ? 100u : 200u);
      at += 8;
    }
  }
  EXPECT_EQ(at, 2 * kCount * 8);
  EXPECT_EQ(memory.noted, std::vector<std::uint64_t>({1, 2}));
}

TEST_F(LongAtomicTest, StopsWhereItMayNotGoOnAndContinuesThere) {
  auto body = two_targets(kCount);
  LongAtomic work({.op = Op::kLongAtomic}, std::nullopt, body);
  ASSERT_EQ(work.check(memory, request(FI_SUM, AtomicKind::kFetch, 2)), 0);
  work.keep_body();
  // the message is dropped, its memory used again
  std::fill(body.begin(), body.end(), std::byte{0xff});
  int stops = 0;
  for (;;) {
    const std::size_t answered = memory.replies.size();
    if (work.run(memory, [&] { return memory.replies.size() == answered; })) break;
    ++stops;
  }
  EXPECT_GT(stops, 3);
  expect_done();
}

TEST_F(LongAtomicTest, ReadsOperandsThatLieWithTheirSender) {
  memory.offered = two_targets(kCount);
  SetAside aside;
  aside.cookie.length = memory.offered.size();
  LongAtomic work({.op = Op::kLongAtomic}, aside, {});
  ASSERT_EQ(work.check(memory, request(FI_SUM, AtomicKind::kWrite, 2)), 0);
  EXPECT_TRUE(work.run(memory, [] { return true; }));
  expect_done();
  EXPECT_EQ(memory.finished, 1);
  ASSERT_EQ(memory.replies.size(), 1u);
  EXPECT_EQ(memory.replies[0].reply.err, 0);
}

TEST_F(LongAtomicTest, AnswersWithTheErrorWhenItsSenderTakesTheOperandsBack) {
  memory.offered = two_targets(kCount);
  SetAside aside;
  aside.cookie.length = memory.offered.size();
  LongAtomic work({.op = Op::kLongAtomic}, aside, {});
  ASSERT_EQ(work.check(memory, request(FI_SUM, AtomicKind::kWrite, 2)), 0);
  memory.read_err = ESTALE;
  EXPECT_TRUE(work.run(memory, [] { return true; }));
  EXPECT_EQ(memory.replies.back().reply.err, ESTALE);
  EXPECT_EQ(memory.regions[1][5], 100u);
}

TEST_F(LongAtomicTest, EndsWhereARegionIsClosedBetweenTwoSteps) {
  const auto body = two_targets(kCount);
  LongAtomic work({.op = Op::kLongAtomic}, std::nullopt, body);
  ASSERT_EQ(work.check(memory, request(FI_SUM, AtomicKind::kWrite, 2)), 0);
  int steps = 0;
  EXPECT_TRUE(work.run(memory, [&] {
    if (++steps == 2) memory.regions.erase(1);
    return true;
  }));
  EXPECT_EQ(memory.replies.back().reply.err, FI_ENOKEY);
  EXPECT_EQ(memory.regions[2][0], 200u);
}

TEST_F(LongAtomicTest, RefusesBeforeAnythingIsDone) {
  const auto body = two_targets(kCount);
  const auto check = [&](const AtomicRequest& r, std::span<const std::byte> bytes) {
    return LongAtomic({.op = Op::kLongAtomic}, std::nullopt, bytes).check(memory, r);
  };
  EXPECT_EQ(check(request(FI_SUM, AtomicKind::kWrite, kIovLimit + 1), body), FI_EINVAL);
  EXPECT_EQ(check(request(FI_SUM, AtomicKind::kWrite, 2), std::span(body).first(body.size() - 1)),
            FI_EINVAL);
  EXPECT_EQ(check(request(FI_SUM, AtomicKind::kWrite, 2), std::span(body).first(40)), FI_EINVAL);
  EXPECT_EQ(check(request(FI_SUM, AtomicKind::kCompare, 2), body), FI_EINVAL)
      << "it has no comparands";
  memory.regions[2].resize(kCount - 1);
  EXPECT_EQ(check(request(FI_SUM, AtomicKind::kWrite, 2), body), FI_EACCES);
  memory.regions.erase(2);
  EXPECT_EQ(check(request(FI_SUM, AtomicKind::kWrite, 2), body), FI_ENOKEY);
  EXPECT_EQ(memory.regions[1][5], 100u);
  EXPECT_TRUE(memory.replies.empty());
}

TEST_F(LongAtomicTest, RefusesCountsWhoseSumWouldOverflow) {
  std::vector<std::byte> body;
  append(body, AtomicTarget{0, ~std::uint64_t{0}, 1});
  append(body, AtomicTarget{0, 2, 2});
  for (std::uint64_t i = 0; i < 1; ++i) append(body, i);
  LongAtomic work({.op = Op::kLongAtomic}, std::nullopt, body);
  EXPECT_EQ(work.check(memory, request(FI_SUM, AtomicKind::kWrite, 2)), FI_EINVAL);
}

}  // namespace
}  // namespace clan::ofi
