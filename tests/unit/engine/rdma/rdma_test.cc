#include <clan/rdma.h>
#include <clan/tripwire.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <optional>
#include <thread>

#include "clan/detail/clock.h"
#include "support/plain_link.h"
#include "support/streams.h"

namespace clan {
namespace {

using namespace test;

// How the bytes travel.
enum class Way { kClanMemory, kOwnMemory, kPeersDriver, kTranslated, kPackets };

std::string name_of(const testing::TestParamInfo<Way>& info) {
  const char* names[] = {"ClanMemory", "OwnMemory", "PeersDriver", "Translated", "Packets"};
  return names[static_cast<int>(info.param)];
}

ContextOptions options_for(Way way) {
  ContextOptions options;
  options.direct_copy = way != Way::kPeersDriver;
  options.nic_translates = way == Way::kTranslated;
  return options;
}

// A target at the owner, its remote aperture and an RDMA queue at the peer.
struct Target {
  std::optional<PlainNetwork> network;
  Context owner, peer;
  std::optional<Memory> memory;
  std::vector<std::byte> own;
  std::span<std::byte> bytes;
  std::optional<Aperture> aperture;
  std::optional<RemoteAperture> remote;
  RdmaQueue queue;

  explicit Target(Way way, std::size_t size = 4 << 20, std::uint32_t depth = 256)
      : owner(must(Context::create(options_for(way)))),
        peer(must(Context::create(options_for(way)))),
        queue(must(RdmaQueue::create(peer, depth))) {
    if (way == Way::kPackets) {
      network.emplace();
      network->join(*owner.core(), *peer.core());
    }
    if (way == Way::kClanMemory) {
      memory = must(Memory::allocate(size));
      bytes = memory->span().first(size);
      aperture = must(Aperture::export_memory(owner, *memory, 0, size, Rights::kReadWrite));
    } else {
      own.resize(size);
      bytes = own;
      aperture = must(Aperture::export_region(owner, own, Rights::kReadWrite));
    }
    remote = must(RemoteAperture::import(peer, aperture->cookie()));
  }

