// Waiting: fi_cq_sread() and its like, descriptors, conditions, wait sets, of one thread and of
// many.
#include <poll.h>
#include <pthread.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "libfabric/node.h"
#include "libfabric/sleep_together.h"

namespace clan::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr NodeOptions kWaits{.wait = FI_WAIT_FD};

TEST(FabricWaits, EndWhenAMessageComes) {
  Two two(kWaits, kWaits);
  char buffer[8];
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(fi_recv(two.b.ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    std::thread sender([&] {
      std::this_thread::sleep_for(milliseconds(50));
      EXPECT_EQ(fi_inject(two.a.ep.get(), "x", 1, two.to_b), 0);
    });
    fi_cq_tagged_entry entry;
    EXPECT_EQ(fi_cq_sread(two.b.cq.get(), &entry, 1, nullptr, 10'000), 1);
    sender.join();
  }
}

TEST(FabricWaits, EndWhenTheTimeIsOver) {
  Node node(kWaits);
  node.enable();
  fi_cq_tagged_entry entry;
  const auto start = Clock::now();
  EXPECT_EQ(fi_cq_sread(node.cq.get(), &entry, 1, nullptr, 60), -FI_EAGAIN);
  EXPECT_GE(Clock::now() - start, milliseconds(59));
}

TEST(FabricWaits, EndWhenSomebodySignals) {
  Node node(kWaits);
  node.enable();
  std::thread signaller([&] {
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_EQ(fi_cq_signal(node.cq.get()), 0);
  });
  fi_cq_tagged_entry entry;
  EXPECT_EQ(fi_cq_sread(node.cq.get(), &entry, 1, nullptr, 10'000), -FI_ECANCELED);
  signaller.join();
}

TEST(FabricWaits, OnADescriptorEndWhenAMessageComes) {
  Two two(kWaits, kWaits);
  int fd = -1;
  ASSERT_EQ(fi_control(&two.b.cq->fid, FI_GETWAIT, &fd), 0);
  char buffer[8];
  ASSERT_EQ(fi_recv(two.b.ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  fid* fids[] = {&two.b.cq->fid};
  while (fi_trywait(two.b.fabric.get(), fids, 1) != 0) {
  }
  pollfd p{fd, POLLIN, 0};
  EXPECT_EQ(::poll(&p, 1, 30), 0);
  ASSERT_EQ(fi_inject(two.a.ep.get(), "x", 1, two.to_b), 0);
  EXPECT_EQ(::poll(&p, 1, 10'000), 1);
  fi_cq_tagged_entry entry;
  EXPECT_TRUE(eventually([&] { return fi_cq_read(two.b.cq.get(), &entry, 1) == 1; }));
  EXPECT_EQ(fi_inject(two.a.ep.get(), "y", 1, two.to_b), 0);
  EXPECT_TRUE(eventually([&] { return fi_trywait(two.b.fabric.get(), fids, 1) == 0; }));
}

TEST(FabricWaits, DoNotSleepOverWhatIsThere) {
  Two two(kWaits, kWaits);
  char buffer[8];
  ASSERT_EQ(fi_recv(two.b.ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  ASSERT_EQ(fi_inject(two.a.ep.get(), "x", 1, two.to_b), 0);
  fid* fids[] = {&two.b.cq->fid};
  EXPECT_TRUE(eventually([&] { return fi_trywait(two.b.fabric.get(), fids, 1) == -FI_EAGAIN; }));
  EXPECT_EQ(fi_trywait(two.b.fabric.get(), fids, 1), -FI_EAGAIN);
}

TEST(FabricWaits, PassManyMessagesBackAndForthWithoutLosingAWakeUp) {
  Two two(kWaits, kWaits);
  constexpr int kRounds = 2000;
  const auto play = [](Node& node, fi_addr_t to, bool first) {
    char buffer[8];
    fi_cq_tagged_entry entry;
    for (int i = 0; i < kRounds; ++i) {
      ASSERT_EQ(fi_recv(node.ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
      if (first) {
        ASSERT_EQ(fi_inject(node.ep.get(), "x", 1, to), 0);
      }
      if (i % 500 == 499) std::this_thread::sleep_for(milliseconds(2));
      ASSERT_EQ(fi_cq_sread(node.cq.get(), &entry, 1, nullptr, 10'000), 1) << i;
      if (!first) {
        ASSERT_EQ(fi_inject(node.ep.get(), "x", 1, to), 0);
      }
    }
  };
  std::thread other([&] { play(two.b, two.to_a, false); });
  play(two.a, two.to_b, true);
  other.join();
}

TEST(FabricWaits, InASetEndForAnyOfItsMembers) {
  Two two(kWaits, kWaits);
  fi_wait_attr wait_attr{FI_WAIT_FD, 0};
  fid_wait* set = nullptr;
  MUST(fi_wait_open(two.b.fabric.get(), &wait_attr, &set));
  Object<fid_wait> held(set);
  fi_cntr_attr attr{};
  attr.wait_obj = FI_WAIT_SET;
  attr.wait_set = set;
  fid_cntr* counter = nullptr;
  MUST(fi_cntr_open(two.b.domain.get(), &attr, &counter, nullptr));
  Object<fid_cntr> held_counter(counter);
  EXPECT_EQ(fi_wait(set, 20), -FI_ETIMEDOUT);
  std::thread adder([&] {
    std::this_thread::sleep_for(milliseconds(30));
    EXPECT_EQ(fi_cntr_add(counter, 1), 0);
  });
  EXPECT_EQ(fi_wait(set, 10'000), 0);
  adder.join();
  EXPECT_EQ(fi_cntr_read(counter), 1u);
}

// A wait as the manual has it for FI_WAIT_MUTEX_COND: the mutex is held from the last look to the
// sleep. False: nobody has signalled in time.
bool sleep_on(const fi_mutex_cond& face, fid_fabric* fabric, fid_t object, int timeout_ms) {
  timespec until;
  ::clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += timeout_ms / 1000;
  until.tv_nsec += timeout_ms % 1000 * 1'000'000L;
  if (until.tv_nsec >= 1'000'000'000L) {
    until.tv_nsec -= 1'000'000'000L;
    ++until.tv_sec;
  }
  ::pthread_mutex_lock(face.mutex);
  int rc = 0;
  if (fi_trywait(fabric, &object, 1) == 0)
    rc = ::pthread_cond_timedwait(face.cond, face.mutex, &until);
  ::pthread_mutex_unlock(face.mutex);
  return rc == 0;
}

constexpr NodeOptions kCondition{.wait = FI_WAIT_MUTEX_COND};

TEST(FabricWaits, OnAConditionEndForEachOfManyMessages) {
  Two two({}, kCondition);
  fi_mutex_cond face{};
  ASSERT_EQ(fi_control(&two.b.cq->fid, FI_GETWAIT, &face), 0);
  ASSERT_NE(face.mutex, nullptr);
  fi_wait_obj kind = FI_WAIT_NONE;
  ASSERT_EQ(fi_control(&two.b.cq->fid, FI_GETWAITOBJ, &kind), 0);
  EXPECT_EQ(kind, FI_WAIT_MUTEX_COND);
  EXPECT_FALSE(sleep_on(face, two.b.fabric.get(), &two.b.cq->fid, 30));
  constexpr int kMessages = 1000;
  std::atomic<int> received{0};
  std::thread sender([&] {
    for (int i = 0; i < kMessages; ++i) {
      // One at a time, so that each has to wake the other by itself.
      ASSERT_TRUE(eventually([&] { return received.load() == i; }));
      if (i % 100 == 0) std::this_thread::sleep_for(milliseconds(5));
      ASSERT_EQ(fi_inject(two.a.ep.get(), "x", 1, two.to_b), 0);
    }
  });
  char buffer[8];
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_EQ(fi_recv(two.b.ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    received.store(i);
    fi_cq_tagged_entry entry;
    ssize_t n;
    while ((n = fi_cq_read(two.b.cq.get(), &entry, 1)) == -FI_EAGAIN) {
      ASSERT_TRUE(sleep_on(face, two.b.fabric.get(), &two.b.cq->fid, 10'000)) << i;
    }
    ASSERT_EQ(n, 1);
  }
  sender.join();
}

TEST(FabricWaits, OfAllKindsEndWhenAMessageComes) {
  for (const fi_wait_obj kind :
       {FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_YIELD, FI_WAIT_MUTEX_COND, FI_WAIT_POLLFD}) {
    Two two({}, {.wait = kind});
    char buffer[8];
    ASSERT_EQ(fi_recv(two.b.ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    std::thread sender([&] {
      std::this_thread::sleep_for(milliseconds(20));
      EXPECT_EQ(fi_inject(two.a.ep.get(), "x", 1, two.to_b), 0);
    });
    fi_cq_tagged_entry entry;
    EXPECT_EQ(fi_cq_sread(two.b.cq.get(), &entry, 1, nullptr, 10'000), 1) << kind;
    sender.join();
  }
}

TEST(FabricWaits, ShowDescriptorsToPollWhereProgramsAskForThose) {
  Node node({.wait = FI_WAIT_POLLFD});
  node.enable();
  pollfd fds[2] = {};
  fi_wait_pollfd face{0, 0, fds};
  EXPECT_EQ(fi_control(&node.cq->fid, FI_GETWAIT, &face), -FI_ETOOSMALL);
  ASSERT_EQ(face.nfds, 1u);
  ASSERT_EQ(fi_control(&node.cq->fid, FI_GETWAIT, &face), 0);
  fid* fids[] = {&node.cq->fid};
  ASSERT_EQ(fi_trywait(node.fabric.get(), fids, 1), 0);
  EXPECT_EQ(::poll(fds, 1, 20), 0);
  EXPECT_EQ(fi_cq_signal(node.cq.get()), 0);
  EXPECT_EQ(::poll(fds, 1, 10'000), 1);
}

TEST(FabricWaits, OnAConditionEndForEventsCountersAndSets) {
  Node node;
  fi_wait_attr wait_attr{FI_WAIT_MUTEX_COND, 0};
  fid_wait* set = nullptr;
  MUST(fi_wait_open(node.fabric.get(), &wait_attr, &set));
  Object<fid_wait> held_set(set);
  fi_cntr_attr in_set{};
  in_set.wait_obj = FI_WAIT_SET;
  in_set.wait_set = set;
  fi_cntr_attr alone{};
  alone.wait_obj = FI_WAIT_MUTEX_COND;
  fid_cntr *first = nullptr, *second = nullptr;
  MUST(fi_cntr_open(node.domain.get(), &in_set, &first, nullptr));
  MUST(fi_cntr_open(node.domain.get(), &alone, &second, nullptr));
  Object<fid_cntr> held_first(first), held_second(second);
  fi_eq_attr eq_attr{};
  eq_attr.flags = FI_WRITE;
  eq_attr.wait_obj = FI_WAIT_MUTEX_COND;
  fid_eq* eq = nullptr;
  MUST(fi_eq_open(node.fabric.get(), &eq_attr, &eq, nullptr));
  Object<fid_eq> held_eq(eq);
  fi_eq_entry entry{};
  const struct {
    fid_t object;
    std::function<void()> ring;
  } cases[] = {
      {&set->fid, [&] { EXPECT_EQ(fi_cntr_add(first, 1), 0); }},
      {&second->fid, [&] { EXPECT_EQ(fi_cntr_add(second, 1), 0); }},
      {&eq->fid, [&] { EXPECT_GT(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof entry, 0), 0); }}};
  for (const auto& c : cases) {
    fi_mutex_cond face{};
    ASSERT_EQ(fi_control(c.object, FI_GETWAIT, &face), 0);
    EXPECT_FALSE(sleep_on(face, node.fabric.get(), c.object, 20));
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(30));
      c.ring();
    });
    EXPECT_TRUE(sleep_on(face, node.fabric.get(), c.object, 10'000));
    other.join();
  }
}

TEST(FabricWaits, OfManyThreadsEndForEachOfManyMessages) {
  Two two(kWaits, kWaits);
  char buffer[8];
  sleep_together(
      2500,
      [&](int, int) {
        fi_cq_tagged_entry entry;
        return fi_cq_sread(two.b.cq.get(), &entry, 1, nullptr, 15'000) == 1;
      },
      [&](int, int) {
        ASSERT_EQ(fi_recv(two.b.ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, nullptr),
                  0);
        ASSERT_EQ(sent([&] { return fi_inject(two.a.ep.get(), "x", 1, two.to_b); }, two.a), 0);
      });
}

TEST(FabricWaits, OfManyThreadsEndWhenTheirCounterIsWhereEachWantsIt) {
  Node node;
  fi_cntr_attr attr{};
  attr.wait_obj = FI_WAIT_FD;
  fid_cntr* counter = nullptr;
  MUST(fi_cntr_open(node.domain.get(), &attr, &counter, nullptr));
  Object<fid_cntr> held(counter);
  sleep_together(
      2500,
      [&](int i, int round) {
        const int value = round * 4 + i + 1;
        return fi_cntr_wait(counter, static_cast<std::uint64_t>(value), 15'000) == 0;
      },
      [&](int, int) { ASSERT_EQ(fi_cntr_add(counter, 1), 0); });
}

// An event queue that a program writes to.
struct EventsOfPrograms {
  EventsOfPrograms(Node& node, fi_wait_obj wait, fid_wait* set = nullptr) {
    fi_eq_attr attr{};
    attr.flags = FI_WRITE;
    attr.wait_obj = wait;
    attr.wait_set = set;
    fid_eq* opened = nullptr;
    MUST(fi_eq_open(node.fabric.get(), &attr, &opened, nullptr));
    eq.reset(opened);
  }
  void write() const {
    const fi_eq_entry entry{};
    ASSERT_GT(fi_eq_write(eq.get(), FI_NOTIFY, &entry, sizeof entry, 0), 0);
  }
  Object<fid_eq> eq;
};

TEST(FabricWaits, OfManyThreadsEndForEachOfManyEvents) {
  Node node;
  const EventsOfPrograms events(node, FI_WAIT_FD);
  sleep_together(
      2500,
      [&](int, int) {
        fi_eq_entry mine;
        std::uint32_t event;
        return fi_eq_sread(events.eq.get(), &event, &mine, sizeof mine, 15'000, 0) > 0;
      },
      [&](int, int) { events.write(); });
}

// Two of them on the descriptor, two in a call of the queue's.
TEST(FabricWaits, OfAllKindsAtOnceMissNothing) {
  Two two(kWaits, kWaits);
  int fd = -1;
  ASSERT_EQ(fi_control(&two.b.cq->fid, FI_GETWAIT, &fd), 0);
  fid* fids[] = {&two.b.cq->fid};
  char buffer[8];
  sleep_together(
      1000,
      [&](int i, int) {
        fi_cq_tagged_entry entry;
        if (i > 1) return fi_cq_sread(two.b.cq.get(), &entry, 1, nullptr, 15'000) == 1;
        if (fi_trywait(two.b.fabric.get(), fids, 1) == 0) {
          pollfd p{fd, POLLIN, 0};
          (void)::poll(&p, 1, 15'000);
        }
        return fi_cq_read(two.b.cq.get(), &entry, 1) == 1;
      },
      [&](int, int) {
        ASSERT_EQ(fi_recv(two.b.ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, nullptr),
                  0);
        ASSERT_EQ(sent([&] { return fi_inject(two.a.ep.get(), "x", 1, two.to_b); }, two.a), 0);
      });
}

TEST(FabricWaits, OfManyThreadsInASetEndForEachOfManyEntries) {
  Node node;
  fi_wait_attr wait_attr{FI_WAIT_FD, 0};
  fid_wait* set = nullptr;
  MUST(fi_wait_open(node.fabric.get(), &wait_attr, &set));
  Object<fid_wait> held_set(set);
  const EventsOfPrograms events(node, FI_WAIT_SET, set);
  sleep_together(
      2500,
      [&](int, int) {
        fi_eq_entry mine;
        std::uint32_t event;
        return fi_wait(set, 15'000) == 0 &&
               fi_eq_read(events.eq.get(), &event, &mine, sizeof mine, 0) > 0;
      },
      [&](int, int) { events.write(); });
}

double thread_seconds() {
  timespec spent;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + static_cast<double>(spent.tv_nsec) / 1e9;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

TEST(FabricWaits, OfManyThreadsSleepWhileNothingComes) {
  Two two(kWaits, kWaits);
  char buffer[8];
  std::vector<std::thread> threads;
  std::atomic<int> found{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      fi_cq_tagged_entry entry;
      const auto start = Clock::now();
      const double before = thread_seconds();
      if (fi_cq_sread(two.b.cq.get(), &entry, 1, nullptr, 500) == 1) {
        ++found;
        return;
      }
      EXPECT_GE(Clock::now() - start, milliseconds(499));
      EXPECT_LT(thread_seconds() - before, seconds_since(start) / 2);
    });
  }
  std::this_thread::sleep_for(milliseconds(100));
  // All are woken, one has it, the others have yet to sleep for the rest of their time.
  ASSERT_EQ(fi_recv(two.b.ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  ASSERT_EQ(sent([&] { return fi_inject(two.a.ep.get(), "x", 1, two.to_b); }, two.a), 0);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(found.load(), 1);
}

TEST(FabricWaits, ForMoreThanIsThereSleep) {
  Two two;
  fi_cq_attr attr{};
  attr.format = FI_CQ_FORMAT_TAGGED;
  attr.wait_obj = FI_WAIT_FD;
  attr.wait_cond = FI_CQ_COND_THRESHOLD;
  fid_cq* cq = nullptr;
  MUST(fi_cq_open(two.b.domain.get(), &attr, &cq, nullptr));
  Object<fid_cq> held(cq);
  Node c;
  fid_ep* ep = nullptr;
  MUST(fi_endpoint(two.b.domain.get(), c.info.get(), &ep, nullptr));
  Object<fid_ep> held_ep(ep);
  MUST(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
  MUST(fi_ep_bind(ep, &two.b.av->fid, 0));
  MUST(fi_enable(ep));
  std::vector<char> name(64);
  std::size_t length = name.size();
  MUST(fi_getname(&ep->fid, name.data(), &length));
  name.resize(length);
  const fi_addr_t to = two.a.insert(name);
  char buffer[8];
  const auto send = [&] {
    ASSERT_EQ(fi_recv(ep, buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    ASSERT_EQ(sent([&] { return fi_inject(two.a.ep.get(), "x", 1, to); }, two.a), 0);
  };
  const auto at_least = [](std::uintptr_t n) { return reinterpret_cast<const void*>(n); };
  send();
  send();
  fi_cq_tagged_entry entries[4];
  const double before = thread_seconds();
  const auto start = Clock::now();
  // What there is, when the time is over.
  EXPECT_EQ(fi_cq_sread(cq, entries, 4, at_least(3), 500), 2);
  EXPECT_GE(Clock::now() - start, milliseconds(499));
  EXPECT_LT(thread_seconds() - before, seconds_since(start) / 2);
  send();
  send();
  std::thread sender([&] {
    std::this_thread::sleep_for(milliseconds(50));
    send();
  });
  EXPECT_EQ(fi_cq_sread(cq, entries, 4, at_least(3), 10'000), 3);
  sender.join();
}

}  // namespace
}  // namespace clan::test
