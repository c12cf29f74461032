// Runs engine/event/queue_consumers.h, and nic/wakeup.h with it, under every interleaving of an x86
// machine: two consumers of one queue, each of which takes one event and is busy with it then, as
// EventQueueCore::poll() with room for one event does. They sleep on the futex, on the descriptor,
// or one of them makes the descriptor meanwhile. Broken versions show that the checker would
// notice.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/event/queue_consumers.h"
#include "support/interleaving.h"
#include "support/model_checks.h"

namespace clan::engine {
namespace {

using testing::Ghost;
using testing::Model;
using testing::model_await;
using testing::model_futex_wait;
using testing::model_futex_wake;
using testing::model_restart;
using testing::ModelAtomic;
using testing::Report;

constexpr auto kSeqCst = std::memory_order_seq_cst;
constexpr auto kRelaxed = std::memory_order_relaxed;

/// All events are in one word of each level.
struct Level {
  ModelAtomic<std::uint64_t> word;
  const ModelAtomic<std::uint64_t>& operator[](std::uint32_t) const { return word; }
};
struct Queue {
  ModelAtomic<std::uint64_t> root;
  ModelAtomic<std::uint32_t> sleeping;
  Level mid, leaf;
};

struct Options {
  std::vector<std::vector<std::uint32_t>> posts = {{5}, {6}};  ///< by producer
  int fd = -1;                                                 ///< of the queue, at first
  bool opens = false;  ///< the first consumer asks for it, and sleeps on it
  bool hands_on = true;
  bool each_its_own_way = false;  ///< the second sleeps on the futex all the same
  int consumers = 2;
  bool withdraws = false;  ///< a consumer that has slept on the descriptor, before it looks
};

struct ConsumersModel {
  Model m;
  Options options;
  Queue queue{m.word<std::uint64_t>("root"),
              m.word<std::uint32_t>("sleeping"),
              {m.word<std::uint64_t>("mid")},
              {m.word<std::uint64_t>("leaf")}};
  ModelAtomic<std::uint64_t> pending = m.word<std::uint64_t>("pending");
  ModelAtomic<std::uint32_t> event_fd = m.word<std::uint32_t>("eventfd");
  ModelAtomic<std::uint32_t> unlocked = m.word<std::uint32_t>("consuming", 1);
  ModelAtomic<int> fd;
  Ghost taken = m.ghost("events taken");

  void wake(std::uint32_t how) const {
    if (how == shm::kSleepsOnFutex) return model_futex_wake(queue.sleeping);
    event_fd.store(1, kSeqCst);
    model_futex_wake(event_fd);
  }

  void produce(const std::vector<std::uint32_t>& posts, std::uint64_t posted) const {
    if (posted == posts.size()) return;
    std::uint32_t word = shm::kAwake;
    if (nic::post_event_bit(queue, posts[posted], &word)) {
      wake(shm::sleep_of(word));
      nic::end_wake(queue, word);
    }
    model_restart(posted + 1);
  }

  enum Step : std::uint64_t { kBegin, kLook, kTake, kSleep, kOnFutex, kOnFd, kWithdraw };

  void take() const {
    model_await(unlocked);
    std::uint32_t is = 1;
    if (!unlocked.compare_exchange_strong(is, 0, kSeqCst)) model_restart(kTake);
    std::uint64_t bits = pending.load(kRelaxed);
    std::uint32_t cursor = 0, base = 0;
    if (bits == 0) bits = nic::take_events(queue, &cursor, &base);
    const bool found = bits != 0;
    bits &= bits - 1;
    pending.store(bits, kRelaxed);
    if (bits != 0 && options.hands_on) {
      hand_on_events([this](const auto& look) { return look(queue); }, pending,
                     [this](const Queue&, std::uint32_t how) { wake(how); });
    }
    unlocked.store(1, std::memory_order_release);
    if (!found) model_restart(kSleep);
    taken.add(1);
  }

