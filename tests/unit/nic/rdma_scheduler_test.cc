// The scheduler against a mover that does what the test says, deterministically.
#include "nic/rdma_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/backoff.h"

namespace clan::nic {
namespace {

struct Move {
  using Kind = TransferResult::Kind;
  static TransferResult done() { return {}; }
  static TransferResult pending() { return {Kind::kPending, 0}; }
  static TransferResult deferred() { return {Kind::kBusy, 0}; }
  static TransferResult error(int err) { return {Kind::kError, err}; }
};
constexpr std::uint64_t kMuch = std::uint64_t{1} << 40;

struct FakeMover final : RdmaMover {
  int check(const RdmaQueueRef& q, const RdmaRequest& r) override {
    ++checks;
    return on_check ? on_check(q, r) : 0;
  }
  TransferResult move(const RdmaChunk& c) override {
    const TransferResult m = on_move ? on_move(c) : Move::done();
    if (m.kind == Move::Kind::kBusy) return m;
    if (keep_log) log.push_back(c);
    return m;
  }
  void cancel(const RdmaQueueRef&, std::uint64_t token) override { cancelled.push_back(token); }

  /// The queues in the order they were served, as letters: context is a char.
  std::string order() const {
    std::string s;
    for (const auto& c : log)
      s += static_cast<char>(reinterpret_cast<std::uintptr_t>(c.queue.context));
    return s;
  }

  std::function<int(const RdmaQueueRef&, const RdmaRequest&)> on_check;
  std::function<TransferResult(const RdmaChunk&)> on_move;
  bool keep_log = true;
  int checks = 0;
  std::vector<RdmaChunk> log;
  std::vector<std::uint64_t> cancelled;
};

/// A ring, and what its application has heard.
struct App {
  App(RdmaScheduler& scheduler, char name, std::uint32_t depth = 64)
      : s(&scheduler),
        ring(depth),
        id(s->attach(ring,
                     reinterpret_cast<void*>(std::uintptr_t{static_cast<unsigned char>(name)}))
               .value()) {}

  RdmaRequest next(std::uint64_t length, std::uint8_t priority = 0, bool more = false) {
    RdmaRequest r;
    r.priority = priority;
    r.more = more;
    r.local = reinterpret_cast<void*>(std::uintptr_t{0x100000});
    r.remote_offset = 5000;
    r.length = length;
    r.remote = 3;
    r.cookie = posted++;
    return r;
  }
  void post(std::uint64_t length, std::uint8_t priority = 0, bool more = false) {
    ASSERT_TRUE(ring.post(next(length, priority, more)));
    s->activate(id);
  }
  void post_group(const std::vector<std::uint64_t>& lengths) {
    for (std::size_t i = 0; i < lengths.size(); ++i)
      ASSERT_TRUE(ring.post(next(lengths[i], 0, i + 1 < lengths.size())));
    s->activate(id);
  }
  /// Everything heard so far.
  const std::vector<RdmaCompletion>& reap() {
    RdmaCompletion c;
    while (ring.reap(std::span(&c, 1)) == 1) heard.push_back(c);
    return heard;
  }

  RdmaScheduler* s;
  RdmaRing ring;
  std::uint32_t id;
  std::uint64_t posted = 0;
  std::vector<RdmaCompletion> heard;
};

RdmaScheduler::Options small_options() {
  RdmaScheduler::Options o;
  o.chunk_bytes = 1000;
  o.quantum_bytes = 1000;
  o.group_quantum_bytes = 4000;
  o.max_queues = 16;
  o.max_outstanding_chunks = 4;
  o.max_inflight_requests = 16;
  o.starvation_turns = 4;
  return o;
}

struct RdmaSchedulerTest : ::testing::Test {
  explicit RdmaSchedulerTest(RdmaScheduler::Options o = small_options())
      : s(mover, with_events(std::move(o))) {}

  RdmaScheduler::Options with_events(RdmaScheduler::Options o) {
    o.on_completion = [this](const RdmaQueueRef& q) { events.push_back(q.id); };
    return o;
  }

