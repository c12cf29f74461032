// RMA.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "libfabric/memory.h"
#include "libfabric/node.h"

namespace clan::test {
namespace {

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
      : thread_([this, &node, seed, on_entry = std::move(on_entry)] {
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

// Two programs that ask each other for more than their rings and what is kept for them hold, and
// read completions only on command.
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

}  // namespace
}  // namespace clan::test