  void consume(bool opens, std::uint64_t step) const {
    const auto lane = [this](const auto& look) { return look(queue); };
    if (step == kBegin) {
      if (opens)
        publish_queue_fd(lane, fd, 7, [this](const Queue&, std::uint32_t how) { wake(how); });
      model_restart(kLook);
    }
    if (step == kTake) return take();
    if (step == kWithdraw) {
      withdraw_consumer(lane);
      model_restart(kLook);
    }
    if (step == kLook) {  // EventQueueCore::any_pending()
      const bool any = pending.load(kRelaxed) != 0 || queue.root.load(kRelaxed) != 0;
      model_restart(any ? kTake : kSleep);
    }
    if (step == kSleep) {
      const bool on_futex = options.each_its_own_way ? !opens : fd.load(kRelaxed) < 0;
      model_restart(on_futex ? kOnFutex : kOnFd);
    }
    if (step == kOnFutex) {
      std::uint32_t word = 0;
      const bool sleeps = options.each_its_own_way
                              ? prepare_consumer(lane, pending, shm::kSleepsOnFutex, &word)
                              : prepare_on_futex(
                                    lane, pending, fd, [this] { wake(shm::kSleepsOnFd); }, &word);
      if (sleeps) model_futex_wait(queue.sleeping, word);
      model_restart(kLook);
    }
    event_fd.store(0, kSeqCst);  // drain_eventfd()
    std::uint32_t word = 0;
    if (prepare_consumer(lane, pending, shm::kSleepsOnFd, &word))
      model_futex_wait<std::uint32_t>(event_fd, 0);
    model_restart(options.withdraws ? kWithdraw : kLook);
  }

  Report run(Options o) {
    options = std::move(o);
    fd = m.word<int>("fd", options.fd);
    std::size_t events = 0;
    for (const auto& posts : options.posts) {
      events += posts.size();
      m.thread("producer", [this, &posts](auto posted) { produce(posts, posted); });
    }
    m.thread("consumer1", [this](auto step) { consume(options.opens, step); });
    if (options.consumers > 1) m.thread("consumer2", [this](auto step) { consume(false, step); });
    const auto wanted = std::min(events, static_cast<std::size_t>(options.consumers));
    m.at_end([this, wanted](const Model::End& end) {
      return end.value(taken) == wanted ? std::string() : std::string("a consumer sleeps for ever");
    });
    return m.run();
  }
};

Report consumers(Options options) {
  Report r = ConsumersModel{}.run(std::move(options));
  std::printf("             %s\n", r.summary().c_str());
  return r;
}
TEST(QueueConsumersAtLength, LoseNoEventOnTheFutex) { expect_safe(consumers({})); }
TEST(QueueConsumersAtLength, LoseNoEventOnTheDescriptor) { expect_safe(consumers({.fd = 7})); }
TEST(QueueConsumers, LoseNoEventOnTheFutexOfOneProducer) {
  expect_safe(consumers({.posts = {{5, 6}}}));
}
TEST(QueueConsumers, LoseNoEventOnTheDescriptorOfOneProducer) {
  expect_safe(consumers({.posts = {{5, 6}}, .fd = 7}));
}
TEST(QueueConsumers, LoseNoEventWhenOneOfThemMakesTheDescriptor) {
  expect_safe(consumers({.posts = {{5, 6}}, .opens = true}));
}

TEST(QueueConsumers, LoseNoEventWhereTheOnlyOneWithdraws) {
  expect_safe(consumers({.fd = 7, .consumers = 1, .withdraws = true}));
  expect_safe(consumers({.posts = {{5, 6}}, .fd = 7, .consumers = 1, .withdraws = true}));
}

TEST(QueueConsumersBroken, WouldLoseOneIfOneOfTwoWithdrew) {
  EXPECT_TRUE(consumers({.posts = {{5, 6}}, .fd = 7, .withdraws = true}).failed);
}
TEST(QueueConsumersBroken, WouldLoseOneOnTheDescriptorIfNobodyWasToldOfWhatIsLeft) {
  EXPECT_TRUE(consumers({.posts = {{5, 6}}, .fd = 7, .hands_on = false}).failed);
  EXPECT_TRUE(consumers({.fd = 7, .hands_on = false}).failed);
}
TEST(QueueConsumersBroken, WouldLoseOneIfEachSleptItsOwnWay) {
  EXPECT_TRUE(consumers({.posts = {{5, 6}}, .opens = true, .each_its_own_way = true}).failed);
}

}  // namespace
}  // namespace clan::engine