  FakeMover mover;
  std::vector<std::uint32_t> events;
  RdmaScheduler s;
};

std::vector<std::uint64_t> cookies(const std::vector<RdmaCompletion>& v) {
  std::vector<std::uint64_t> out;
  for (const auto& c : v) out.push_back(c.cookie);
  return out;
}

// ---- one queue ----

TEST_F(RdmaSchedulerTest, MovesARequestAndCompletesIt) {
  App a(s, 'a');
  a.post(300);
  const auto p = s.run(kMuch);
  EXPECT_EQ(p.bytes, 300u);
  EXPECT_EQ(p.completions, 1u);
  EXPECT_TRUE(p.idle);
  ASSERT_EQ(mover.log.size(), 1u);
  EXPECT_EQ(mover.log[0].remote, 3u);
  EXPECT_EQ(mover.log[0].remote_offset, 5000u);
  EXPECT_TRUE(mover.log[0].last);
  ASSERT_EQ(a.reap().size(), 1u);
  EXPECT_EQ(a.heard[0].status, 0);
  EXPECT_EQ(a.heard[0].bytes, 300u);
  EXPECT_EQ(events, (std::vector<std::uint32_t>{a.id}));
  EXPECT_EQ(s.counters().requests, 1u);
  EXPECT_EQ(s.counters().bytes, 300u);
}

TEST_F(RdmaSchedulerTest, SplitsLargeRequestsIntoChunks) {
  App a(s, 'a');
  a.post(2500);
  a.post(1000);
  a.post(1001);
  s.run(kMuch);
  std::vector<std::uint64_t> lengths, offsets, locals;
  std::string last;
  for (const auto& c : mover.log) {
    lengths.push_back(c.length);
    offsets.push_back(c.remote_offset);
    locals.push_back(reinterpret_cast<std::uintptr_t>(c.local) - 0x100000);
    last += c.last ? 'L' : '.';
  }
  EXPECT_EQ(lengths, (std::vector<std::uint64_t>{1000, 1000, 500, 1000, 1000, 1}));
  EXPECT_EQ(offsets, (std::vector<std::uint64_t>{5000, 6000, 7000, 5000, 5000, 6000}));
  EXPECT_EQ(locals, (std::vector<std::uint64_t>{0, 1000, 2000, 0, 0, 1000}));
  EXPECT_EQ(last, "..LL.L");
  EXPECT_EQ(s.counters().splits, 2u);
  EXPECT_EQ(s.counters().chunks, 6u);
  EXPECT_EQ(mover.checks, 3);
}

TEST_F(RdmaSchedulerTest, StopsAtItsBudgetWithinAChunk) {
  App a(s, 'a');
  a.post(10000);
  EXPECT_EQ(s.run(1).bytes, 1000u);
  EXPECT_EQ(s.run(1001).bytes, 2000u);
  EXPECT_EQ(s.run(0).bytes, 0u);
  const auto p = s.run(5000);
  EXPECT_EQ(p.bytes, 5000u);
  EXPECT_FALSE(p.idle);
  EXPECT_TRUE(s.run(kMuch).idle);
  EXPECT_EQ(a.reap().size(), 1u);
}

TEST_F(RdmaSchedulerTest, CompletesAnEmptyRequestWithoutMoving) {
  App a(s, 'a');
  a.post(0);
  EXPECT_EQ(s.run(kMuch).completions, 1u);
  EXPECT_TRUE(mover.log.empty());
  EXPECT_EQ(mover.checks, 1);
  ASSERT_EQ(a.reap().size(), 1u);
  EXPECT_EQ(a.heard[0].status, 0);
}

TEST_F(RdmaSchedulerTest, EmptyAndRefusedRequestsUseUpTheBudget) {
  App a(s, 'a');
  for (int i = 0; i < 40; ++i) a.post(0);
  EXPECT_EQ(s.run(10 * RdmaScheduler::kMinCharge).completions, 10u);
}

TEST_F(RdmaSchedulerTest, ServesARingManyTimesItsCapacity) {
  App a(s, 'a', 4);
  for (int i = 0; i < 1000; ++i) {
    for (int n = i % 5; n > 0; --n) a.post(100);
    s.run(kMuch);
    a.reap();
  }
  ASSERT_EQ(a.heard.size(), 2000u);
  for (std::uint64_t i = 0; i < 2000; ++i) EXPECT_EQ(a.heard[i].cookie, i);
}

// ---- sharing ----

TEST_F(RdmaSchedulerTest, GivesEqualByteSharesToHugeAndSmallRequests) {
  App greedy(s, 'G', 64);
  std::vector<std::unique_ptr<App>> small;
  for (char c = 'a'; c < 'a' + 9; ++c) small.push_back(std::make_unique<App>(s, c, 64));
  std::map<char, std::uint64_t> bytes;
  mover.on_move = [&](const RdmaChunk& c) {
    bytes[static_cast<char>(reinterpret_cast<std::uintptr_t>(c.queue.context))] += c.length;
    return Move::done();
  };
  for (int i = 0; i < 64; ++i) greedy.post(1000000);
  for (auto& a : small)
    for (int i = 0; i < 64; ++i) a->post(100);
  // 10 queues, a quantum of 1000 each: after n full rounds everybody has exactly n quanta.
  for (std::uint64_t round = 1; round <= 6; ++round) {
    EXPECT_EQ(s.run(10000).bytes, 10000u);
    EXPECT_EQ(bytes['G'], round * 1000);
    for (char c = 'a'; c < 'a' + 9; ++c) EXPECT_EQ(bytes[c], round * 1000);
    for (auto& a : small) EXPECT_EQ(a->reap().size(), round * 10);
  }
  EXPECT_EQ(greedy.reap().size(), 0u);
}

TEST_F(RdmaSchedulerTest, ChargesWhatAQueueOverdrawsToItsNextTurns) {
  App a(s, 'a'), b(s, 'b');
  std::map<char, std::uint64_t> bytes;
  mover.on_move = [&](const RdmaChunk& c) {
    bytes[static_cast<char>(reinterpret_cast<std::uintptr_t>(c.queue.context))] += c.length;
    return Move::done();
  };
  for (int i = 0; i < 60; ++i) a.post(700);  // 1400 in a turn of 1000
  for (int i = 0; i < 60; ++i) b.post(999);
  for (int i = 0; i < 60; ++i) {
    s.run(500);
    const auto d = static_cast<std::int64_t>(bytes['a']) - static_cast<std::int64_t>(bytes['b']);
    EXPECT_LE(std::abs(d), 2000) << i;
  }
}

TEST_F(RdmaSchedulerTest, AQueueThatWasIdleGetsNoCreditForIt) {
  App a(s, 'a'), b(s, 'b');
  a.post(100);
  s.run(kMuch);
  for (int i = 0; i < 10; ++i) b.post(1000);
  s.run(5000);
  mover.log.clear();
  for (int i = 0; i < 5; ++i) a.post(1000);
  s.run(4000);
  EXPECT_EQ(mover.order(), "baba");
}

TEST_F(RdmaSchedulerTest, ServesTheMostUrgentLevelFirst) {
  App a(s, 'a'), b(s, 'b'), c(s, 'c');
  a.post(1000, 0);
  b.post(1000, 3);
  c.post(1000, 7);
  s.run(kMuch);
  EXPECT_EQ(mover.order(), "cba");
}

TEST_F(RdmaSchedulerTest, AnUrgentQueueGetsInBetweenTwoChunks) {
  App a(s, 'a'), b(s, 'b');
  a.post(4000, 1);
  s.run(1000);
  b.post(1000, 2);
  s.run(kMuch);
  EXPECT_EQ(mover.order(), "abaaa");
}

TEST_F(RdmaSchedulerTest, AQueueHasThePriorityOfItsOldestRequest) {
  App a(s, 'a'), b(s, 'b');
  a.post(100, 0);
  a.post(100, 7);
  a.post(100, 0);
  b.post(500, 5);
  b.post(500, 5);
  s.run(kMuch);
  EXPECT_EQ(mover.order(), "bbaaa");  // 7 waits behind 0 in its own queue
  mover.log.clear();
  a.post(100, 7);
  a.post(1000, 0);
  b.post(1000, 5);
  s.run(kMuch);
  EXPECT_EQ(mover.order(), "aba");
}

TEST_F(RdmaSchedulerTest, NoLevelStarves) {
  App a(s, 'a', 256), b(s, 'b', 256), c(s, 'c', 256);
  for (int i = 0; i < 200; ++i) a.post(1000, 7);
  for (int i = 0; i < 10; ++i) b.post(1000, 4);
  for (int i = 0; i < 10; ++i) c.post(1000, 0);
  s.run(24000);
  EXPECT_EQ(mover.order(), "aaaabcaaaabcaaaabcaaaabc");  // starvation_turns = 4
}

TEST_F(RdmaSchedulerTest, AGuardTurnIsAWholeTurnHoweverSmallTheBudget) {
  auto o = small_options();
  o.chunk_bytes = 100;
  RdmaScheduler own(mover, o);
  App a(own, 'a'), b(own, 'b');
  for (int i = 0; i < 20; ++i) a.post(1000, 7);
  b.post(3000, 0);
  for (int i = 0; i < 100; ++i) own.run(100);
  const std::string order = mover.order();
  EXPECT_EQ(order.substr(0, 60),
            std::string(40, 'a') + std::string(10, 'b') + std::string(10, 'a'));
}

// ---- chunks ----

TEST_F(RdmaSchedulerTest, CutsSmallWhileOthersAreAboutAndLargeForAQueueThatIsAlone) {
  auto o = small_options();
  o.chunk_bytes = 1 << 20;
  o.shared_chunk_bytes = 1 << 16;
  o.quantum_bytes = 1 << 16;
  o.group_quantum_bytes = 1 << 16;
  RdmaScheduler own(mover, o);
  App greedy(own, 'g'), small(own, 's');
  greedy.post(16 << 20);
  own.run(kMuch);
  // 4 MB (RdmaScheduler::kAloneBytes) in small chunks, then it counts as alone.
  ASSERT_EQ(mover.log.size(), 64u + 12u);
  EXPECT_EQ(mover.log.front().length, 1u << 16);
  EXPECT_EQ(mover.log[63].length, 1u << 16);
  EXPECT_EQ(mover.log[64].length, 1u << 20);
  mover.log.clear();
  greedy.post(2 << 20);
  small.post(4096);
  own.run(kMuch);
  // The last large chunk has overdrawn the greedy queue's turn, and from now on it has company.
  EXPECT_EQ(mover.order(), "s" + std::string(32, 'g'));
  for (std::size_t i = 1; i < mover.log.size(); ++i) EXPECT_EQ(mover.log[i].length, 1u << 16);
}

// ---- groups ----

TEST_F(RdmaSchedulerTest, KeepsAGroupTogether) {
  App a(s, 'a'), b(s, 'b');
  a.post_group({800, 800, 800, 800});
  b.post(1000);
  b.post(1000);
  s.run(kMuch);
  EXPECT_EQ(mover.order(), "aaaabb");
  EXPECT_EQ(a.reap().size(), 4u);
}

TEST_F(RdmaSchedulerTest, KeepsAGroupTogetherAcrossRuns) {
  App a(s, 'a'), b(s, 'b');
  b.post(1000);
  a.post_group({1000, 2000, 1000});
  b.post(1000);
  for (int i = 0; i < 10; ++i) s.run(1);
  EXPECT_EQ(mover.order(), "baaaab");
}

TEST_F(RdmaSchedulerTest, SplitsAGroupOnlyBeyondItsQuantum) {
  App a(s, 'a'), b(s, 'b');
  a.post_group({1000, 1000, 1000, 1000});  // exactly the quantum
  b.post(1000);
  s.run(kMuch);
  EXPECT_EQ(mover.order(), "aaaab");
  mover.log.clear();
  App c(s, 'c'), d(s, 'd');
  c.post_group({1000, 1000, 1000, 1000, 1000});
  d.post(100);
  s.run(kMuch);
  EXPECT_EQ(mover.order(), "ccccdc");
}

TEST_F(RdmaSchedulerTest, AQueueRepaysWhatItsGroupsOverdrew) {
  App a(s, 'a'), b(s, 'b');
  for (int i = 0; i < 5; ++i) a.post_group({1000, 1000, 1000});
  for (int i = 0; i < 15; ++i) b.post(1000);
  s.run(kMuch);
  EXPECT_EQ(mover.order(), "aaabbbaaabbbaaabbbaaabbbaaabbb");
}

TEST_F(RdmaSchedulerTest, ASecondGroupDoesNotRideOnTheFirst) {
  App a(s, 'a'), b(s, 'b');
  a.post_group({600, 600});
  a.post_group({600, 600});
  b.post(1000);
  s.run(kMuch);
  EXPECT_EQ(mover.order(), "aabaa");
}

TEST_F(RdmaSchedulerTest, AGroupRunsAtThePriorityOfItsFirstRequest) {
  App a(s, 'a'), b(s, 'b');
  a.post(500, 5, true);
  a.post(500, 0, true);
  a.post(500, 7, false);
  b.post(500, 4);
  s.run(kMuch);
  EXPECT_EQ(mover.order(), "aaab");
}

TEST_F(RdmaSchedulerTest, AGroupThatIsNotAllPostedHoldsUpNobody) {
  App a(s, 'a'), b(s, 'b');
  a.post(500, 0, true);
  b.post(500);
  EXPECT_TRUE(s.run(kMuch).idle);
  a.post(500, 0, false);
  s.run(kMuch);
  EXPECT_EQ(mover.order(), "aba");
}

TEST_F(RdmaSchedulerTest, AFailedMemberDoesNotStopItsGroup) {
  App a(s, 'a');
  mover.on_check = [](const RdmaQueueRef&, const RdmaRequest& r) {
    return r.cookie == 1 ? EACCES : 0;
  };
  mover.on_move = [](const RdmaChunk& c) {
    return c.cookie == 2 ? Move::error(EFAULT) : Move::done();
  };
  a.post_group({500, 500, 500, 500});
  s.run(kMuch);
  const auto& c = a.reap();
  ASSERT_EQ(c.size(), 4u);
  EXPECT_EQ(c[0].status, 0);
  EXPECT_EQ(c[1].status, EACCES);
  EXPECT_EQ(c[2].status, EFAULT);
  EXPECT_EQ(c[3].status, 0);
}

// ---- errors ----

TEST_F(RdmaSchedulerTest, ReportsRefusalsAsCompletionsInOrder) {
  App a(s, 'a');
  mover.on_check = [](const RdmaQueueRef& q, const RdmaRequest& r) {
    EXPECT_EQ(q.context, reinterpret_cast<void*>(std::uintptr_t{'a'}));
    if (r.priority >= kRdmaPriorities) return EINVAL;
    return r.cookie % 2 ? EPERM : 0;
  };
  for (int i = 0; i < 6; ++i) a.post(100, i == 2 ? 9 : 0);
  s.run(kMuch);
  const auto& c = a.reap();
  ASSERT_EQ(c.size(), 6u);
  for (std::uint64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(c[i].cookie, i);
    EXPECT_EQ(c[i].status, i == 2 ? EINVAL : i % 2 ? EPERM : 0);
    EXPECT_EQ(c[i].bytes, c[i].status ? 0u : 100u);
  }
  EXPECT_EQ(s.counters().bad_requests, 4u);
}

TEST_F(RdmaSchedulerTest, StartsNoChunkAfterOneFailed) {
  App a(s, 'a');
  mover.on_move = [](const RdmaChunk& c) {
    return c.cookie == 0 && c.remote_offset == 6000 ? Move::error(ENXIO) : Move::done();
  };
  a.post(5000);
  a.post(1000);
  s.run(kMuch);
  EXPECT_EQ(mover.log.size(), 3u);
  const auto& c = a.reap();
  ASSERT_EQ(c.size(), 2u);
  EXPECT_EQ(c[0].status, ENXIO);
  EXPECT_EQ(c[0].bytes, 1000u);
  EXPECT_EQ(c[1].status, 0);
}

TEST_F(RdmaSchedulerTest, AnErrorWithoutAnErrnoIsStillAnError) {
  App a(s, 'a');
  mover.on_move = [](const RdmaChunk&) { return Move::error(0); };
  a.post(100);
  s.run(kMuch);
  EXPECT_EQ(a.reap().at(0).status, EIO);
}

// ---- deferral ----

TEST_F(RdmaSchedulerTest, ADeferredQueueDoesNotStallTheOthers) {
  App a(s, 'a'), b(s, 'b');
  bool resident = false;
  mover.on_move = [&](const RdmaChunk& c) {
    return !resident && c.remote_offset == 6000 && c.queue.id == a.id ? Move::deferred()
                                                                      : Move::done();
  };
  a.post(3000);
  a.post(100);
  for (int i = 0; i < 5; ++i) b.post(1000);
  auto p = s.run(kMuch);
  EXPECT_EQ(p.deferred, 1u);
  EXPECT_TRUE(p.idle);
  EXPECT_EQ(b.reap().size(), 5u);
  EXPECT_EQ(a.reap().size(), 0u);  // and nothing of `a` has overtaken
  EXPECT_EQ(s.retry_deferred(), 1u);
  EXPECT_EQ(s.run(kMuch).deferred, 1u);  // still not there
  EXPECT_EQ(s.counters().deferrals, 2u);
  resident = true;
  EXPECT_EQ(s.retry_deferred(), 1u);
  p = s.run(kMuch);
  EXPECT_EQ(p.deferred, 0u);
  EXPECT_EQ(cookies(a.reap()), (std::vector<std::uint64_t>{0, 1}));
  EXPECT_EQ(a.heard[0].bytes, 3000u);
  EXPECT_EQ(s.counters().bytes, 8100u);
}

TEST_F(RdmaSchedulerTest, RetriesAllDeferredQueues) {
  App a(s, 'a'), b(s, 'b'), c(s, 'c');
  bool resident = false;
  mover.on_move = [&](const RdmaChunk&) { return resident ? Move::done() : Move::deferred(); };
  for (App* x : {&a, &b, &c}) x->post(100);
  EXPECT_EQ(s.run(kMuch).deferred, 3u);
  resident = true;
  EXPECT_EQ(s.retry_deferred(), 3u);
  EXPECT_EQ(s.run(kMuch).completions, 3u);
  EXPECT_EQ(s.retry_deferred(), 0u);
}

TEST_F(RdmaSchedulerTest, AGroupWithAPageNotResidentLetsTheOthersIn) {
  App a(s, 'a'), b(s, 'b');
  bool resident = false;
  mover.on_move = [&](const RdmaChunk& c) {
    return !resident && c.queue.id == a.id && c.cookie == 1 ? Move::deferred() : Move::done();
  };
  a.post_group({500, 500, 500});
  b.post(500);
  s.run(kMuch);
  resident = true;
  EXPECT_EQ(s.retry_deferred(), 1u);
  b.post(500);
  s.run(kMuch);
  EXPECT_EQ(mover.order(), "abaab");
}

// ---- pending chunks ----

struct Pending : RdmaSchedulerTest {
  Pending() {
    mover.on_move = [](const RdmaChunk&) { return Move::pending(); };
  }
  bool finish(std::size_t i, int status = 0) {
    return s.complete_chunk(mover.log[i].token, status, status ? 0 : mover.log[i].length);
  }
};

TEST_F(Pending, CompletesWhenTheLastChunkIsOverInWhateverOrder) {
  App a(s, 'a');
  a.post(3000);
  EXPECT_TRUE(s.run(kMuch).idle);
  EXPECT_TRUE(finish(2));
  EXPECT_TRUE(finish(0));
  EXPECT_EQ(a.reap().size(), 0u);
  EXPECT_TRUE(events.empty());
  EXPECT_TRUE(finish(1));
  ASSERT_EQ(a.reap().size(), 1u);
  EXPECT_EQ(a.heard[0].bytes, 3000u);
  EXPECT_EQ(events.size(), 1u);
}

TEST_F(Pending, RequestsCompleteInTheOrderOfPosting) {
  App a(s, 'a');
  for (int i = 0; i < 3; ++i) a.post(100);
  s.run(kMuch);
  EXPECT_TRUE(finish(2));
  EXPECT_TRUE(finish(1));
  EXPECT_EQ(a.reap().size(), 0u);
  EXPECT_TRUE(finish(0));
  EXPECT_EQ(cookies(a.reap()), (std::vector<std::uint64_t>{0, 1, 2}));
}

TEST_F(Pending, BoundsTheChunksAQueueHasOutstanding) {
  App a(s, 'a'), b(s, 'b');
  a.post(10000);
  b.post(1000);
  EXPECT_TRUE(s.run(kMuch).idle);
  EXPECT_EQ(mover.order(), "abaaa");
  EXPECT_TRUE(finish(0));
  EXPECT_TRUE(finish(2));
  s.run(kMuch);
  EXPECT_EQ(mover.order(), "abaaaaa");
  for (std::size_t i = 0; i < mover.log.size(); ++i) {
    (void)finish(i);
    s.run(kMuch);
  }
  EXPECT_EQ(a.reap().at(0).bytes, 10000u);
}

TEST_F(Pending, BoundsTheRequestsAQueueHasInFlight) {
  App a(s, 'a');
  a.post(100);
  mover.on_move = [](const RdmaChunk& c) { return c.cookie == 0 ? Move::pending() : Move::done(); };
  for (int i = 0; i < 40; ++i) a.post(100);
  s.run(kMuch);
  EXPECT_EQ(s.counters().requests, 16u);
  EXPECT_EQ(a.reap().size(), 0u);
  EXPECT_TRUE(finish(0));
  EXPECT_EQ(a.reap().size(), 16u);
  s.run(kMuch);
  EXPECT_EQ(a.reap().size(), 41u);
}

TEST_F(Pending, AFailedChunkStopsTheRestAndWaitsForItsSiblings) {
  App a(s, 'a');
  a.post(10000);
  a.post(100);
  s.run(kMuch);  // four chunks, the window
  EXPECT_TRUE(finish(1, ECONNRESET));
  EXPECT_EQ(a.reap().size(), 0u);
  EXPECT_TRUE(finish(0));
  EXPECT_TRUE(finish(3, EIO));
  s.run(kMuch);
  EXPECT_EQ(mover.log.size(), 5u);  // the fifth is the next request's
  EXPECT_EQ(mover.log[4].cookie, 1u);
  EXPECT_TRUE(finish(4));
  EXPECT_EQ(a.reap().size(), 0u);
  EXPECT_TRUE(finish(2));
  const auto& c = a.reap();
  ASSERT_EQ(c.size(), 2u);
  EXPECT_EQ(c[0].status, ECONNRESET);
  EXPECT_EQ(c[0].bytes, 2000u);
  EXPECT_EQ(c[1].status, 0);
}

TEST_F(Pending, AFailureFreesAQueueThatIsDeferred) {
  App a(s, 'a');
  mover.on_move = [&](const RdmaChunk& c) {
    if (c.cookie == 0 && c.remote_offset != 5000) return Move::deferred();
    return Move::pending();
  };
  a.post(2000);
  a.post(100);
  EXPECT_EQ(s.run(kMuch).deferred, 1u);
  EXPECT_TRUE(finish(0, EPIPE));
  EXPECT_EQ(a.reap().at(0).status, EPIPE);
  s.run(kMuch);
  EXPECT_TRUE(finish(1));
  EXPECT_EQ(a.reap().at(1).status, 0);
}

TEST_F(Pending, AShortChunkIsAnError) {
  App a(s, 'a');
  a.post(100);
  s.run(kMuch);
  EXPECT_TRUE(s.complete_chunk(mover.log[0].token, 0, 60));
  EXPECT_EQ(a.reap().at(0).status, EIO);
  EXPECT_EQ(a.heard[0].bytes, 60u);
}

TEST_F(Pending, IgnoresTokensOfNoChunk) {
  App a(s, 'a');
  a.post(100);
  s.run(kMuch);
  EXPECT_FALSE(s.complete_chunk(0, 0, 0));
  EXPECT_FALSE(s.complete_chunk(~0ull, 0, 0));
  EXPECT_FALSE(s.complete_chunk(mover.log[0].token + 1, 0, 0));
  EXPECT_FALSE(s.complete_chunk(mover.log[0].token + (1ull << 24), 0, 0));
  EXPECT_TRUE(finish(0));
  EXPECT_FALSE(finish(0));
  EXPECT_EQ(a.reap().size(), 1u);
}

// ---- detach ----

TEST_F(Pending, DetachCancelsWhatIsInFlight) {
  App a(s, 'a');
  mover.on_move = [](const RdmaChunk& c) { return c.cookie == 1 ? Move::done() : Move::pending(); };
  a.post(1000);
  a.post(1000);   // done, but behind the first
  a.post(10000);  // fills the window
  a.post(1000);   // not taken yet
  s.run(kMuch);
  events.clear();
  s.detach(a.id);
  EXPECT_EQ(mover.cancelled.size(), 4u);
  const auto& c = a.reap();
  ASSERT_EQ(c.size(), 4u);
  EXPECT_EQ(cookies(c), (std::vector<std::uint64_t>{0, 1, 2, 3}));
  EXPECT_EQ(c[0].status, ECANCELED);
  EXPECT_EQ(c[1].status, 0);
  EXPECT_EQ(c[2].status, ECANCELED);
  EXPECT_EQ(c[3].status, ECANCELED);
  EXPECT_EQ(events.size(), 1u);
  EXPECT_FALSE(finish(0));
  s.activate(a.id);  // harmless
}

TEST_F(Pending, ATokenFromBeforeDetachDoesNotTouchTheNextQueueInItsPlace) {
  auto a = std::make_unique<App>(s, 'a');
  a->post(1000);
  s.run(kMuch);
  const std::uint32_t old = a->id;
  s.detach(old);
  App b(s, 'b');
  EXPECT_EQ(b.id, old);
  b.post(1000);
  s.run(kMuch);
  EXPECT_FALSE(finish(0));
  EXPECT_EQ(b.reap().size(), 0u);
  EXPECT_TRUE(finish(1));
  EXPECT_EQ(b.reap().size(), 1u);
}

TEST_F(RdmaSchedulerTest, DetachWorksInEveryState) {
  App active(s, 'a'), deferred(s, 'd'), idle(s, 'i'), other(s, 'o');
  mover.on_move = [&](const RdmaChunk& c) {
    return c.queue.id == deferred.id ? Move::deferred() : Move::done();
  };
  deferred.post(100);
  s.run(kMuch);
  active.post(5000);
  s.run(1000);  // its turn is open
  other.post(100);
  for (App* x : {&active, &deferred, &idle}) s.detach(x->id);
  EXPECT_EQ(active.reap().at(0).status, ECANCELED);
  EXPECT_EQ(active.heard[0].bytes, 1000u);
  EXPECT_EQ(deferred.reap().at(0).status, ECANCELED);
  EXPECT_EQ(idle.reap().size(), 0u);
  EXPECT_TRUE(s.run(kMuch).idle);
  EXPECT_EQ(other.reap().size(), 1u);
}

TEST_F(RdmaSchedulerTest, AttachesNoMoreThanItsTableHolds) {
  std::vector<std::unique_ptr<App>> apps;
  for (int i = 0; i < 16; ++i) apps.push_back(std::make_unique<App>(s, 'a'));
  RdmaRing ring(4);
  EXPECT_EQ(s.attach(ring, nullptr).error().err, ENOSPC);
  s.detach(apps[7]->id);
  EXPECT_EQ(s.attach(ring, nullptr).value(), 7u);
}

// ---- threads: the scheduler under a lock, applications without one ----

TEST_F(RdmaSchedulerTest, ServesApplicationsInOtherThreads) {
  constexpr std::uint64_t kRequests = 20000;
  mover.keep_log = false;
  std::mutex lock;
  std::vector<std::unique_ptr<App>> apps;
  for (char c : {'a', 'b'}) apps.push_back(std::make_unique<App>(s, c, 16));
  std::atomic<int> running{2};
  std::atomic<bool> late{false};  // a lost doorbell
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::vector<std::thread> threads;
  for (auto& app : apps)
    threads.emplace_back([&, a = app.get()] {
      RdmaCompletion c;
      test::Backoff backoff;
      for (std::uint64_t posted = 0, heard = 0; heard < kRequests && !late; backoff.wait()) {
        if (posted < kRequests) {
          if (a->ring.post(a->next(posted % 3000, posted % 8))) {
            ++posted;
            backoff.reset();
            std::lock_guard hold(lock);
            s.activate(a->id);
          } else {
            --a->posted;
          }
        }
        while (a->ring.reap(std::span(&c, 1)) == 1) {
          EXPECT_EQ(c.cookie, heard);
          EXPECT_EQ(c.bytes, heard % 3000);
          ++heard;
          backoff.reset();
        }
      }
      --running;
    });
  for (test::Backoff backoff; running != 0;) {
    bool idle = false;
    {
      std::lock_guard hold(lock);
      idle = s.run(8000).idle;
    }
    idle ? backoff.wait() : backoff.reset();
    if (std::chrono::steady_clock::now() > deadline) late = true;
  }
  for (auto& t : threads) t.join();
  EXPECT_FALSE(late);
  EXPECT_EQ(s.counters().completions, 2 * kRequests);
}

// ---- everything at once, against a model ----

// The model: a request is posted with a fate (ok, refused, fails at byte n); its chunks must be
// offered in order, each byte moved once; one completion, in order of posting, with that fate.
struct Fate {
  std::uint64_t length = 0;
  int refuse = 0;
  std::uint64_t fail_at = ~0ull;  // a chunk that reaches this byte fails
  std::uint64_t offered = 0;      // bytes the mover accepted, from the start, without a gap
  std::uint64_t arrived = 0;
  int error = 0;
  bool completed = false;
};

struct Model {
  std::map<std::uint64_t, Fate> requests;  // by cookie, over all queues
  struct Flying {
    std::uint64_t token, cookie, length;
    bool fails;
    std::uint32_t queue;
  };
  std::vector<Flying> flying;
};

struct ModelApp {
  std::unique_ptr<App> app;
  std::deque<std::uint64_t> expected;  // cookies in order of posting
  bool detached = false;
};

class Property {
 public:
  explicit Property(unsigned seed) : rng_(seed) {
    RdmaScheduler::Options o;
    o.chunk_bytes = 1 + rnd(1500);
    o.quantum_bytes = 100 + rnd(2000);
    o.group_quantum_bytes = rnd(64 * 100);
    o.max_queues = 6;
    o.max_outstanding_chunks = static_cast<std::uint32_t>(1 + rnd(6));
    o.max_inflight_requests = static_cast<std::uint32_t>(1 + rnd(10));
    o.starvation_turns = static_cast<std::uint32_t>(1 + rnd(5));
    o.on_completion = [this](const RdmaQueueRef&) { ++events_; };
    pending_percent_ = rnd(3) * 40;
    defer_percent_ = rnd(3) * 15;
    mover_.keep_log = false;
    mover_.on_check = [this](const RdmaQueueRef&, const RdmaRequest& r) {
      return model_.requests.at(r.cookie).refuse;
    };
    mover_.on_move = [this](const RdmaChunk& c) { return move(c); };
    s_ = std::make_unique<RdmaScheduler>(mover_, o);
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) step();
    // Let everything end: then each queue has answered exactly what was posted.
    for (int i = 0; i < 10000 && !quiet(); ++i) {
      s_->retry_deferred();
      s_->run(kMuch);
      land(0);
      for (auto& a : apps_) reap(a);
      defer_percent_ = 0;
    }
    for (auto& a : apps_) EXPECT_TRUE(a.expected.empty());
    for (auto& [cookie, f] : model_.requests) EXPECT_TRUE(f.completed) << cookie;
    EXPECT_EQ(s_->counters().requests, model_.requests.size());
    EXPECT_EQ(s_->counters().completions, model_.requests.size());
    EXPECT_EQ(s_->counters().bytes, arrived_);
  }

