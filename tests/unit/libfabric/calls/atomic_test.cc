// Atomic operations.
#include <algorithm>
#include <random>
#include <type_traits>
#include <vector>

#include "libfabric/memory.h"
#include "libfabric/node.h"

namespace clan::test {
namespace {

TEST(FabricAtomics, AddFetchAndCompare) {
  Two two;
  std::uint64_t target[4] = {10, 20, 30, 40};
  const auto mr = expose(two.b, target, sizeof target, 4);
  fi_cq_tagged_entry entry;
  const std::uint64_t one[4] = {1, 1, 1, 1};
  ASSERT_EQ(sent(
                [&] {
                  return fi_atomic(two.a.ep.get(), one, 4, nullptr, two.to_b, 0, 4, FI_UINT64,
                                   FI_SUM, nullptr);
                },
                two.a),
            0);
  ASSERT_TRUE(two.completes(two.a, &entry));
  EXPECT_EQ(entry.flags, FI_ATOMIC | FI_WRITE);
  EXPECT_EQ(target[3], 41u);
  std::uint64_t found[4] = {};
  ASSERT_EQ(fi_fetch_atomic(two.a.ep.get(), one, 2, nullptr, found, nullptr, two.to_b, 8, 4,
                            FI_UINT64, FI_SUM, nullptr),
            0);
  ASSERT_TRUE(two.completes(two.a, &entry));
  EXPECT_EQ(entry.flags, FI_ATOMIC | FI_READ);
  EXPECT_EQ(found[0], 21u);
  EXPECT_EQ(found[1], 31u);
  EXPECT_EQ(target[1], 22u);
  const std::uint64_t expected = 11, wanted = 99;
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(fi_compare_atomic(two.a.ep.get(), &wanted, 1, nullptr, &expected, nullptr, found,
                                nullptr, two.to_b, 0, 4, FI_UINT64, FI_CSWAP, nullptr),
              0);
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_EQ(found[0], i == 0 ? 11u : 99u);
    EXPECT_EQ(target[0], 99u);
  }
  ASSERT_EQ(fi_fetch_atomic(two.a.ep.get(), nullptr, 4, nullptr, found, nullptr, two.to_b, 0, 4,
                            FI_UINT64, FI_ATOMIC_READ, nullptr),
            0);
  ASSERT_TRUE(two.completes(two.a, &entry));
  EXPECT_EQ(std::memcmp(found, target, sizeof found), 0);
}

TEST(FabricAtomics, SayWhatTheyCannotDo) {
  Two two;
  std::uint64_t target = 0, one = 1;
  const auto mr = expose(two.b, &target, sizeof target, 4, FI_REMOTE_READ);
  fi_cq_err_entry error;
  ASSERT_EQ(sent(
                [&] {
                  return fi_atomic(two.a.ep.get(), &one, 1, nullptr, two.to_b, 0, 4, FI_UINT64,
                                   FI_SUM, nullptr);
                },
                two.a),
            0);
  ASSERT_TRUE(two.fails(two.a, &error));
  EXPECT_EQ(error.err, FI_EACCES);
  ASSERT_EQ(sent(
                [&] {
                  return fi_atomic(two.a.ep.get(), &one, 1, nullptr, two.to_b, 0, 44, FI_UINT64,
                                   FI_SUM, nullptr);
                },
                two.a),
            0);
  ASSERT_TRUE(two.fails(two.a, &error));
  EXPECT_EQ(error.err, FI_ENOKEY);
  EXPECT_EQ(fi_atomic(two.a.ep.get(), &one, 1, nullptr, two.to_b, 0, 4, FI_DOUBLE, FI_BOR, nullptr),
            -FI_EOPNOTSUPP);
  EXPECT_EQ(target, 0u);
}

// 0, or why a call was refused for good: those that find no room are made again.
template <typename F>
int until_accepted(Two& two, F&& call) {
  ssize_t rc = 0;
  EXPECT_TRUE(eventually([&] {
    rc = call();
    if (rc == -FI_EAGAIN) two.idle(1);
    return rc != -FI_EAGAIN;
  }));
  return static_cast<int>(rc);
}

// FI_ORDER_WAW and its like hold between atomic operations and others.
TEST(FabricAtomics, ThatCameFirstAreNotOvertakenByASmallWrite) {
  Two two;
  std::uint64_t value = 0;
  const auto mr = expose(two.b, &value, sizeof value, 1);
  const std::uint64_t one = 1, hundred = 100;
  Node& a = two.a;
  const auto add = [&] {
    return fi_atomic(a.ep.get(), &one, 1, nullptr, two.to_b, 0, 1, FI_UINT64, FI_SUM, nullptr);
  };
  ASSERT_EQ(sent(add, a), 0);
  ASSERT_EQ(
      sent([&] { return fi_write(a.ep.get(), &hundred, 8, nullptr, two.to_b, 0, 1, nullptr); }, a),
      0);
  // The target does not poll, so we would rather write by ourselves.
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  fi_cq_tagged_entry entry;
  while (std::chrono::steady_clock::now() < end)
    ASSERT_EQ(fi_cq_read(a.cq.get(), &entry, 1), -FI_EAGAIN);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(two.completes(a, &entry));
  EXPECT_EQ(value, 100u);
  // One that was there before needs nobody's help.
  ASSERT_EQ(
      sent([&] { return fi_write(a.ep.get(), &one, 8, nullptr, two.to_b, 0, 1, nullptr); }, a), 0);
  ASSERT_EQ(sent(add, a), 0);
  EXPECT_TRUE(eventually([&] { return fi_cq_read(a.cq.get(), &entry, 1) == 1; }));
  EXPECT_EQ(entry.flags, FI_RMA | FI_WRITE);
  ASSERT_TRUE(two.completes(a, &entry));
  EXPECT_EQ(value, 2u);
  // A large one comes after both, though its caller reads no queue.
  const std::vector<char> large(20'000, 'l');
  std::vector<char> there(large.size());
  const auto there_mr = expose(two.b, there.data(), there.size(), 2);
  ASSERT_EQ(sent(add, a), 0);
  ASSERT_EQ(
      sent([&] { return fi_write(a.ep.get(), &hundred, 8, nullptr, two.to_b, 0, 1, nullptr); }, a),
      0);
  EXPECT_TRUE(eventually([&] {
    (void)fi_cq_read(two.b.cq.get(), &entry, 0);
    return fi_write(a.ep.get(), large.data(), large.size(), nullptr, two.to_b, 0, 2, nullptr) == 0;
  }));
  EXPECT_EQ(value, 100u);
  EXPECT_EQ(there, large);
}

TEST(FabricLongAtomics, WorkOnAnyNumberOfValues) {
  Two two;
  std::size_t most = 0;
  ASSERT_EQ(fi_atomicvalid(two.a.ep.get(), FI_UINT64, FI_SUM, &most), 0);
  EXPECT_GE(most, std::size_t{1} << 20);
  std::vector<std::uint64_t> target(300'000), operands(300'000), found(300'000), expected(300'000);
  const auto mr = expose(two.b, target.data(), target.size() * 8, 4);
  std::uint64_t round = 0;
  for (const std::size_t n : {1024u, 1025u, 2000u, 2049u, 10'000u, 300'000u}) {
    ++round;
    for (std::size_t i = 0; i < target.size(); ++i) expected[i] = target[i] = i * round;
    for (std::size_t i = 0; i < n; ++i) operands[i] = i + round;
    int context = 0;
    fi_cq_tagged_entry entry;
    ASSERT_EQ(fi_atomic(two.a.ep.get(), operands.data(), n, nullptr, two.to_b, 0, 4, FI_UINT64,
                        FI_SUM, &context),
              0);
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_EQ(entry.op_context, &context);
    EXPECT_EQ(entry.flags, FI_ATOMIC | FI_WRITE);
    for (std::size_t i = 0; i < n; ++i) expected[i] += operands[i];
    ASSERT_TRUE(target == expected) << n;

    std::fill(found.begin(), found.end(), 0);
    ASSERT_EQ(fi_fetch_atomic(two.a.ep.get(), operands.data(), n, nullptr, found.data(), nullptr,
                              two.to_b, 0, 4, FI_UINT64, FI_BXOR, nullptr),
              0);
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_EQ(entry.flags, FI_ATOMIC | FI_READ);
    EXPECT_TRUE(std::equal(found.begin(), found.begin() + static_cast<long>(n), expected.begin()))
        << n;
    for (std::size_t i = 0; i < n; ++i) expected[i] ^= operands[i];
    ASSERT_TRUE(target == expected) << n;

    // Every other value is as expected, and is exchanged.
    std::vector<std::uint64_t> compare = expected;
    for (std::size_t i = 0; i < n; i += 2) ++compare[i];
    ASSERT_EQ(
        fi_compare_atomic(two.a.ep.get(), operands.data(), n, nullptr, compare.data(), nullptr,
                          found.data(), nullptr, two.to_b, 0, 4, FI_UINT64, FI_CSWAP, nullptr),
        0);
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_TRUE(std::equal(found.begin(), found.begin() + static_cast<long>(n), expected.begin()))
        << n;
    for (std::size_t i = 1; i < n; i += 2) expected[i] = operands[i];
    ASSERT_TRUE(target == expected) << n;

    ASSERT_EQ(fi_fetch_atomic(two.a.ep.get(), nullptr, n, nullptr, found.data(), nullptr, two.to_b,
                              0, 4, FI_UINT64, FI_ATOMIC_READ, nullptr),
              0);
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_TRUE(std::equal(found.begin(), found.begin() + static_cast<long>(n), expected.begin()))
        << n;
    EXPECT_EQ(fi_cq_read(two.a.cq.get(), &entry, 1), -FI_EAGAIN);
  }
}

TEST(FabricLongAtomics, KeepTheirPlaceAmongShortOnes) {
  Two two;
  constexpr std::size_t kValues = 20'000;
  constexpr int kRounds = 100;  // more than can be offered at a time
  std::vector<std::uint64_t> target(kValues);
  const auto mr = expose(two.b, target.data(), kValues * 8, 4);
  std::vector<std::vector<std::uint64_t>> operands(kRounds, std::vector<std::uint64_t>(kValues));
  int completions = 0;
  const auto drain = [&] {
    fi_cq_tagged_entry entry;
    while (fi_cq_read(two.a.cq.get(), &entry, 1) == 1) ++completions;
  };
  for (int i = 0; i < kRounds; ++i) {
    std::fill(operands[i].begin(), operands[i].end(), 10 * i);
    const std::uint64_t last = 10 * i + 1;
    ASSERT_EQ(until_accepted(two,
                             [&] {
                               drain();
                               return fi_atomic(two.a.ep.get(), operands[i].data(), kValues,
                                                nullptr, two.to_b, 0, 4, FI_UINT64, FI_ATOMIC_WRITE,
                                                nullptr);
                             }),
              0);
    ASSERT_EQ(until_accepted(two,
                             [&] {
                               drain();
                               return fi_atomic(two.a.ep.get(), &last, 1, nullptr, two.to_b,
                                                8 * (kValues - 1), 4, FI_UINT64, FI_ATOMIC_WRITE,
                                                nullptr);
                             }),
              0);
  }
  EXPECT_TRUE(eventually([&] {
    drain();
    fi_cq_tagged_entry nothing;
    (void)fi_cq_read(two.b.cq.get(), &nothing, 0);
    return completions == 2 * kRounds;
  })) << completions;
  EXPECT_EQ(target[0], 10u * (kRounds - 1));
  EXPECT_EQ(target[kValues - 2], 10u * (kRounds - 1));
  EXPECT_EQ(target[kValues - 1], 10u * (kRounds - 1) + 1);
}

TEST(FabricLongAtomics, OfBothSidesAreNotOvertaken) {
  Two two;
  constexpr std::size_t kCount = 1 << 20;
  struct Side {
    Node& node;
    fi_addr_t to;
    std::vector<std::uint64_t> memory = std::vector<std::uint64_t>(kCount, 5);
    std::vector<std::uint64_t> operands = std::vector<std::uint64_t>(kCount, 1);
    std::vector<std::uint64_t> found = std::vector<std::uint64_t>(kCount);
    std::vector<std::uint64_t> after = std::vector<std::uint64_t>(8);
    std::uint64_t operand = 1, single = 0;
    char word[8] = {};
    int next = 0, completions = 0, messages = 0;
    Object<fid_mr> mr = expose(node, memory.data(), memory.size() * 8, 4);
  };
  Side sides[] = {{two.a, two.to_b}, {two.b, two.to_a}};
  for (Side& side : sides)
    ASSERT_EQ(
        fi_recv(side.node.ep.get(), side.word, sizeof side.word, nullptr, FI_ADDR_UNSPEC, nullptr),
        0);
  // Behind the first: a message, a read of the last values, another operation on the last one.
  const auto start = [&](Side& s) -> ssize_t {
    fid_ep* const ep = s.node.ep.get();
    switch (s.next) {
      case 0:
        return fi_fetch_atomic(ep, s.operands.data(), kCount, nullptr, s.found.data(), nullptr,
                               s.to, 0, 4, FI_UINT64, FI_SUM, nullptr);
      case 1: return fi_inject(ep, "behind!", 8, s.to);
      case 2: return fi_read(ep, s.after.data(), 64, nullptr, s.to, (kCount - 8) * 8, 4, nullptr);
      case 3:
        return fi_fetch_atomic(ep, &s.operand, 1, nullptr, &s.single, nullptr, s.to,
                               (kCount - 1) * 8, 4, FI_UINT64, FI_SUM, nullptr);
      default:
        return fi_fetch_atomic(ep, nullptr, kCount, nullptr, s.found.data(), nullptr, s.to, 0, 4,
                               FI_UINT64, FI_ATOMIC_READ, nullptr);
    }
  };
  EXPECT_TRUE(eventually([&] {
    for (Side& side : sides) {
      while (side.next < 5 && start(side) == 0) ++side.next;
      fi_cq_tagged_entry entry;
      if (fi_cq_read(side.node.cq.get(), &entry, 1) != 1) continue;
      ++side.completions;
      if ((entry.flags & FI_RECV) == 0) continue;
      ++side.messages;
      EXPECT_EQ(side.memory[kCount - 2], 6u);  // what the message was sent after
    }
    return sides[0].completions == 5 && sides[1].completions == 5;
  }));
  for (const Side& side : sides) {
    EXPECT_EQ(side.messages, 1);
    EXPECT_STREQ(side.word, "behind!");
    EXPECT_EQ(side.after[0], 6u);
    EXPECT_EQ(side.single, 6u);
    EXPECT_EQ(side.found[0], 6u);
    EXPECT_EQ(side.found[kCount - 1], 7u);
  }
}

TEST(FabricLongAtomics, HaveSeveralTargets) {
  Two two;
  std::vector<std::uint64_t> first(50'000), second(50'000);
  const auto mr_first = expose(two.b, first.data(), first.size() * 8, 1);
  const auto mr_second = expose(two.b, second.data(), second.size() * 8, 2);
  for (const std::size_t n : {std::size_t{3}, std::size_t{30'000}}) {
    std::fill(first.begin(), first.end(), 100);
    std::fill(second.begin(), second.end(), 200);
    std::vector<std::uint64_t> operands(2 * n + 1), found(2 * n + 1);
    for (std::size_t i = 0; i < operands.size(); ++i) operands[i] = i;
    const fi_ioc iov[] = {{operands.data(), n + 2}, {operands.data() + n + 2, n - 1}};
    fi_ioc results[] = {{found.data(), 1}, {found.data() + 1, n}, {found.data() + 1 + n, n}};
    const fi_rma_ioc remote[] = {{8, n, 1}, {0, 1, 2}, {16, n, 2}};
    fi_msg_atomic msg{};
    msg.msg_iov = iov;
    msg.iov_count = 2;
    msg.addr = two.to_b;
    msg.rma_iov = remote;
    msg.rma_iov_count = 3;
    msg.datatype = FI_UINT64;
    msg.op = FI_SUM;
    ASSERT_EQ(sent(
                  [&] {
                    return fi_fetch_atomicmsg(two.a.ep.get(), &msg, results, nullptr, 3,
                                              FI_COMPLETION);
                  },
                  two.a),
              0);
    fi_cq_tagged_entry entry;
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_EQ(first[0], 100u);
    EXPECT_EQ(first[1], 100u);
    EXPECT_EQ(first[n], 100u + n - 1);
    EXPECT_EQ(first[n + 1], 100u);
    EXPECT_EQ(second[0], 200u + n);
    EXPECT_EQ(second[1], 200u);
    EXPECT_EQ(second[2], 200u + n + 1);
    EXPECT_EQ(second[n + 1], 200u + 2 * n);
    EXPECT_EQ(second[n + 2], 200u);
    EXPECT_EQ(std::count(found.begin(), found.end(), 100u), static_cast<long>(n));
    EXPECT_EQ(std::count(found.begin(), found.end(), 200u), static_cast<long>(n + 1));
    EXPECT_EQ(found[n - 1], 100u);
    EXPECT_EQ(found[n], 200u);
    // Without results, and with operands that are the caller's again at once.
    if (n > 100) continue;
    ASSERT_EQ(
        sent([&] { return fi_atomicmsg(two.a.ep.get(), &msg, FI_INJECT | FI_COMPLETION); }, two.a),
        0);
    std::fill(operands.begin(), operands.end(), 9999);
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_EQ(second[n + 1], 200u + 4 * n);
  }
}

TEST(FabricLongAtomics, AreDoneWholeOrNotAtAll) {
  Two two;
  std::vector<std::uint64_t> target(10'000), operands(20'000, 1);
  const auto mr = expose(two.b, target.data(), target.size() * 8, 1);
  const auto mr_read = expose(two.b, target.data(), target.size() * 8, 2, FI_REMOTE_READ);
  const struct {
    fi_rma_ioc second;
    int err;
  } cases[] = {
      {{0, 10'000, 3}, FI_ENOKEY}, {{0, 10'000, 2}, FI_EACCES}, {{8, 10'000, 1}, FI_EACCES}};
  for (const auto& c : cases) {
    const fi_ioc iov{operands.data(), 20'000};
    const fi_rma_ioc remote[] = {{0, 10'000, 1}, c.second};
    fi_msg_atomic msg{};
    msg.msg_iov = &iov;
    msg.iov_count = 1;
    msg.addr = two.to_b;
    msg.rma_iov = remote;
    msg.rma_iov_count = 2;
    msg.datatype = FI_UINT64;
    msg.op = FI_SUM;
    ASSERT_EQ(sent([&] { return fi_atomicmsg(two.a.ep.get(), &msg, FI_COMPLETION); }, two.a), 0);
    fi_cq_err_entry error;
    ASSERT_TRUE(two.fails(two.a, &error));
    EXPECT_EQ(error.err, c.err);
    fi_cq_tagged_entry entry;
    EXPECT_EQ(fi_cq_read(two.a.cq.get(), &entry, 1), -FI_EAGAIN);
  }
  EXPECT_EQ(std::count(target.begin(), target.end(), 0u), 10'000);
  // Numbers of values that do not fit together, and pieces without number.
  const fi_ioc iov{operands.data(), 20'000};
  const fi_rma_ioc remote[] = {{0, 10'000, 1}, {0, 9'999, 1}, {0, 0, 1}, {0, 0, 1}, {0, 1, 1}};
  fi_msg_atomic msg{};
  msg.msg_iov = &iov;
  msg.iov_count = 1;
  msg.addr = two.to_b;
  msg.rma_iov = remote;
  msg.datatype = FI_UINT64;
  msg.op = FI_SUM;
  for (const std::size_t count : {0u, 1u, 2u, 5u}) {
    msg.rma_iov_count = count;
    EXPECT_EQ(fi_atomicmsg(two.a.ep.get(), &msg, FI_COMPLETION), -FI_EINVAL) << count;
  }
}

template <typename T>
class FabricAtomicTypes : public testing::Test {};
struct Int8 {
  using Type = std::int8_t;
  static constexpr fi_datatype kType = FI_INT8;
};
struct Uint16 {
  using Type = std::uint16_t;
  static constexpr fi_datatype kType = FI_UINT16;
};
struct Int32 {
  using Type = std::int32_t;
  static constexpr fi_datatype kType = FI_INT32;
};
struct Int64 {
  using Type = std::int64_t;
  static constexpr fi_datatype kType = FI_INT64;
};
struct Float {
  using Type = float;
  static constexpr fi_datatype kType = FI_FLOAT;
};
struct Double {
  using Type = double;
  static constexpr fi_datatype kType = FI_DOUBLE;
};
struct LongDouble {
  using Type = long double;
  static constexpr fi_datatype kType = FI_LONG_DOUBLE;
};
using AtomicTypes = testing::Types<Int8, Uint16, Int32, Int64, Float, Double, LongDouble>;
TYPED_TEST_SUITE(FabricAtomicTypes, AtomicTypes);

TYPED_TEST(FabricAtomicTypes, GiveWhatTheProcessorWouldHaveGiven) {
  using T = typename TypeParam::Type;
  Two two;
  struct Case {
    fi_op op;
    T operand, result;
  };
  const T start = 6;
  const Case cases[] = {{FI_MIN, 4, 4},  {FI_MAX, 4, 6},  {FI_SUM, 4, 10},        {FI_PROD, 4, 24},
                        {FI_LOR, 0, 1},  {FI_LAND, 0, 0}, {FI_LXOR, 4, 0},        {FI_BOR, 3, 7},
                        {FI_BAND, 3, 2}, {FI_BXOR, 3, 5}, {FI_ATOMIC_WRITE, 4, 4}};
  for (const Case& c : cases) {
    fi_atomic_attr attr{};
    const bool bits = c.op == FI_BOR || c.op == FI_BAND || c.op == FI_BXOR;
    const int rc = fi_query_atomic(two.a.domain.get(), TypeParam::kType, c.op, &attr, 0);
    if (bits && !std::is_integral_v<T>) {
      EXPECT_EQ(rc, -FI_EOPNOTSUPP);
      continue;
    }
    ASSERT_EQ(rc, 0) << c.op;
    EXPECT_EQ(attr.size, sizeof(T));
    T target = start, found = 0;
    const auto mr = expose(two.b, &target, sizeof target, 4);
    const auto call = [&] {
      return fi_fetch_atomic(two.a.ep.get(), &c.operand, 1, nullptr, &found, nullptr, two.to_b, 0,
                             4, TypeParam::kType, c.op, nullptr);
    };
    ASSERT_EQ(sent(call, two.a), 0);
    fi_cq_tagged_entry entry;
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_EQ(found, start) << c.op;
    EXPECT_EQ(target, c.result) << c.op;
  }
}

}  // namespace
}  // namespace clan::test