  RdmaCompletion one(std::int64_t timeout_ms = 20'000) {
    RdmaCompletion c;
    auto n = queue.wait({&c, 1}, timeout_ms);
    EXPECT_OK(n);
    if (!n) c.status = -1;
    return c;
  }
};

class Rdma : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, Rdma,
                         testing::Values(Way::kClanMemory, Way::kOwnMemory, Way::kPeersDriver,
                                         Way::kTranslated, Way::kPackets),
                         name_of);

TEST_P(Rdma, WritesAndReadsBytesOfAnyLength) {
  Target t(GetParam());
  for (std::size_t n : {1ul, 7ul, 64ul, 4095ul, 4096ul, 65'536ul, 262'144ul, 262'145ul, 524'288ul,
                        524'289ul, 3'000'001ul}) {
    const auto data = pattern(n, n);
    ASSERT_OK(t.queue.write(*t.remote, 17, data.data(), n, {.cookie = n}));
    RdmaCompletion c = t.one();
    ASSERT_EQ(c.status, 0) << n;
    EXPECT_EQ(c.cookie, n);
    EXPECT_EQ(c.bytes, n);
    ASSERT_TRUE(is_pattern(t.bytes.subspan(17, n), n, 0)) << n;
    std::vector<std::byte> back(n);
    ASSERT_OK(t.queue.read(*t.remote, 17, back.data(), n, {.cookie = n + 1}));
    c = t.one();
    ASSERT_EQ(c.status, 0) << n;
    ASSERT_EQ(back, data) << n;
  }
  ASSERT_OK(t.queue.write(*t.remote, t.bytes.size(), nullptr, 0));
  EXPECT_EQ(t.one().status, 0);
}

TEST_P(Rdma, CompletesInTheOrderOfPosting) {
  Target t(GetParam(), 1 << 20);
  Random random(2);
  std::vector<std::vector<std::byte>> data;
  std::vector<std::size_t> offset;
  constexpr std::uint64_t kRequests = 100;
  for (std::uint64_t i = 0; i < kRequests; ++i) {
    data.push_back(pattern(random.size_up_to(200'000), i));
    offset.push_back(random.below(t.bytes.size() - data[i].size()));
    ASSERT_OK(t.queue.write(*t.remote, offset[i], data[i].data(), data[i].size(), {.cookie = i}));
  }
  std::vector<std::byte> expected(t.bytes.size());
  for (std::uint64_t i = 0; i < kRequests; ++i) {
    const RdmaCompletion c = t.one();
    ASSERT_EQ(c.cookie, i);
    ASSERT_EQ(c.status, 0);
    std::memcpy(expected.data() + offset[i], data[i].data(), data[i].size());
  }
  EXPECT_EQ(std::memcmp(expected.data(), t.bytes.data(), expected.size()), 0);
  const RdmaCounters counters = RdmaQueue::counters(t.peer);
  EXPECT_EQ(counters.requests, kRequests);
  EXPECT_EQ(counters.completions, kRequests);
}

TEST_P(Rdma, AnswersBadRequestsWithCompletions) {
  Target t(GetParam(), 1 << 20);
  std::vector<std::byte> local(4096);
  ASSERT_OK(t.queue.write(*t.remote, t.bytes.size() - 4095, local.data(), 4096, {.cookie = 1}));
  EXPECT_EQ(t.one().status, ERANGE);
  ASSERT_OK(t.queue.read(*t.remote, std::uint64_t{1} << 40, local.data(), 8));
  EXPECT_EQ(t.one().status, ERANGE);
  ASSERT_OK(t.queue.read(*t.remote, ~std::uint64_t{0}, local.data(), 8));
  EXPECT_EQ(t.one().status, EINVAL);  // beyond any memory
  ASSERT_OK(t.queue.write(*t.remote, 0, nullptr, 8));
  EXPECT_EQ(t.one().status, EFAULT);
  ASSERT_OK(t.queue.write(*t.remote, 0, local.data(), 4096, {.cookie = 2}));
  RdmaCompletion c = t.one();  // the queue goes on
  EXPECT_EQ(c.status, 0);
  EXPECT_EQ(c.cookie, 2u);
  ASSERT_OK(t.aperture->revoke());
  ASSERT_OK(t.queue.write(*t.remote, 0, local.data(), 4096));
  EXPECT_EQ(t.one().status, ESTALE);
  EXPECT_ERR(t.queue.wait({&c, 1}, 20), ETIMEDOUT);
}

TEST_P(Rdma, ContentNeverChangesAfterRevokeHasReturned) {
  for (int round = 0; round < 15; ++round) {
    Target t(GetParam(), 2 << 20);
    std::atomic<bool> stop{false}, started{false};
    std::thread writer([&] {
      std::vector<std::byte> data(t.bytes.size());
      for (int i = 1; !stop.load(); ++i) {
        std::memset(data.data(), i, data.size());
        ASSERT_OK(t.queue.write(*t.remote, 0, data.data(), data.size()));
        const int status = t.one().status;
        started.store(true);
        if (status != 0) {
          ASSERT_EQ(status, ESTALE);
          break;
        }
      }
    });
    while (!started.load()) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(round * 37));
    EXPECT_OK(t.aperture->revoke());
    const std::vector<std::byte> seen(t.bytes.begin(), t.bytes.end());
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(std::memcmp(seen.data(), t.bytes.data(), seen.size()), 0);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    writer.join();
    EXPECT_EQ(std::memcmp(seen.data(), t.bytes.data(), seen.size()), 0);
    stop.store(true);
  }
}

TEST_P(Rdma, QueueMayGoWithWorkOutstanding) {
  Target t(GetParam(), 4 << 20);
  for (int round = 0; round < 10; ++round) {
    auto local = std::make_unique<std::vector<std::byte>>(4 << 20);
    {
      auto queue = must(RdmaQueue::create(t.peer, 16));
      for (int i = 0; i < 8; ++i) {
        ASSERT_OK(queue.read(*t.remote, 0, local->data(), local->size()));
      }
    }
    // Its memory is not touched from here on.
    std::memset(local->data(), 0x55, local->size());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (std::size_t i = 0; i < local->size(); i += 509) ASSERT_EQ((*local)[i], std::byte{0x55});
  }
  std::vector<std::byte> small(10);
  ASSERT_OK(t.queue.read(*t.remote, 0, small.data(), small.size()));
  EXPECT_EQ(t.one().status, 0);
}

TEST_P(Rdma, RemoteApertureMayGoWithWorkOutstanding) {
  Target t(GetParam(), 4 << 20);
  std::vector<std::byte> other(4 << 20), data(4 << 20, std::byte{1});
  auto second = must(Aperture::export_region(t.owner, other, Rights::kReadWrite));
  for (std::uint64_t i = 0; i < 6; ++i) {
    ASSERT_OK(t.queue.write(*t.remote, 0, data.data(), data.size(), {.cookie = i}));
  }
  t.remote.reset();
  auto next = must(RemoteAperture::import(t.peer, second.cookie()));
  std::byte one{2};
  ASSERT_OK(t.queue.write(next, 0, &one, 1, {.cookie = 6}));
  for (std::uint64_t i = 0; i < 7; ++i) {
    const RdmaCompletion c = t.one();
    EXPECT_EQ(c.cookie, i);
    EXPECT_TRUE(c.status == 0 || (i < 6 && c.status == ESTALE)) << c.status;
  }
  // Nothing meant for the first has gone to the second.
  EXPECT_EQ(other[0], std::byte{2});
  EXPECT_EQ(other[1], std::byte{0});
  EXPECT_EQ(other.back(), std::byte{0});
}

TEST_P(Rdma, TellsAnEventQueueAndFiresTripwires) {
  Target t(GetParam(), 1 << 20);
  auto events = must(EventQueue::create(t.peer));
  ASSERT_OK(t.queue.register_with(events, 11));
  Event e[4];
  while (events.poll(e) > 0) {
  }
  auto tripwire = must(Tripwire::create(*t.aperture, 999'999, 1));
  tripwire.arm();
  std::vector<std::byte> data(1 << 20);
  ASSERT_OK(t.queue.write(*t.remote, 0, data.data(), data.size()));
  EXPECT_OK(tripwire.wait(10'000));
  ASSERT_OK(events.wait(e, 10'000));
  EXPECT_EQ(e[0].tag, 11u);
  EXPECT_EQ(e[0].kind, EventKind::kRdma);
  RdmaCompletion c;
  ASSERT_TRUE(eventually([&] { return t.queue.poll({&c, 1}) == 1; }));
  EXPECT_EQ(c.status, 0);
}

TEST_P(Rdma, GroupsAndPrioritiesFinishAllWork) {
  Target t(GetParam(), 1 << 20);
  std::vector<RdmaQueue> queues;
  for (int i = 0; i < 4; ++i) queues.push_back(must(RdmaQueue::create(t.peer, 64)));
  std::vector<std::byte> data = pattern(1 << 20, 3);
  for (std::uint64_t i = 0; i < 48; ++i) {
    for (std::size_t q = 0; q < queues.size(); ++q) {
      RdmaOptions options;
      options.cookie = i;
      options.priority = static_cast<std::uint8_t>(q * 2);
      options.more = i % 3 != 2;
      const std::uint64_t at = i * 20'000;
      ASSERT_OK(queues[q].write(*t.remote, at, data.data() + at, 20'000, options));
    }
  }
  for (RdmaQueue& queue : queues) {
    for (std::uint64_t i = 0; i < 48; ++i) {
      RdmaCompletion c;
      ASSERT_OK(queue.wait({&c, 1}, 20'000));
      ASSERT_EQ(c.cookie, i);
      ASSERT_EQ(c.status, 0);
    }
  }
  EXPECT_TRUE(is_pattern(t.bytes.first(48 * 20'000), 3, 0));
}

TEST_P(Rdma, ADeadPeerLeavesNothingInTheNic) {
  if (GetParam() == Way::kPackets) GTEST_SKIP() << "peers of packet links map nothing";
  auto context = must(Context::create(options_for(GetParam())));
  auto queue = must(RdmaQueue::create(context, 64));
  for (int round = 0; round < 3; ++round) {
    auto owner = must(Context::create(options_for(GetParam())));
    std::vector<std::byte> own(100'000), local(100'000, std::byte{7});
    auto aperture = must(Aperture::export_region(owner, own, Rights::kReadWrite));
    auto remote = must(RemoteAperture::import(context, aperture.cookie()));
    ASSERT_OK(queue.write(remote, 0, local.data(), local.size()));
    RdmaCompletion c;
    ASSERT_OK(queue.wait({&c, 1}, 20'000));
    ASSERT_EQ(c.status, 0);
    ASSERT_EQ(own, local);
  }
  const std::uint64_t end = monotonic_ns() + 20'000'000'000u;
  while (context.counters().links != 0 && monotonic_ns() < end) ::usleep(1000);
  EXPECT_EQ(context.counters().apertures, 0u);
}

TEST(RdmaQueue, RefusesWhatMakesNoSense) {
  auto context = must(Context::create());
  for (std::uint32_t depth : {0u, 3u, 131072u})
    EXPECT_ERR(RdmaQueue::create(context, depth), EINVAL);
  Target t(Way::kOwnMemory, 1 << 16, 4);
  auto elsewhere = must(Context::create());
  auto queue = must(RdmaQueue::create(elsewhere));
  std::byte b{};
  (void)must(RdmaQueue::create(t.peer));
  ASSERT_OK(t.queue.write(*t.remote, 0, &b, 1));
  EXPECT_ERR(queue.write(*t.remote, 0, &b, 1), EINVAL);  // another context's remote aperture
}

TEST(RdmaQueue, GoesOnWhenTheOneThatKeptItsLinkBusyHasGone) {
  Target t(Way::kPackets);
  std::vector<std::byte> much(4 << 20), little(10);
  for (int round = 0; round < 20; ++round) {
    {
      auto other = must(RdmaQueue::create(t.peer, 16));
      for (int i = 0; i < 8; ++i) {
        ASSERT_OK(other.read(*t.remote, 0, much.data(), much.size()));
      }
      ASSERT_OK(t.queue.read(*t.remote, 0, little.data(), little.size()));
    }
    ASSERT_EQ(t.one().status, 0) << "in round " << round;
  }
}

TEST(RdmaQueue, SaysWhenItIsFull) {
  Target t(Way::kOwnMemory, 1 << 16, 4);
  std::byte b{};
  int posted = 0;
  Status s;
  while ((s = t.queue.write(*t.remote, 0, &b, 1)) && posted < 100) ++posted;
  EXPECT_ERR(s, EAGAIN);
  EXPECT_GE(posted, 4);
  RdmaCompletion c[100];
  std::size_t got = 0;
  while (got < static_cast<std::size_t>(posted)) {
    auto n = t.queue.wait(c, 5000);
    ASSERT_OK(n);
    got += *n;
  }
  EXPECT_OK(t.queue.write(*t.remote, 0, &b, 1));
}

TEST(RdmaTranslation, TurnsBadLocalAddressesIntoCompletions) {
  Target t(Way::kTranslated, 1 << 20);
  auto* hole = static_cast<std::byte*>(
      ::mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(::munmap(hole + 4096, 4096), 0);
  ASSERT_OK(t.queue.write(*t.remote, 0, hole, 3 * 4096, {.cookie = 1}));
  EXPECT_EQ(t.one().status, EFAULT);
  ASSERT_OK(t.queue.write(*t.remote, 0, hole, 4096, {.cookie = 2}));
  EXPECT_EQ(t.one().status, 0);
  ASSERT_EQ(::mprotect(hole, 4096, PROT_READ), 0);
  ASSERT_OK(t.queue.read(*t.remote, 0, hole, 8, {.cookie = 3}));
  EXPECT_EQ(t.one().status, EFAULT);
  ASSERT_OK(t.queue.write(*t.remote, 0, hole, 8, {.cookie = 4}));
  EXPECT_EQ(t.one().status, 0);
  // Unmapped under an entry, mapped anew: the new page is what is sent.
  hole[2 * 4096] = std::byte{1};
  ASSERT_OK(t.queue.write(*t.remote, 0, hole + 2 * 4096, 1));
  EXPECT_EQ(t.one().status, 0);
  ASSERT_EQ(::munmap(hole + 2 * 4096, 4096), 0);
  ASSERT_EQ(::mmap(hole + 2 * 4096, 4096, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            hole + 2 * 4096);
  hole[2 * 4096] = std::byte{9};
  ASSERT_OK(t.queue.write(*t.remote, 0, hole + 2 * 4096, 1));
  EXPECT_EQ(t.one().status, 0);
  EXPECT_EQ(t.bytes[0], std::byte{9});
  EXPECT_GT(RdmaQueue::counters(t.peer).tlb_misses, 0u);
  ::munmap(hole, 4096);
  ::munmap(hole + 2 * 4096, 4096);
}

TEST(RdmaTranslation, WorksWhenFewPagesMayBeLocked) {
  auto child = Process::start([] {
    rlimit limit{16 * 4096, 16 * 4096};
    CHILD_CHECK(::setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    // The limit does not bind a privileged process: give that up where it is had.
    if (::geteuid() == 0) (void)::setresuid(65534, 65534, 65534);
    ContextOptions options;
    options.nic_translates = options.lock_pages = true;
    options.tlb_entries = 256;
    auto owner = must(Context::create(options));
    auto peer = must(Context::create(options));
    std::vector<std::byte> own(2 << 20);
    auto a = must(Aperture::export_region(owner, own, Rights::kReadWrite));
    auto remote = must(RemoteAperture::import(peer, a.cookie()));
    auto queue = must(RdmaQueue::create(peer));
    const auto data = pattern(2 << 20, 6);
    for (int i = 0; i < 3; ++i) {
      auto s = queue.write(remote, 0, data.data(), data.size());
      CHILD_OK(s);
      RdmaCompletion c;
      auto n = queue.wait({&c, 1}, 20'000);
      CHILD_OK(n);
      CHILD_CHECK(c.status == 0);
      CHILD_CHECK(is_pattern(own, 6, 0));
    }
    return 0;
  });
  EXPECT_TRUE(child.wait().clean());
}

// --- two processes -------------------------------------------------------------------------------

struct Notes {
  RdmaCookie cookie[2];
  std::atomic<std::uint64_t> done[2];
};

TEST(RdmaBetweenProcesses, PeersDeathIsACompletion) {
  for (Way way : {Way::kClanMemory, Way::kOwnMemory, Way::kPeersDriver}) {
    Shared<Notes> shared;
    Notes& notes = *shared;
    Gate known;
    auto child = Process::start([&] {
      Target t(way, 8 << 20);
      notes.cookie[0] = t.aperture->cookie();
      known.open();
      ::pause();
      return 0;
    });
    auto context = must(Context::create(options_for(way)));
    auto queue = must(RdmaQueue::create(context, 64));
    ASSERT_TRUE(known.wait());
    auto remote = must(RemoteAperture::import(context, notes.cookie[0]));
    std::vector<std::byte> local(8 << 20);
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      child.send_signal(9);
    });
    int status = 0;
    const std::uint64_t end = monotonic_ns() + 20'000'000'000u;
    while (status == 0 && monotonic_ns() < end) {
      ASSERT_OK(queue.write(remote, 0, local.data(), local.size()));
      RdmaCompletion c;
      ASSERT_OK(queue.wait({&c, 1}, 20'000));
      status = c.status;
    }
    EXPECT_EQ(status, ECONNRESET) << static_cast<int>(way);
    killer.join();
  }
}

// Both read and write each other's memory at once, polling, so that each helps the other's copies.
TEST(RdmaBetweenProcesses, BothHelpEachOthersCopies) {
  constexpr std::size_t kBytes = 1 << 20;
  constexpr std::uint64_t kRounds = 60;
  Shared<Notes> shared;
  Notes& notes = *shared;
  Gate known[2];
  auto side = [&](std::size_t me) -> int {
    auto context = must(Context::create());
    std::vector<std::byte> target(kBytes), source = pattern(kBytes, me), back(kBytes);
    auto aperture = must(Aperture::export_region(context, target, Rights::kReadWrite));
    notes.cookie[me] = aperture.cookie();
    known[me].open();
    CHILD_CHECK(known[1 - me].wait());
    auto remote = must(RemoteAperture::import(context, notes.cookie[1 - me], 20'000));
    auto queue = must(RdmaQueue::create(context));
    const std::uint64_t end = monotonic_ns() + 30'000'000'000u;
    for (std::uint64_t i = 1; i <= kRounds; ++i) {
      fill_pattern(source, me * 1000 + i, 0);
      auto s = queue.write(remote, 0, source.data(), kBytes, {.cookie = 1});
      CHILD_OK(s);
      s = queue.read(remote, 0, back.data(), kBytes, {.cookie = 2});
      CHILD_OK(s);
      for (std::size_t got = 0; got < 2;) {
        RdmaCompletion c[2];
        const std::size_t n = queue.poll(c);
        for (std::size_t k = 0; k < n; ++k) CHILD_CHECK(c[k].status == 0);
        got += n;
        CHILD_CHECK(monotonic_ns() < end);
      }
      CHILD_CHECK(back == source);
      notes.done[me].store(i);
      while (notes.done[1 - me].load() < i) {
        RdmaCompletion c[1];
        (void)queue.poll(c);  // helps
        CHILD_CHECK(monotonic_ns() < end);
      }
      CHILD_CHECK(is_pattern(target, (1 - me) * 1000 + i, 0));
      // Nobody goes on before both have looked.
      notes.done[me].fetch_add(1000);
      while (notes.done[1 - me].load() < 1000) sched_yield();
      known[1 - me].open();
      CHILD_CHECK(known[me].wait());
      notes.done[me].fetch_sub(1000);
      known[1 - me].open();
      CHILD_CHECK(known[me].wait());
    }
    return 0;
  };
  auto child = Process::start([&] { return side(1); });
  auto other = Process::start([&] { return side(0); });
  EXPECT_TRUE(child.wait().clean());
  EXPECT_TRUE(other.wait().clean());
}

}  // namespace
}  // namespace clan