 private:
  std::uint64_t rnd(std::uint64_t n) { return n == 0 ? 0 : rng_() % n; }

  bool quiet() const {
    return std::all_of(apps_.begin(), apps_.end(), [](auto& a) { return a.expected.empty(); });
  }

  TransferResult move(const RdmaChunk& c) {
    Fate& f = model_.requests.at(c.cookie);
    EXPECT_EQ(f.refuse, 0);
    EXPECT_EQ(f.error, 0) << "a chunk was started after one had failed";
    EXPECT_EQ(c.remote_offset, f.offered);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(c.local), 0x1000 + f.offered);
    EXPECT_LE(c.remote_offset + c.length, f.length);
    EXPECT_EQ(c.last, c.remote_offset + c.length == f.length);
    if (rnd(100) < defer_percent_) return Move::deferred();
    f.offered += c.length;
    const bool fails = f.fail_at < f.offered;
    if (rnd(100) < pending_percent_) {
      model_.flying.push_back({c.token, c.cookie, c.length, fails, c.queue.id});
      return Move::pending();
    }
    if (fails) {
      f.error = EFAULT;
      return Move::error(EFAULT);
    }
    f.arrived += c.length;
    arrived_ += c.length;
    return Move::done();
  }

  void land(std::size_t keep) {
    while (model_.flying.size() > keep) {
      const auto i = rnd(model_.flying.size());
      const auto m = model_.flying[i];
      model_.flying.erase(model_.flying.begin() + static_cast<std::ptrdiff_t>(i));
      Fate& f = model_.requests.at(m.cookie);
      if (m.fails && f.error == 0) f.error = EPIPE;
      if (!m.fails) {
        f.arrived += m.length;
        arrived_ += m.length;
      }
      EXPECT_TRUE(s_->complete_chunk(m.token, m.fails ? EPIPE : 0, m.fails ? 0 : m.length));
    }
  }

