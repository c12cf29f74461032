// RMA and atomic operations.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "libfabric/node.h"

namespace clan::test {
namespace {

constexpr std::uint64_t kAll = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

Object<fid_mr> expose(Node& node, void* memory, std::size_t bytes, std::uint64_t key,
                      std::uint64_t access = kAll) {
  fid_mr* mr = nullptr;
  MUST(fi_mr_reg(node.domain.get(), memory, bytes, access, 0, key, 0, &mr, nullptr));
  return Object<fid_mr>(mr);
}

TEST(FabricRma, WritesAndReadsOfAnySize) {
  Two two;
  std::vector<char> memory(2'000'000);
  const auto mr = expose(two.b, memory.data(), memory.size(), 77);
  for (const std::size_t n : {0u, 1u, 8u, 4096u, 100'000u, 1'500'000u}) {
    const auto data = pattern(n, 1);
    std::vector<char> back(n);
    int context = 0;
    fi_cq_tagged_entry entry;
    ASSERT_EQ(fi_write(two.a.ep.get(), data.data(), n, nullptr, two.to_b, 100, 77, &context), 0);
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_EQ(entry.flags, FI_RMA | FI_WRITE);
    EXPECT_EQ(entry.op_context, &context);
    EXPECT_TRUE(std::equal(data.begin(), data.end(), memory.begin() + 100));
    ASSERT_EQ(fi_read(two.a.ep.get(), back.data(), n, nullptr, two.to_b, 100, 77, &context), 0);
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_EQ(entry.flags, FI_RMA | FI_READ);
    EXPECT_EQ(back, data);
  }
}

TEST(FabricRma, GathersAndScatters) {
  Two two;
  std::vector<char> memory(1000);
  const auto mr = expose(two.b, memory.data(), memory.size(), 1);
  auto data = pattern(300, 2);
  const iovec iov[] = {{data.data(), 100}, {data.data() + 100, 1}, {data.data() + 101, 199}};
  const fi_rma_iov remote[] = {{10, 150, 1}, {500, 150, 1}};
  fi_msg_rma msg{};
  msg.msg_iov = iov;
  msg.iov_count = 3;
  msg.addr = two.to_b;
  msg.rma_iov = remote;
  msg.rma_iov_count = 2;
  ASSERT_EQ(fi_writemsg(two.a.ep.get(), &msg, FI_COMPLETION), 0);
  fi_cq_tagged_entry entry;
  ASSERT_TRUE(two.completes(two.a, &entry));
  EXPECT_EQ(std::memcmp(memory.data() + 10, data.data(), 150), 0);
  EXPECT_EQ(std::memcmp(memory.data() + 500, data.data() + 150, 150), 0);
}

TEST(FabricRma, TellsTheTargetWithData) {
  Two two;
  char memory[16] = {};
  const auto mr = expose(two.b, memory, sizeof memory, 5);
  ASSERT_EQ(fi_writedata(two.a.ep.get(), "hello", 5, nullptr, 0xabcdef, two.to_b, 0, 5, nullptr),
            0);
  fi_cq_tagged_entry entry;
  ASSERT_TRUE(two.completes(two.b, &entry));
  EXPECT_EQ(entry.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
  EXPECT_EQ(entry.data, 0xabcdefu);
  EXPECT_STREQ(memory, "hello");
}

TEST(FabricRma, RefusesWhatTheRegionDoesNotAllow) {
  Two two;
  char memory[64] = {}, local[64] = {};
  const auto mr = expose(two.b, memory, sizeof memory, 5, FI_REMOTE_READ);
  const auto failed = [&](int err) {
    fi_cq_err_entry error;
    ASSERT_TRUE(two.fails(two.a, &error));
    EXPECT_EQ(error.err, err);
  };
  ASSERT_EQ(fi_write(two.a.ep.get(), local, 8, nullptr, two.to_b, 0, 5, nullptr), 0);
  failed(FI_EACCES);
  ASSERT_EQ(fi_read(two.a.ep.get(), local, 8, nullptr, two.to_b, 60, 5, nullptr), 0);
  failed(FI_EINVAL);
  ASSERT_EQ(fi_read(two.a.ep.get(), local, 8, nullptr, two.to_b, 0, 6, nullptr), 0);
  failed(FI_ENOKEY);
  ASSERT_EQ(fi_read(two.a.ep.get(), local, 8, nullptr, two.to_b, 0, 5, nullptr), 0);
  fi_cq_tagged_entry entry;
  EXPECT_TRUE(two.completes(two.a, &entry));
}

TEST(FabricRma, FollowsAKeyToItsNextRegion) {
  Two two;
  std::vector<char> small(64, 's'), large(100'000, 'l');
  std::vector<char> back(100'000);
  fi_cq_tagged_entry entry;
  auto mr = expose(two.b, small.data(), small.size(), 9);
  ASSERT_EQ(fi_read(two.a.ep.get(), back.data(), 64, nullptr, two.to_b, 0, 9, nullptr), 0);
  ASSERT_TRUE(two.completes(two.a, &entry));
  EXPECT_EQ(back[63], 's');
  mr.reset();
  ASSERT_EQ(fi_read(two.a.ep.get(), back.data(), 64, nullptr, two.to_b, 0, 9, nullptr), 0);
  fi_cq_err_entry error;
  ASSERT_TRUE(two.fails(two.a, &error));
  EXPECT_EQ(error.err, FI_ENOKEY);
  mr = expose(two.b, large.data(), large.size(), 9);
  ASSERT_EQ(fi_read(two.a.ep.get(), back.data(), back.size(), nullptr, two.to_b, 0, 9, nullptr), 0);
  ASSERT_TRUE(two.completes(two.a, &entry));
  EXPECT_EQ(back, large);
}

TEST(FabricRma, TakesVirtualAddressesAndGivesKeysWhereProgramsWantThat) {
  NodeOptions basic{.mr_mode = FI_MR_BASIC};
  Two two(basic, basic);
  std::vector<char> memory(4096);
  const auto first = expose(two.b, memory.data(), 2048, 0);
  const auto second = expose(two.b, memory.data() + 2048, 2048, 0);
  EXPECT_NE(fi_mr_key(first.get()), fi_mr_key(second.get()));
  const auto address = reinterpret_cast<std::uint64_t>(memory.data() + 3000);
  ASSERT_EQ(fi_write(two.a.ep.get(), "virtual", 8, nullptr, two.to_b, address,
                     fi_mr_key(second.get()), nullptr),
            0);
  fi_cq_tagged_entry entry;
  ASSERT_TRUE(two.completes(two.a, &entry));
  EXPECT_STREQ(memory.data() + 3000, "virtual");
}

TEST(FabricRma, CountsAtTheTarget) {
  Two two;
  char memory[64] = {};
  auto mr = expose(two.b, memory, sizeof memory, 3);
  fi_cntr_attr attr{};
  fid_cntr* counter = nullptr;
  MUST(fi_cntr_open(two.b.domain.get(), &attr, &counter, nullptr));
  Object<fid_cntr> of_region(counter);
  MUST(fi_mr_bind(mr.get(), &counter->fid, FI_REMOTE_WRITE));
  for (int i = 0; i < 3; ++i) ASSERT_EQ(fi_inject_write(two.a.ep.get(), "x", 1, two.to_b, 0, 3), 0);
  EXPECT_EQ(fi_cntr_wait(counter, 3, 10'000), 0);
  EXPECT_EQ(fi_cntr_read(counter), 3u);
  EXPECT_EQ(fi_cntr_wait(counter, 4, 20), -FI_ETIMEDOUT);
  mr.reset();
}

TEST(FabricRma, NeedsNoHelpOfItsTarget) {
  // The target never calls libfabric after it has been set up.
  Two two;
  std::vector<char> memory(1'000'000);
  const auto mr = expose(two.b, memory.data(), memory.size(), 1);
  const auto data = pattern(memory.size(), 8);
  ASSERT_EQ(fi_write(two.a.ep.get(), data.data(), data.size(), nullptr, two.to_b, 0, 1, nullptr),
            0);
  fi_cq_tagged_entry entry;
  ASSERT_TRUE(eventually([&] { return fi_cq_read(two.a.cq.get(), &entry, 1) == 1; }));
  EXPECT_EQ(memory, data);
}

TEST(FabricRma, NeedsNoHelpOfItsTargetForManySmallOnes) {
  Two two;
  std::vector<std::uint64_t> memory(3000);
  const auto mr = expose(two.b, memory.data(), memory.size() * 8, 1);
  const auto done = [&] {
    fi_cq_tagged_entry entry;
    return eventually([&] { return fi_cq_read(two.a.cq.get(), &entry, 1) == 1; });
  };
  std::uint64_t back = 0;
  for (std::uint64_t i = 0; i < memory.size(); ++i) {
    const std::uint64_t value = i + 1;
    // Silent ones are made by the time that a later one is.
    ssize_t rc = -FI_EAGAIN;
    ASSERT_TRUE(eventually([&] {
      fi_cq_tagged_entry nothing;
      rc = fi_inject_write(two.a.ep.get(), &value, 8, two.to_b, 8 * i, 1);
      if (rc == -FI_EAGAIN) (void)fi_cq_read(two.a.cq.get(), &nothing, 0);
      return rc != -FI_EAGAIN;
    }));
    ASSERT_EQ(rc, 0);
    if (i % 7 != 0) continue;
    ASSERT_EQ(fi_read(two.a.ep.get(), &back, 8, nullptr, two.to_b, 8 * i, 1, nullptr), 0);
    ASSERT_TRUE(done());
    ASSERT_EQ(back, value);
    ASSERT_EQ(memory[i], value);
  }
}

// The target works now and then only, so some accesses are its own and others the initiator's.
class Worker {
 public:
  Worker(Node& node, unsigned seed,
         std::function<void(const fi_cq_tagged_entry&)> on_entry = nullptr)
      : thread_([this, &node, seed, on_entry] {
          std::minstd_rand random(seed);
          while (!stop_.load()) {
            for (unsigned i = random() % 300; i > 0; --i) {
              fi_cq_tagged_entry entry;
              if (fi_cq_read(node.cq.get(), &entry, 1) == 1 && on_entry) on_entry(entry);
            }
            if (random() % 3 == 0)
              std::this_thread::sleep_for(std::chrono::microseconds(random() % 60));
          }
        }) {}
  ~Worker() {
    stop_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(FabricRma, ReadsWhatItHasWrittenWhoeverMakesTheAccess) {
  Two two;
  std::vector<char> memory(60'000), expected(60'000), back(20'000);
  const auto mr = expose(two.b, memory.data(), memory.size(), 1);
  {
    Worker worker(two.b, 3);
    std::minstd_rand random(17);
    for (int i = 0; i < 6000; ++i) {
      const std::size_t n = random() % 8 == 0 ? 1 + random() % 20'000 : 1 + random() % 300;
      const std::size_t at = random() % (memory.size() - n);
      const auto data = pattern(n, static_cast<unsigned>(i));
      std::copy(data.begin(), data.end(), expected.begin() + static_cast<std::ptrdiff_t>(at));
      fi_cq_tagged_entry entry;
      ASSERT_TRUE(eventually([&] {
        const ssize_t rc =
            fi_write(two.a.ep.get(), data.data(), n, nullptr, two.to_b, at, 1, nullptr);
        if (rc == -FI_EAGAIN) (void)fi_cq_read(two.a.cq.get(), &entry, 0);
        return rc == 0;
      }));
      const std::size_t m = random() % 8 == 0 ? 1 + random() % 20'000 : 1 + random() % 300;
      const std::size_t from = random() % (memory.size() - m);
      ASSERT_TRUE(eventually([&] {
        const ssize_t rc =
            fi_read(two.a.ep.get(), back.data(), m, nullptr, two.to_b, from, 1, nullptr);
        if (rc == -FI_EAGAIN) (void)fi_cq_read(two.a.cq.get(), &entry, 0);
        return rc == 0;
      }));
      for (int k = 0; k < 2; ++k) {
        ASSERT_TRUE(eventually([&] { return fi_cq_read(two.a.cq.get(), &entry, 1) == 1; }));
      }
      ASSERT_EQ(std::memcmp(back.data(), expected.data() + from, m), 0)
          << i << ": " << m << " at " << from;
    }
  }
  EXPECT_EQ(memory, expected);
}

TEST(FabricRma, IsThereBeforeAMessageThatWasSentAfterIt) {
  constexpr std::uint64_t kMessages = 20'000, kSlots = 4096;
  Two two;
  std::vector<std::uint64_t> memory(kSlots);
  const auto mr = expose(two.b, memory.data(), memory.size() * 8, 1);
  for (int i = 0; i < 512; ++i) {
    ASSERT_EQ(fi_trecv(two.b.ep.get(), nullptr, 0, nullptr, FI_ADDR_UNSPEC, 0, ~std::uint64_t{0},
                       nullptr),
              0);
  }
  std::atomic<std::uint64_t> wrong{0}, came{0};
  {
    Worker worker(two.b, 5, [&](const fi_cq_tagged_entry& entry) {
      const auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(memory.data());
      if (words[entry.tag % kSlots].load() != entry.tag) wrong.fetch_add(1);
      (void)fi_trecv(two.b.ep.get(), nullptr, 0, nullptr, FI_ADDR_UNSPEC, 0, ~std::uint64_t{0},
                     nullptr);
      came.fetch_add(1);
    });
    fi_cq_tagged_entry entry;
    for (std::uint64_t i = 1; i <= kMessages; ++i) {
      ASSERT_TRUE(eventually([&] {
        if (i > came.load() + kSlots / 2) return false;
        const ssize_t rc = fi_inject_write(two.a.ep.get(), &i, 8, two.to_b, 8 * (i % kSlots), 1);
        if (rc == -FI_EAGAIN) (void)fi_cq_read(two.a.cq.get(), &entry, 0);
        return rc == 0;
      }));
      ASSERT_TRUE(eventually([&] {
        const ssize_t rc = fi_tinject(two.a.ep.get(), nullptr, 0, two.to_b, i);
        if (rc == -FI_EAGAIN) (void)fi_cq_read(two.a.cq.get(), &entry, 0);
        return rc == 0;
      }));
      if (i % 50 == 0) (void)fi_cq_read(two.a.cq.get(), &entry, 0);
    }
    EXPECT_TRUE(eventually([&] {
      (void)fi_cq_read(two.a.cq.get(), &entry, 0);
      return came.load() == kMessages;
    }));
  }
  EXPECT_EQ(wrong.load(), 0u);
}

// Its target leaves it to us, and sleeps meanwhile.
TEST(FabricRma, ThatIsRefusedHoldsUpNothingBehindIt) {
  for (const fi_progress progress : {FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO}) {
    Two two({}, {.wait = FI_WAIT_FD, .progress = progress});
    char got[8] = {};
    ASSERT_EQ(fi_trecv(two.b.ep.get(), got, sizeof got, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr), 0);
    ssize_t n = 0;
    std::thread target([&] {
      fi_cq_tagged_entry entry;
      n = fi_cq_sread(two.b.cq.get(), &entry, 1, nullptr, 5'000);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it sleeps
    Node& a = two.a;
    const auto write = [&] {
      return fi_write(a.ep.get(), "12345678", 8, nullptr, two.to_b, 0, 99, nullptr);
    };
    ASSERT_EQ(sent(write, a), 0);
    ASSERT_EQ(sent([&] { return fi_tinject(a.ep.get(), "12345678", 8, two.to_b, 1); }, a), 0);
    // it has refused, and sleeps again
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    fi_cq_tagged_entry entry;
    fi_cq_err_entry error{};
    ssize_t rc = 0;
    EXPECT_TRUE(eventually([&] { return (rc = fi_cq_read(a.cq.get(), &entry, 1)) != -FI_EAGAIN; }));
    EXPECT_EQ(rc, -FI_EAVAIL);
    EXPECT_EQ(fi_cq_readerr(a.cq.get(), &error, 0), 1);
    EXPECT_EQ(error.err, FI_ENOKEY);
    const auto asked = std::chrono::steady_clock::now();
    target.join();
    EXPECT_LT(std::chrono::steady_clock::now() - asked, std::chrono::seconds(4));
    EXPECT_EQ(n, 1);
    EXPECT_EQ(std::memcmp(got, "12345678", 8), 0);
  }
}

// A message that nobody has asked for yet is one of the operations before.
TEST(FabricRma, BehindAFenceWaitsForWhatWasStartedBefore) {
  Two two;
  char memory[8] = {}, local[8] = "fenced";
  const auto mr = expose(two.b, memory, sizeof memory, 1);
  const auto large = pattern(1 << 20, 3);
  std::vector<char> got(large.size());
  Node& a = two.a;
  const auto send = [&] {
    return fi_tsend(a.ep.get(), large.data(), large.size(), nullptr, two.to_b, 1, nullptr);
  };
  ASSERT_EQ(sent(send, a), 0);
  const iovec iov{local, sizeof local};
  const fi_rma_iov remote{0, sizeof local, 1};
  fi_msg_rma msg{};
  msg.msg_iov = &iov;
  msg.iov_count = 1;
  msg.addr = two.to_b;
  msg.rma_iov = &remote;
  msg.rma_iov_count = 1;
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(fi_writemsg(a.ep.get(), &msg, FI_FENCE | FI_COMPLETION), -FI_EAGAIN);
    two.idle(1);
  }
  EXPECT_STREQ(memory, "");
  ASSERT_EQ(
      fi_trecv(two.b.ep.get(), got.data(), got.size(), nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr), 0);
  fi_cq_tagged_entry entry;
  ASSERT_TRUE(two.completes(a, &entry));
  EXPECT_EQ(entry.flags, FI_SEND | FI_TAGGED);
  ASSERT_EQ(fi_writemsg(a.ep.get(), &msg, FI_FENCE | FI_COMPLETION), 0);
  ASSERT_TRUE(two.completes(a, &entry));
  EXPECT_STREQ(memory, "fenced");
  EXPECT_EQ(got, large);
}

TEST(FabricRma, WithDataIsToldOnceWhoeverMakesIt) {
  constexpr std::uint64_t kWrites = 3000;
  Two two;
  std::uint64_t memory = 0;
  const auto mr = expose(two.b, &memory, sizeof memory, 1);
  std::vector<std::uint64_t> told;
  std::atomic<std::size_t> count{0};
  {
    Worker worker(two.b, 7, [&](const fi_cq_tagged_entry& entry) {
      told.push_back(entry.data);
      count.store(told.size());
    });
    for (std::uint64_t i = 0; i < kWrites; ++i) {
      fi_cq_tagged_entry entry;
      ASSERT_TRUE(eventually([&] {
        const ssize_t rc = fi_writedata(two.a.ep.get(), &i, 8, nullptr, i, two.to_b, 0, 1, nullptr);
        if (rc == -FI_EAGAIN) (void)fi_cq_read(two.a.cq.get(), &entry, 0);
        return rc == 0;
      }));
      ASSERT_TRUE(eventually([&] { return fi_cq_read(two.a.cq.get(), &entry, 1) == 1; }));
    }
    EXPECT_TRUE(eventually([&] { return count.load() >= kWrites; }));
  }
  ASSERT_EQ(told.size(), kWrites);
  for (std::uint64_t i = 0; i < kWrites; ++i) EXPECT_EQ(told[i], i);
  EXPECT_EQ(memory, kWrites - 1);
}

// --- atomic operations ---------------------------------------------------------------------------

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

// Two programs that ask each other for more than their rings and what is kept for them hold, and
// read completions only when they are told to.
TEST(FabricFlood, OfReadsInBothDirectionsEnds) {
  Two two;
  constexpr std::size_t kReads = 3000, kBytes = 8192, kPlaces = 64;
  struct Side {
    Node& node;
    fi_addr_t to;
    std::vector<char> memory = pattern(kBytes * kPlaces, 1);
    std::vector<char> places = std::vector<char>(kBytes * kPlaces);
    std::size_t started = 0, done = 0;
    Object<fid_mr> mr = expose(node, memory.data(), memory.size(), 3);
  };
  Side sides[] = {{two.a, two.to_b}, {two.b, two.to_a}};
  EXPECT_TRUE(eventually([&] {
    for (Side& side : sides) {
      ssize_t rc = 0;
      while (side.started < kReads && rc == 0) {
        const std::size_t at = side.started % kPlaces * kBytes;
        rc = fi_read(side.node.ep.get(), side.places.data() + at, kBytes, nullptr, side.to, at, 3,
                     nullptr);
        if (rc == 0) ++side.started;
      }
      EXPECT_TRUE(rc == 0 || rc == -FI_EAGAIN) << rc;
      fi_cq_tagged_entry entries[16];
      const ssize_t n = fi_cq_read(side.node.cq.get(), entries, 16);
      EXPECT_TRUE(n > 0 || n == -FI_EAGAIN) << n;
      if (n > 0) side.done += static_cast<std::size_t>(n);
    }
    return sides[0].done >= kReads && sides[1].done >= kReads;
  })) << sides[0].done
      << " and " << sides[1].done;
  for (const Side& side : sides) {
    EXPECT_EQ(side.done, kReads);
    EXPECT_EQ(side.places, side.memory);
  }
}

TEST(FabricFlood, OfSendsWithDeliveryInBothDirectionsEnds) {
  Two two;
  constexpr std::size_t kSends = 30'000;
  struct Side {
    Node& node;
    fi_addr_t to;
    std::size_t started = 0, posted = 0, done = 0, received = 0;
  };
  Side sides[] = {{two.a, two.to_b}, {two.b, two.to_a}};
  EXPECT_TRUE(eventually([&] {
    for (Side& side : sides) {
      const fi_msg msg{nullptr, nullptr, 0, side.to, nullptr, 0};
      ssize_t rc = 0;
      while (side.started < kSends && rc == 0) {
        rc = fi_sendmsg(side.node.ep.get(), &msg, FI_DELIVERY_COMPLETE);
        if (rc == 0) ++side.started;
      }
      EXPECT_TRUE(rc == 0 || rc == -FI_EAGAIN) << rc;
      // Nobody receives before it has sent all.
      if (side.started == kSends && side.posted < kSends) {
        for (int i = 0; i < 100; ++i, ++side.posted)
          EXPECT_EQ(fi_recv(side.node.ep.get(), nullptr, 0, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
      }
      fi_cq_tagged_entry entries[64];
      const ssize_t n = fi_cq_read(side.node.cq.get(), entries, 64);
      EXPECT_TRUE(n > 0 || n == -FI_EAGAIN) << n;
      for (ssize_t i = 0; i < n; ++i)
        ++((entries[i].flags & FI_RECV) != 0 ? side.received : side.done);
    }
    return sides[0].done + sides[0].received >= 2 * kSends &&
           sides[1].done + sides[1].received >= 2 * kSends;
  })) << sides[0].done
      << ", " << sides[1].done;
  for (const Side& side : sides) {
    EXPECT_EQ(side.done, kSends);
    EXPECT_EQ(side.received, kSends);
  }
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

Object<fid_mr> expose_pieces(Node& node, const std::vector<iovec>& pieces, std::uint64_t key,
                             std::uint64_t access = kAll) {
  fid_mr* mr = nullptr;
  MUST(
      fi_mr_regv(node.domain.get(), pieces.data(), pieces.size(), access, 0, key, 0, &mr, nullptr));
  return Object<fid_mr>(mr);
}

TEST(FabricRegions, OfSeveralPiecesAreOneBehindTheOther) {
  for (const bool virtual_addresses : {false, true}) {
    NodeOptions options;
    if (virtual_addresses) options.mr_mode = FI_MR_BASIC;
    Two two(options, options);
    EXPECT_GE(two.b.info->domain_attr->mr_iov_limit, 4u);
    std::vector<char> one(5000), two_(3), three(100'000);
    const std::vector<iovec> pieces = {{one.data(), one.size()},
                                       {two_.data(), two_.size()},
                                       {one.data(), 0},
                                       {three.data(), three.size()}};
    auto mr = expose_pieces(two.b, pieces, 6);
    const std::uint64_t key = fi_mr_key(mr.get());
    const std::uint64_t base = virtual_addresses ? reinterpret_cast<std::uint64_t>(one.data()) : 0;
    const std::size_t size = one.size() + two_.size() + three.size();
    const auto all = pattern(size, 5);
    fi_cq_tagged_entry entry;
    ASSERT_EQ(fi_write(two.a.ep.get(), all.data(), size, nullptr, two.to_b, base, key, nullptr), 0);
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin()));
    EXPECT_TRUE(std::equal(two_.begin(), two_.end(), all.begin() + 5000));
    EXPECT_TRUE(std::equal(three.begin(), three.end(), all.begin() + 5003));
    std::vector<char> back(10);
    ASSERT_EQ(
        fi_read(two.a.ep.get(), back.data(), 10, nullptr, two.to_b, base + 4997, key, nullptr), 0);
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_TRUE(std::equal(back.begin(), back.end(), all.begin() + 4997));
    ASSERT_EQ(
        fi_read(two.a.ep.get(), back.data(), 10, nullptr, two.to_b, base + size - 9, key, nullptr),
        0);
    fi_cq_err_entry error;
    ASSERT_TRUE(two.fails(two.a, &error));
    EXPECT_EQ(error.err, FI_EINVAL);
    // The key may come to mean another region.
    mr.reset();
    ASSERT_EQ(fi_read(two.a.ep.get(), back.data(), 1, nullptr, two.to_b, base, key, nullptr), 0);
    ASSERT_TRUE(two.fails(two.a, &error));
    EXPECT_EQ(error.err, FI_ENOKEY);
    if (virtual_addresses) continue;
    mr = expose(two.b, three.data(), 10, 6);
    ASSERT_EQ(fi_read(two.a.ep.get(), back.data(), 10, nullptr, two.to_b, 0, 6, nullptr), 0);
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_TRUE(std::equal(back.begin(), back.end(), three.begin()));
  }
}

TEST(FabricRegions, OfSeveralPiecesTakeAtomicOperations) {
  Two two;
  alignas(8) std::uint64_t first[5000];
  alignas(8) unsigned char second[3 + 40'000];
  std::vector<std::uint64_t> expected(10'000, 7);
  const auto put = [&] {
    std::vector<char> bytes(80'000);
    std::memcpy(bytes.data(), expected.data(), 80'000);
    std::memcpy(first, bytes.data(), 39'997);  // a value lies across the border
    std::memcpy(second, bytes.data() + 39'997, 40'003);
  };
  const auto get = [&] {
    std::vector<std::uint64_t> values(10'000);
    std::memcpy(values.data(), first, 39'997);
    std::memcpy(reinterpret_cast<char*>(values.data()) + 39'997, second, 40'003);
    return values;
  };
  const auto mr = expose_pieces(two.b, {{first, 39'997}, {second, 40'003}}, 6);
  put();
  std::vector<std::uint64_t> operands(10'000), found(10'000);
  for (std::size_t i = 0; i < operands.size(); ++i) operands[i] = i << 20;
  const struct {
    std::size_t at, count;
  } cases[] = {{0, 10'000}, {4'998, 3}, {4'999, 1}, {0, 1}, {9'999, 1}};
  fi_cq_tagged_entry entry;
  for (const auto& c : cases) {
    const auto before = get();
    ASSERT_EQ(fi_fetch_atomic(two.a.ep.get(), operands.data(), c.count, nullptr, found.data(),
                              nullptr, two.to_b, c.at * 8, 6, FI_UINT64, FI_SUM, nullptr),
              0);
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_EQ(std::memcmp(found.data(), before.data() + c.at, c.count * 8), 0);
    expected = before;
    for (std::size_t i = 0; i < c.count; ++i) expected[c.at + i] += operands[i];
    EXPECT_TRUE(get() == expected) << c.at;
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