  void reap(ModelApp& a) {
    for (const auto& c : a.app->reap()) {
      ASSERT_FALSE(a.expected.empty());
      EXPECT_EQ(c.cookie, a.expected.front());
      a.expected.pop_front();
      Fate& f = model_.requests.at(c.cookie);
      EXPECT_FALSE(f.completed);
      f.completed = true;
      EXPECT_EQ(c.bytes, f.arrived);
      if (c.status == ECANCELED) {
        EXPECT_TRUE(a.detached);
      } else {
        EXPECT_EQ(c.status, f.refuse ? f.refuse : f.error);
        EXPECT_TRUE(c.status != 0 || f.arrived == f.length);
      }
    }
    a.app->heard.clear();
  }

  void post(ModelApp& a) {
    const bool group = rnd(2) == 1;
    for (std::uint64_t left = 1 + rnd(4) * rnd(2); left > 0; --left) {
      Fate f;
      f.length = rnd(6) == 0 ? rnd(20000) : rnd(300);
      if (rnd(10) == 0) f.refuse = EACCES;
      if (rnd(10) == 0) f.fail_at = rnd(f.length);
      RdmaRequest r;
      r.local = reinterpret_cast<void*>(std::uintptr_t{0x1000});
      r.length = f.length;
      r.priority = static_cast<std::uint8_t>(rnd(8));
      r.more = group && left > 1;
      r.cookie = next_cookie_++;
      if (!a.app->ring.post(r)) break;
      model_.requests[r.cookie] = f;
      a.expected.push_back(r.cookie);
    }
    s_->activate(a.app->id);
  }

  void step() {
    const auto what = rnd(100);
    if (apps_.empty() || (what < 3 && apps_.size() < 6)) {
      apps_.push_back({std::make_unique<App>(*s_, 'p', 1u << (2 + rnd(4))), {}, false});
    } else if (what < 5) {  // detach
      const auto i = rnd(apps_.size());
      ModelApp& a = apps_[i];
      std::erase_if(model_.flying, [&](const auto& f) { return f.queue == a.app->id; });
      s_->detach(a.app->id);
      a.detached = true;
      reap(a);
      EXPECT_TRUE(a.expected.empty());
      apps_.erase(apps_.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (what < 45) {
      post(apps_[rnd(apps_.size())]);
    } else if (what < 60) {
      reap(apps_[rnd(apps_.size())]);
    } else if (what < 70) {
      land(rnd(model_.flying.size() + 1));
    } else if (what < 75) {
      s_->retry_deferred();
    } else if (what < 77) {
      s_->activate(apps_[rnd(apps_.size())].app->id);  // for no reason
    } else {
      const auto budget = rnd(5000);
      const auto before = arrived_;
      const auto p = s_->run(budget);
      EXPECT_GE(p.bytes, arrived_ - before);
      EXPECT_LE(p.bytes, budget + 1500);
    }
  }

  std::mt19937_64 rng_;
  FakeMover mover_;
  std::unique_ptr<RdmaScheduler> s_;
  Model model_;
  std::vector<ModelApp> apps_;
  std::uint64_t next_cookie_ = 1;
  std::uint64_t arrived_ = 0;
  std::uint64_t pending_percent_ = 0, defer_percent_ = 0;
  int events_ = 0;
};

TEST(RdmaSchedulerProperty, EveryRequestIsMovedOnceAndAnsweredOnceInOrder) {
  for (unsigned seed = 1; seed <= 1000; ++seed) {
    Property(seed).run(300);
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "seed " << seed;
      break;
    }
  }
}

}  // namespace
}  // namespace clan::nic
