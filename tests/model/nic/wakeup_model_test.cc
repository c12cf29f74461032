// Runs the protocols of nic/wakeup.h under every interleaving of an x86 machine, and broken
// versions of them to show that the checker would notice. Prints how many executions each scenario
// has.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "base/event_count.h"
#include "nic/wakeup.h"
#include "support/interleaving.h"
#include "support/model_checks.h"

namespace clan::nic {
namespace {

using testing::Ghost;
using testing::Model;
using testing::model_await;
using testing::model_futex_wait;
using testing::model_futex_wake;
using testing::model_restart;
using testing::ModelAtomic;
using testing::ModelFence;
using testing::Report;

// ---- the checker itself -------------------------------------------------------------------------

// Dekker's pattern: with store buffers both may read 0, unless both fence.
Report dekker(void (*fence)()) {
  Model m;
  auto x = m.word<std::uint32_t>("x");
  auto y = m.word<std::uint32_t>("y");
  auto both = m.ghost("both read 0");
  auto side = [&](const char* name, ModelAtomic<std::uint32_t> mine,
                  ModelAtomic<std::uint32_t> other) {
    m.thread(name, [=](std::uint64_t) {
      mine.store(1, std::memory_order_release);
      fence();
      if (other.load(std::memory_order_acquire) == 0) both.add(1);
    });
  };
  side("a", x, y);
  side("b", y, x);
  m.at_end([=](const Model::End& end) {
    return end.value(both) == 2 ? std::string("both read 0") : std::string();
  });
  return m.run();
}

TEST(Interleaving, StoresPassLoadsWithoutAFence) {
  expect_caught(dekker([] {}));
}
TEST(Interleaving, StoresDoNotPassLoadsBeyondAFence) { expect_safe(dekker(&ModelFence::full)); }
TEST(Interleaving, AHeavyFenceOnOneSideReplacesTheOtherOne) {
  Model m;
  auto x = m.word<std::uint32_t>("x");
  auto y = m.word<std::uint32_t>("y");
  auto both = m.ghost("both read 0");
  m.thread("light", [=](std::uint64_t) {
    x.store(1, std::memory_order_relaxed);
    ModelFence::light();
    if (y.load(std::memory_order_relaxed) == 0) both.add(1);
  });
  m.thread("heavy", [=](std::uint64_t) {
    y.store(1, std::memory_order_relaxed);
    ModelFence::heavy();
    if (x.load(std::memory_order_relaxed) == 0) both.add(1);
  });
  m.at_end([=](const Model::End& end) {
    return end.value(both) == 2 ? std::string("both read 0") : std::string();
  });
  expect_safe(m.run());
}

TEST(Interleaving, StoresOfOneThreadBecomeVisibleInOrder) {
  Model m;
  auto data = m.word<std::uint32_t>("data");
  auto flag = m.word<std::uint32_t>("flag");
  auto wrong = m.ghost("wrong");
  m.thread("writer", [=](std::uint64_t) {
    data.store(1, std::memory_order_relaxed);
    flag.store(1, std::memory_order_release);
  });
  m.thread("reader", [=](std::uint64_t) {
    if (flag.load(std::memory_order_acquire) != 0 && data.load(std::memory_order_relaxed) == 0) {
      wrong.add(1);
    }
  });
  m.always([=](const Model::End& end) {
    return end.value(wrong) != 0 ? std::string("flag overtook data") : std::string();
  });
  Report r = m.run();
  expect_safe(r);
  // The writer's two stores and two flushes in 2 orders; the reader's first load in 5 places, of
  // which the last brings the second load along.
  EXPECT_EQ(r.executions, 10);
}

TEST(Interleaving, CountsTheExecutionsOfTwoIndependentThreads) {
  Model m;
  auto x = m.word<std::uint32_t>("x");
  for (const char* name : {"a", "b"}) {
    m.thread(name, [=](std::uint64_t) {
      for (int i = 0; i < 3; ++i) x.fetch_add(1, std::memory_order_seq_cst);
    });
  }
  m.at_end([=](const Model::End& end) {
    return end.value(x) == 6 ? std::string() : std::string("lost an increment");
  });
  Report r = m.run();
  expect_safe(r);
  EXPECT_EQ(r.executions, 20);  // 6 over 3
}

TEST(Interleaving, SeesASleeperThatNobodyWakes) {
  Model m;
  auto x = m.word<std::uint32_t>("x");
  m.thread("sleeper", [=](std::uint64_t) { model_futex_wait<std::uint32_t>(x, 0); });
  m.thread("forgetful", [=](std::uint64_t) { x.store(1, std::memory_order_seq_cst); });
  expect_caught(m.run());
}

// ---- tripwires ----------------------------------------------------------------------------------

// Where membarrier is not to be had, both sides run a real fence.
struct FullFenceOnly : ModelFence {
  static void light() { ModelFence::full(); }
  static void heavy() { ModelFence::full(); }
};
struct NoHeavyFence : ModelFence {
  static void light() {}
  static void heavy() {}
};
struct HeavyReachesOnlyItself : ModelFence {
  static void light() {}
  static void heavy() { ModelFence::full(); }
};
struct LightOnBothSidesFullOnSender : ModelFence {
  static void light() { ModelFence::full(); }
  static void heavy() {}
};
struct NoEvenFence : ModelFence {
  static void even() {}
};

using ModelWord = ModelAtomic<std::uint32_t>;

// Broken versions of nic/wakeup.h.
bool begin_for_all_senders(const ModelWord& armed, std::uint32_t* word) {
  *word = armed.load(std::memory_order_acquire);
  if (!shm::is_armed(*word)) return false;
  return shm::is_armed(armed.exchange(shm::disarmed_after(*word), std::memory_order_acq_rel));
}
void end_nothing_of(const ModelWord&, std::uint32_t) {}
void end_any_arming(const ModelWord& armed, std::uint32_t word) {
  armed.store(shm::disarmed_after(word), std::memory_order_release);
}

struct TripwireOptions {
  int senders = 1;
  std::uint32_t messages = 1;  // of each
  bool persistent = false;
  bool looks_before_arming_only = false;
  bool reads_fired_after_the_last_look = false;
  bool never_counts_itself = false;
  bool closer = false;  // a thread that ends the connection: Connection::wake_local()
  // the senders deliver packets: nic/tripwire_match.cc match_for_packets()
  bool packets = false;
  bool arms_for_packets = false;  // and nothing else: Nic::arm_for_packets()
  bool first_may_stop = false;    // of the senders
  bool arms_without_counting = false;
  bool rests = false;                 // Nic::rest(): senders go on seeing the bits
  bool ends_rest = false;             // Nic::end_rest(), once it has received
  bool takes_rest_for_shown = false;  // after end_rest(), too
  bool (*begin)(const ModelWord&, std::uint32_t*) = &begin_single_shot<ModelWord>;
  void (*end)(const ModelWord&, std::uint32_t) = &end_single_shot<const ModelWord>;
};

constexpr std::uint64_t kChunks = 0b110;
constexpr std::uint64_t kAwake = std::uint64_t{1} << 32;  // in the receiver's key
constexpr std::uint64_t kShown = std::uint64_t{1} << 33;  // Nic's LocalTripwire::shown
constexpr int kOfEach = 8;                                // bits for the messages of one sender

// The words of one tripwire, and around the code of nic/wakeup.h what nic/tripwire_match.cc fire()
// and Connection::sleep_on() do.
template <typename Fence, typename SendersFence = Fence>
struct TripwireModel {
  Model m;
  TripwireOptions options;
  ModelAtomic<std::uint32_t> armed = m.word<std::uint32_t>("signal.armed");
  ModelAtomic<std::uint64_t> table = m.word<std::uint64_t>("table.armed");
  ModelWord news = m.word<std::uint32_t>("fired.news");
  ModelWord sleepers = m.word<std::uint32_t>("fired.sleepers");
  ModelAtomic<std::uint64_t> state = m.word<std::uint64_t>("tripwire_state");
  ModelAtomic<std::uint32_t> gone = m.word<std::uint32_t>("peer_gone");
  ModelAtomic<std::uint32_t> stopped = m.word<std::uint32_t>("stopped");
  std::array<ModelAtomic<std::uint32_t>, 3> data;
  Ghost received = m.ghost("received");

  BasicEventCount<ModelWord> fired() const { return {news, sleepers}; }

  void fire() const {
    fence_before_signals<SendersFence>();
    std::uint32_t word = 0;
    if (options.persistent) {
      if (!shm::is_armed(armed.load(std::memory_order_relaxed))) return;
    } else if (!options.begin(armed, &word)) {
      return;
    }
    state.fetch_or(1, std::memory_order_seq_cst);
    fired().notify([](const ModelWord& word) { model_futex_wake(word); });
    if (!options.persistent) options.end(armed, word);
  }

  bool must_look() const {
    if (options.packets) {  // match_for_packets
      fence_behind_packets<SendersFence>();
      return (table.load(std::memory_order_acquire) & kChunks) != 0;
    }
    // match_tripwires reads the summary again
    return (armed_chunks_after_store<SendersFence>(table) & kChunks) != 0 &&
           (table.load(std::memory_order_relaxed) & kChunks) != 0;
  }

  std::uint32_t look() const {
    std::uint32_t sum = 0;
    for (int i = 0; i < options.senders; ++i)
      sum += data[i].load(std::memory_order_acquire) << kOfEach * i;
    return sum;
  }

  // True when there is something to wake up for.
  bool ready(std::uint32_t known) const {
    if (look() != known) return true;
    return options.closer && gone.load(std::memory_order_acquire) != 0;
  }

  void sleep_on(std::uint32_t known, std::uint64_t shown) const {
    std::uint32_t seen = fired().prepare_wait();
    const bool early = options.looks_before_arming_only && ready(known);
    const auto each = [this, shown](auto&& arm) {
      if (!options.arms_without_counting) {
        arm(armed, table, kChunks);
      } else {
        armed.store(1, std::memory_order_release);
        table.store(kChunks, std::memory_order_release);
      }
      return shown != 0;
    };
    options.arms_for_packets ? arm_single_shots<Fence, Fence::even>(each)
                             : arm_single_shots<Fence>(each);
    const bool there = options.looks_before_arming_only ? early : ready(known);
    if (options.reads_fired_after_the_last_look) seen = fired().prepare_wait();
    const auto sleep = [seen](const ModelWord& word) {
      model_futex_wait(word, seen);
      return 0;
    };
    if (!there) (void)(options.never_counts_itself ? sleep(news) : fired().commit_wait(sleep));
    // The rest depends on nothing that was read here.
    model_restart(known | kAwake | (options.rests ? kShown : 0));
  }
  // Returns kShown if senders still see the bits.
  std::uint64_t after_sleep(std::uint32_t known, std::uint64_t shown) const {
    armed.store(shm::disarmed_after(armed.load(std::memory_order_relaxed)),
                std::memory_order_relaxed);  // Nic::disarm
    const bool ends = shown == 0 || (options.ends_rest && known != 0);
    if (ends) table.store(0, std::memory_order_relaxed);
    if ((state.load(std::memory_order_acquire) & 1) != 0) {
      state.fetch_and(~std::uint64_t{1}, std::memory_order_seq_cst);
    }
    return ends && !options.takes_rest_for_shown ? 0 : shown;
  }

  Report run(TripwireOptions o) {
    options = o;
    for (int i = 0; i < o.senders; ++i) {
      data[i] = m.word<std::uint32_t>("data" + std::to_string(i));
      const auto id = m.thread("sender" + std::to_string(i), [this, i](std::uint64_t sent) {
        if (sent == options.messages) return;
        data[i].store(static_cast<std::uint32_t>(sent + 1), std::memory_order_release);
        if (must_look()) fire();
        model_restart(sent + 1);
      });
      if (i == 0 && o.first_may_stop) m.may_stop(id, stopped);
    }
    if (o.closer) {
      m.thread("closer", [this](std::uint64_t) {
        gone.store(1, std::memory_order_release);
        fired().notify([](const ModelWord& word) { model_futex_wake(word); });
      });
    }
    std::uint32_t all = 0;
    for (int i = 0; i < o.senders; ++i) all += o.messages << kOfEach * i;
    std::size_t receiver = m.thread("receiver", [this, all](std::uint64_t key) {
      const auto known = static_cast<std::uint32_t>(key);
      const std::uint64_t shown = key & kShown;
      if ((key & kAwake) != 0) model_restart(known | after_sleep(known, shown));
      // peer_gone is read before the data: what was written before it must still be found
      const bool ends = options.closer && gone.load(std::memory_order_acquire) != 0;
      const std::uint32_t now = look();
      if (now != known) {
        received.add(now - known);
        if (now == all && !options.closer) return;
        model_restart(now | shown);
      }
      if (ends) return;
      sleep_on(known, shown);
    });
    m.at_end([this, all, receiver](const Model::End& end) {
      if (end.value(stopped) != 0) {  // then it may wait for that one, but has all of the others'
        return (end.value(received) ^ all) >> kOfEach != 0
                   ? std::string("the receiver sleeps, and another one has sent")
                   : std::string();
      }
      if (end.asleep(receiver)) return std::string("the receiver sleeps for ever");
      if (!options.closer && end.value(received) != all) return std::string("data not received");
      return std::string();
    });
    return m.run();
  }
};

template <typename Fence = ModelFence, typename SendersFence = Fence>
Report tripwire(TripwireOptions options = {}) {
  return TripwireModel<Fence, SendersFence>{}.run(options);
}

TEST(TripwireWakeup, IsNeverLostWithOneSenderAndOneMessage) { expect_safe(tripwire()); }
TEST(TripwireWakeup, IsNeverLostWithTwoMessages) { expect_safe(tripwire({.messages = 2})); }
TEST(TripwireWakeup, IsNeverLostWithThreeMessages) { expect_safe(tripwire({.messages = 3})); }
TEST(TripwireWakeup, IsNeverLostWithTwoSenders) { expect_safe(tripwire({.senders = 2})); }
TEST(TripwireWakeupAtLength, IsNeverLostWithTwoSendersOfTwoMessages) {
  expect_safe(tripwire({.senders = 2, .messages = 2}));
}
TEST(TripwireWakeup, IsNeverLostWithFullFencesInsteadOfMembarrier) {
  expect_safe(tripwire<FullFenceOnly>({.messages = 2}));
  expect_safe(tripwire<FullFenceOnly>({.senders = 2}));
}
TEST(TripwireWakeup, IsNeverLostWhenTheConnectionEndsMeanwhile) {
  expect_safe(tripwire({.messages = 1, .closer = true}));
}
TEST(TripwireWakeup, OfAPersistentTripwireIsNeverLost) {
  expect_safe(tripwire({.messages = 2, .persistent = true}));
}

// A receiver that sleeps again and again.
TEST(TripwireRest, LosesNoWakeUp) {
  expect_safe(tripwire({.messages = 2, .rests = true}));
  expect_safe(tripwire({.messages = 3, .rests = true}));
  expect_safe(tripwire({.messages = 2, .persistent = true, .rests = true}));
}
TEST(TripwireRest, LosesNoWakeUpOfTwoSenders) {
  expect_safe(tripwire({.senders = 2, .rests = true}));
}
TEST(TripwireRest, LosesNoWakeUpWhenItEnds) {
  expect_safe(tripwire({.messages = 3, .rests = true, .ends_rest = true}));
}
TEST(TripwireRest, WouldLoseOneWithoutTheSendersFence) {
  expect_caught(tripwire<ModelFence, NoEvenFence>({.messages = 2, .rests = true}));
}
TEST(TripwireRest, WouldLoseOneWithoutTheReceiversFence) {
  expect_caught(tripwire<NoEvenFence, ModelFence>({.messages = 2, .rests = true}));
}
TEST(TripwireRest, WouldLoseOneIfItNeededNoHeavyFenceOnceItHasEnded) {
  expect_caught(
      tripwire({.messages = 3, .rests = true, .ends_rest = true, .takes_rest_for_shown = true}));
}

constexpr TripwireOptions kPackets{.packets = true, .arms_for_packets = true};
TEST(TripwireWakeup, IsNeverLostWhereOneThreadDeliversPackets) {
  expect_safe(tripwire(kPackets));
  expect_safe(tripwire({.messages = 2, .packets = true, .arms_for_packets = true}));
}
TEST(TripwireWakeup, IsNeverLostWhereTwoThreadsDeliverPackets) {
  expect_safe(tripwire({.senders = 2, .packets = true, .arms_for_packets = true}));
}
TEST(TripwireWakeup, IsNeverLostInPacketsByAReceiverThatSleepsForSharedMemoryToo) {
  expect_safe(tripwire({.messages = 2, .packets = true}));
}
TEST(TripwireWakeup, WouldBeLostInPacketsWithoutTheFenceBehindTheDelivery) {
  expect_caught(tripwire<ModelFence, NoEvenFence>(kPackets));
}
TEST(TripwireWakeup, WouldBeLostInPacketsWithoutTheFenceBehindTheArming) {
  expect_caught(tripwire<NoEvenFence, ModelFence>(kPackets));
}
TEST(TripwireWakeup, WouldBeLostBySharedMemoryToAReceiverThatSleepsForPacketsOnly) {
  expect_caught(tripwire({.arms_for_packets = true}));
}

// Every place at which a sender may be stopped, as by a signal: nobody learns of that.
Report stop_beside_another(TripwireOptions options = {}) {
  options.senders = 2;
  options.first_may_stop = true;
  return tripwire(options);
}
TEST(TripwireStop, HidesNoMessageOfAnotherSender) { expect_safe(stop_beside_another()); }
TEST(TripwireStop, WouldHideAMessageIfASenderAnsweredForAllBeforeItRings) {
  expect_caught(stop_beside_another({.begin = &begin_for_all_senders, .end = &end_nothing_of}));
}
TEST(TripwireWakeup, WouldBeLostIfASenderEndedALaterArming) {
  expect_caught(tripwire({.senders = 2, .end = &end_any_arming}));
}
TEST(TripwireWakeup, WouldBeLostIfOneArmingWereLikeTheNext) {
  expect_caught(tripwire({.senders = 2, .arms_without_counting = true}));
}

TEST(TripwireWakeup, WouldBeLostWithoutTheHeavyFence) { expect_caught(tripwire<NoHeavyFence>()); }
TEST(TripwireWakeup, WouldBeLostWithAHeavyFenceThatReachesOnlyItself) {
  expect_caught(tripwire<HeavyReachesOnlyItself>());
}
TEST(TripwireWakeup, WouldBeLostWithAFenceOnTheSendersSideOnly) {
  expect_caught(tripwire<LightOnBothSidesFullOnSender>());
}
TEST(TripwireWakeup, WouldBeLostByLookingForDataBeforeArmingOnly) {
  expect_caught(tripwire({.looks_before_arming_only = true}));
}
TEST(TripwireWakeup, WouldBeLostByReadingFiredAfterTheLastLook) {
  expect_caught(tripwire({.reads_fired_after_the_last_look = true}));
}
TEST(TripwireWakeup, WouldBeLostIfASleeperWereNotCounted) {
  expect_caught(tripwire({.never_counts_itself = true}));
}

// ---- event queue --------------------------------------------------------------------------------

// An EventQueueMemory whose words exist only where a scenario has events; the others are 0 for
// ever.
class ModelWords {
 public:
  class Element {
   public:
    explicit Element(const ModelAtomic<std::uint64_t>* word) : word_(word) {}
    std::uint64_t load(std::memory_order order) const {
      return word_ == nullptr ? 0 : word_->load(order);
    }
    std::uint64_t exchange(std::uint64_t v, std::memory_order order) const {
      return word_->exchange(v, order);
    }
    void fetch_or(std::uint64_t v, std::memory_order order) const { word_->fetch_or(v, order); }
    void fetch_and(std::uint64_t v, std::memory_order order) const { word_->fetch_and(v, order); }

   private:
    const ModelAtomic<std::uint64_t>* word_;
  };

  void add(Model& m, const char* name, std::uint32_t index) {
    if (words_.count(index) == 0) {
      words_[index] = m.word<std::uint64_t>(name + std::to_string(index));
    }
  }
  Element operator[](std::uint32_t index) const {
    auto it = words_.find(index);
    return Element(it == words_.end() ? nullptr : &it->second);
  }
  const std::map<std::uint32_t, ModelAtomic<std::uint64_t>>& all() const { return words_; }

 private:
  std::map<std::uint32_t, ModelAtomic<std::uint64_t>> words_;
};

// The root as take_events sees it. Every round of take_events begins by loading it, and nothing but
// the cursor survives a round: so rounds after the first are forgotten by restarting the body.
class ModelRoot : public ModelAtomic<std::uint64_t> {
 public:
  using ModelAtomic::ModelAtomic;
  std::uint64_t load(std::memory_order order) const {
    if (cursor_ != nullptr && rounds_++ > 0) model_restart(*cursor_);
    return ModelAtomic::load(order);
  }
  /// Between take_events' beginning and end.
  void rounds_with(const std::uint32_t* cursor) {
    cursor_ = cursor;
    rounds_ = 0;
  }

 private:
  const std::uint32_t* cursor_ = nullptr;
  mutable int rounds_ = 0;
};

struct ModelQueue {
  ModelRoot root;
  ModelAtomic<std::uint32_t> sleeping;
  ModelWords mid;
  ModelWords leaf;
};

using Post = bool (*)(const ModelQueue&, std::uint32_t, std::uint32_t*);
using Take = std::uint64_t (*)(const ModelQueue&, std::uint32_t*, std::uint32_t*);
using Prepare = bool (*)(const ModelQueue&, std::uint32_t, std::uint32_t*);
using End = void (*)(const ModelQueue&, std::uint32_t);

constexpr auto kSeqCst = std::memory_order_seq_cst;

// Broken versions of nic/wakeup.h.
bool post_without_looking_at_sleeping(const ModelQueue& q, std::uint32_t event, std::uint32_t*) {
  q.leaf[event / 64].fetch_or(std::uint64_t{1} << event % 64, kSeqCst);
  q.mid[event / 4096].fetch_or(std::uint64_t{1} << event / 64 % 64, kSeqCst);
  q.root.fetch_or(std::uint64_t{1} << event / 4096, kSeqCst);
  return false;
}
bool post_that_relies_on_others(const ModelQueue& q, std::uint32_t event, std::uint32_t* word) {
  // Stops climbing where a bit is set already: the thread that set it will go on.
  q.leaf[event / 64].fetch_or(std::uint64_t{1} << event % 64, kSeqCst);
  const std::uint64_t mid_bit = std::uint64_t{1} << event / 64 % 64;
  if ((q.mid[event / 4096].load(kSeqCst) & mid_bit) == 0) {
    q.mid[event / 4096].fetch_or(mid_bit, kSeqCst);
    q.root.fetch_or(std::uint64_t{1} << event / 4096, kSeqCst);
  }
  return begin_wake(q, word);
}
bool post_from_the_root_downwards(const ModelQueue& q, std::uint32_t event, std::uint32_t* word) {
  q.root.fetch_or(std::uint64_t{1} << event / 4096, kSeqCst);
  q.mid[event / 4096].fetch_or(std::uint64_t{1} << event / 64 % 64, kSeqCst);
  q.leaf[event / 64].fetch_or(std::uint64_t{1} << event % 64, kSeqCst);
  return begin_wake(q, word);
}
bool post_that_looks_at_sleeping_first(const ModelQueue& q, std::uint32_t event,
                                       std::uint32_t* word) {
  const bool sleeps = begin_wake(q, word);
  post_without_looking_at_sleeping(q, event, word);
  return sleeps;
}
bool post_that_answers_for_all(const ModelQueue& q, std::uint32_t event, std::uint32_t* word) {
  post_without_looking_at_sleeping(q, event, word);
  if (shm::sleep_of(q.sleeping.load(kSeqCst)) == shm::kAwake) return false;
  *word = q.sleeping.exchange(shm::kAwake, kSeqCst);
  return shm::sleep_of(*word) != shm::kAwake;
}
bool post_without_a_mark(const ModelQueue& q, std::uint32_t event, std::uint32_t* word) {
  post_without_looking_at_sleeping(q, event, word);
  *word = q.sleeping.load(kSeqCst);
  return shm::sleep_of(*word) != shm::kAwake;
}
void end_nothing(const ModelQueue&, std::uint32_t) {}
void end_any_sleep(const ModelQueue& q, std::uint32_t word) {
  q.sleeping.store(shm::awake_after(word), kSeqCst);
}
bool prepare_without_looking(const ModelQueue& q, std::uint32_t how, std::uint32_t* word) {
  (void)prepare_sleep(q, how, word);
  return true;
}
bool prepare_with_a_plain_store(const ModelQueue& q, std::uint32_t how, std::uint32_t* word) {
  *word = shm::asleep_after(q.sleeping.load(std::memory_order_relaxed), how);
  q.sleeping.store(*word, std::memory_order_release);
  return q.root.load(kSeqCst) == 0;
}
bool prepare_without_counting(const ModelQueue& q, std::uint32_t how, std::uint32_t* word) {
  *word = how;
  q.sleeping.store(how, kSeqCst);
  return q.root.load(kSeqCst) == 0;
}
std::uint64_t take_from_the_leaf_upwards(const ModelQueue& q, std::uint32_t*, std::uint32_t* base) {
  for (;;) {
    const std::uint64_t root = q.root.load(kSeqCst);
    if (root == 0) return 0;
    const auto r = static_cast<std::uint32_t>(std::countr_zero(root));
    const std::uint64_t mid = q.mid[r].load(kSeqCst);
    if (mid == 0) {
      q.root.fetch_and(~(std::uint64_t{1} << r), kSeqCst);
      if (q.mid[r].load(kSeqCst) != 0) q.root.fetch_or(std::uint64_t{1} << r, kSeqCst);
      continue;
    }
    const auto m = static_cast<std::uint32_t>(std::countr_zero(mid));
    *base = (r * 64 + m) * 64;
    const std::uint64_t bits = q.leaf[r * 64 + m].exchange(0, kSeqCst);
    q.mid[r].fetch_and(~(std::uint64_t{1} << m), kSeqCst);
    if (bits != 0) return bits;
  }
}
std::uint64_t take_without_a_second_look_at_mid(const ModelQueue& q, std::uint32_t*,
                                                std::uint32_t* base) {
  for (;;) {
    const std::uint64_t root = q.root.load(kSeqCst);
    if (root == 0) return 0;
    const auto r = static_cast<std::uint32_t>(std::countr_zero(root));
    const std::uint64_t mid = q.mid[r].load(kSeqCst);
    if (mid == 0) {
      q.root.fetch_and(~(std::uint64_t{1} << r), kSeqCst);
      continue;
    }
    const auto m = static_cast<std::uint32_t>(std::countr_zero(mid));
    q.mid[r].fetch_and(~(std::uint64_t{1} << m), kSeqCst);
    *base = (r * 64 + m) * 64;
    const std::uint64_t bits = q.leaf[r * 64 + m].exchange(0, kSeqCst);
    if (bits != 0) return bits;
  }
}

enum class Rescan { kNone, kRingsIfAsked, kAlwaysRings };

struct QueueOptions {
  std::vector<std::vector<std::uint32_t>> posts;  // events, by producer
  Post post = &post_event_bit<const ModelQueue>;
  Take take = &take_events<const ModelQueue>;
  Prepare prepare = &prepare_sleep<const ModelQueue>;
  End end = &end_wake<const ModelQueue>;
  bool data = true;            // a word of data goes before every event
  bool first_may_die = false;  // where nobody rescans: may be stopped
  Rescan rescan = Rescan::kNone;
};

struct QueueModel {
  static constexpr std::uint64_t kWord = std::uint64_t{1} << 32;  // in keys
  Model m;
  QueueOptions options;
  ModelQueue q{ModelRoot(m.word<std::uint64_t>("root").address()),
               m.word<std::uint32_t>("sleeping"),
               {},
               {}};
  ModelAtomic<std::uint32_t> dead = m.word<std::uint32_t>("a producer is dead");
  Ghost delivered = m.ghost("delivered");  // one byte per event: how often
  Ghost begun = m.ghost("begun");          // one byte per event: posts begun
  Ghost early = m.ghost("event without its data");
  std::map<std::uint32_t, unsigned> number;  // of an event, in order of first use
  std::map<std::uint32_t, ModelAtomic<std::uint32_t>> data;

  // nic::post_event, event after event. The key has how many, and the word of one that has to be
  // rung for: the rest depends on nothing else.
  void produce(std::size_t i, std::uint64_t key) const {
    const std::uint64_t posted = key % kWord;
    if (auto word = static_cast<std::uint32_t>(key / kWord); word != 0) {
      model_futex_wake(q.sleeping);
      options.end(q, word);
      model_restart(posted + 1);
    }
    if (posted == options.posts[i].size()) return;
    const std::uint32_t event = options.posts[i][posted];
    if (options.data) data.at(event).store(1, std::memory_order_relaxed);
    begun.add(std::uint64_t{1} << 8 * number.at(event));
    std::uint32_t word = 0;
    model_restart(options.post(q, event, &word) ? posted + word * kWord : posted + 1);
  }

  // EventQueueCore::rescan. The key has which leaf, and the bits of it that are not posted yet.
  void rescan(std::uint64_t key) const {
    if (key == 0) model_await(dead);
    std::uint64_t leaf = key % kWord, bits = key / kWord;
    if (leaf == q.leaf.all().size()) {
      std::uint32_t word = 0;
      const bool sleeps = begin_wake(q, &word);
      if (sleeps || options.rescan == Rescan::kAlwaysRings) model_futex_wake(q.sleeping);
      if (sleeps) options.end(q, word);
      return;
    }
    const auto& [number_of_leaf, atomic] =
        *std::next(q.leaf.all().begin(), static_cast<std::ptrdiff_t>(leaf));
    if (bits == 0) {
      bits = atomic.load(std::memory_order_relaxed);
      model_restart(bits == 0 ? leaf + 1 : leaf + bits * kWord);
    }
    std::uint32_t word = 0;
    (void)options.post(q, number_of_leaf * 64 + static_cast<std::uint32_t>(std::countr_zero(bits)),
                       &word);
    bits &= bits - 1;
    model_restart(bits == 0 ? leaf + 1 : leaf + bits * kWord);
  }

  void consume(std::uint64_t key) const {
    auto cursor = static_cast<std::uint32_t>(key % kWord);
    std::uint32_t base = 0, word = 0;
    if (key >= kWord) {  // it has found nothing
      if (options.prepare(q, shm::kSleepsOnFutex, &word))
        model_futex_wait<std::uint32_t>(q.sleeping, word);
      model_restart(cursor);
    }
    ModelQueue view = q;
    view.root.rounds_with(&cursor);
    std::uint64_t bits = options.take(view, &cursor, &base);
    if (bits == 0) model_restart(cursor + kWord);
    for (; bits != 0; bits &= bits - 1) {
      const std::uint32_t event = base + static_cast<std::uint32_t>(std::countr_zero(bits));
      if (number.count(event) == 0) {
        early.add(1);  // nobody ever posts it
        continue;
      }
      delivered.add(std::uint64_t{1} << 8 * number.at(event));
      if (options.data && data.at(event).load(std::memory_order_acquire) == 0) early.add(1);
    }
    model_restart(cursor);
  }

  Report run(QueueOptions o) {
    options = std::move(o);
    for (const auto& posts : options.posts) {
      for (std::uint32_t event : posts) {
        q.leaf.add(m, "leaf", event / 64);
        q.mid.add(m, "mid", event / 4096);
        number.try_emplace(event, static_cast<unsigned>(number.size()));
        if (options.data && data.count(event) == 0) {
          data[event] = m.word<std::uint32_t>("data" + std::to_string(event));
        }
      }
    }
    for (std::size_t i = 0; i < options.posts.size(); ++i) {
      std::size_t id = m.thread("producer" + std::to_string(i),
                                [this, i](std::uint64_t key) { produce(i, key); });
      if (i == 0 && options.first_may_die) m.may_stop(id, dead);
    }
    if (options.rescan != Rescan::kNone) {
      m.thread("driver", [this](std::uint64_t key) { rescan(key); });
    }
    std::size_t consumer = m.thread("consumer", [this](std::uint64_t key) { consume(key); });
    const bool reposts = options.rescan != Rescan::kNone;
    m.always([this, reposts](const Model::End& end) {
      if (end.value(early) != 0) return std::string("an event without its data");
      for (unsigned n = 0; n < number.size(); ++n) {
        const auto got = end.value(delivered) >> 8 * n & 0xff;
        const auto put = end.value(begun) >> 8 * n & 0xff;
        // A rescan may find what is being taken: an event is a hint, one too many does no harm.
        if (got > put && !(reposts && put > 0 && got <= put + 1)) {
          return std::string("delivered more often than posted");
        }
      }
      return std::string();
    });
    m.at_end([this, consumer](const Model::End& end) {
      if (!end.asleep(consumer)) return std::string("the consumer does not sleep at the end");
      const bool half_done = end.value(dead) != 0 && options.rescan == Rescan::kNone;
      for (const auto& [word, atomic] : q.leaf.all()) {
        if (end.value(atomic) != 0 && !half_done)
          return std::string("the consumer sleeps, an event is in the queue");
      }
      for (std::size_t i = end.value(dead) != 0 ? 1 : 0; i < options.posts.size(); ++i) {
        for (const std::uint32_t event : options.posts[i]) {
          if ((end.value(delivered) >> 8 * number.at(event) & 0xff) == 0)
            return std::string("an event was lost");
        }
      }
      return std::string();
    });
    return m.run();
  }
};

Report queue(QueueOptions options) { return QueueModel{}.run(std::move(options)); }

TEST(EventQueueWakeup, IsNeverLostWithOneProducer) { expect_safe(queue({.posts = {{5}}})); }
TEST(EventQueueWakeup, IsNeverLostWithOneProducerThatPostsTwice) {
  expect_safe(queue({.posts = {{5, 5}}}));
}
TEST(EventQueueWakeup, IsNeverLostWithTwoProducersOfOneEvent) {
  expect_safe(queue({.posts = {{5}, {5}}}));
}
TEST(EventQueueWakeup, IsNeverLostWithTwoEventsInOneLeafWord) {
  expect_safe(queue({.posts = {{5}, {6}}}));
}
TEST(EventQueueWakeup, IsNeverLostWithEventsInTwoLeafWords) {
  expect_safe(queue({.posts = {{5}, {64}}}));
}
TEST(EventQueueWakeup, IsNeverLostWithEventsInTwoMidWords) {
  expect_safe(queue({.posts = {{5}, {4096}}}));
}
TEST(EventQueueWakeupAtLength, IsNeverLostWithProducersOfSeveralEvents) {
  expect_safe(queue({.posts = {{5, 64}, {64, 5}}}));
}
TEST(EventQueueWakeupAtLength, IsNeverLostWithThreeProducersOfOneEvent) {
  expect_safe(queue({.posts = {{5}, {5}, {5}}}));
}
TEST(EventQueueWakeupAtLength, IsNeverLostWithThreeProducersInTwoLeafWords) {
  expect_safe(queue({.posts = {{5}, {6}, {64}}}));
}
TEST(EventQueueWakeupAtLength, IsNeverLostWithThreeProducersInTwoMidWords) {
  expect_safe(queue({.posts = {{5}, {64}, {4096}}}));
}

TEST(EventQueueWakeup, WouldBeLostIfProducersDidNotLookAtSleeping) {
  expect_caught(queue({.posts = {{5}}, .post = &post_without_looking_at_sleeping}));
}
TEST(EventQueueWakeup, WouldBeLostIfProducersLookedAtSleepingFirst) {
  expect_caught(queue({.posts = {{5}}, .post = &post_that_looks_at_sleeping_first}));
}
TEST(EventQueueWakeup, WouldBeLostIfProducersSetTheRootFirst) {
  expect_caught(queue({.posts = {{5}}, .post = &post_from_the_root_downwards}));
}
TEST(EventQueueWakeup, WouldBeLostIfTheConsumerDidNotLookAtTheRootAgain) {
  expect_caught(queue({.posts = {{5}}, .prepare = &prepare_without_looking}));
}
TEST(EventQueueWakeup, WouldBeLostIfTheConsumerAnnouncedSleepWithAPlainStore) {
  expect_caught(queue({.posts = {{5}}, .prepare = &prepare_with_a_plain_store}));
}
TEST(EventQueueWakeup, WouldBeLostIfTheConsumerClearedFromTheLeafUpwards) {
  expect_caught(queue({.posts = {{5}, {6}}, .take = &take_from_the_leaf_upwards}));
}
TEST(EventQueueWakeup, WouldBeLostIfTheConsumerDidNotLookAtMidAgain) {
  expect_caught(queue({.posts = {{5}, {64}}, .take = &take_without_a_second_look_at_mid}));
}

// Every place at which a producer may be stopped, as by a signal: nobody learns of that.
Report stop_beside(std::vector<std::uint32_t> others, Post post = &post_event_bit<const ModelQueue>,
                   End end = &end_wake<const ModelQueue>) {
  return queue({.posts = {{5}, std::move(others)},
                .post = post,
                .end = end,
                .data = false,
                .first_may_die = true});
}
TEST(EventQueueStop, HidesNoEventOfItsEvent) { expect_safe(stop_beside({5})); }
TEST(EventQueueStop, HidesNoEventInItsLeafWord) { expect_safe(stop_beside({6})); }
TEST(EventQueueStop, HidesNoEventInItsMidWord) { expect_safe(stop_beside({64})); }
TEST(EventQueueStop, HidesNoEventInAnotherMidWord) { expect_safe(stop_beside({4096})); }
TEST(EventQueueStop, HidesNoneOfTwoEvents) { expect_safe(stop_beside({6, 5})); }
TEST(EventQueueStop, WouldHideEventsIfProducersAnsweredForAllBeforeTheyRing) {
  expect_caught(stop_beside({6}, &post_that_answers_for_all, &end_nothing));
}
TEST(EventQueueWakeup, WouldBeLostIfWhatIsBeingWokenCouldStillFallAsleep) {
  expect_caught(queue({.posts = {{5}}, .post = &post_without_a_mark}));
}
TEST(EventQueueWakeup, WouldBeLostIfAProducerEndedALaterSleep) {
  expect_caught(queue({.posts = {{5}, {6}}, .end = &end_any_sleep}));
}
TEST(EventQueueStop, WouldHideEventsIfOneSleepWereLikeTheNext) {
  expect_caught(queue({.posts = {{5}, {6}, {7}},
                       .prepare = &prepare_without_counting,
                       .data = false,
                       .first_may_die = true}));
}

// Every place at which a producer may die, and the driver's rescan at every time after that.
Report death_beside(std::uint32_t other) {
  return queue({.posts = {{5}, {other}},
                .data = false,
                .first_may_die = true,
                .rescan = Rescan::kAlwaysRings});
}
TEST(EventQueueCrash, HidesNoEventOfItsEvent) { expect_safe(death_beside(5)); }
TEST(EventQueueCrashAtLength, HidesNoEventInItsLeafWord) { expect_safe(death_beside(6)); }
TEST(EventQueueCrashAtLength, HidesNoEventInItsMidWord) { expect_safe(death_beside(64)); }
TEST(EventQueueCrashAtLength, HidesNoEventInAnotherMidWord) { expect_safe(death_beside(4096)); }
TEST(EventQueueCrash, WouldHideEventsIfProducersReliedOnEachOther) {
  expect_caught(queue({.posts = {{5}, {6}},
                       .post = &post_that_relies_on_others,
                       .data = false,
                       .first_may_die = true,
                       .rescan = Rescan::kAlwaysRings}));
}
TEST(EventQueueCrash, NeedsNoRingThatSleepingDoesNotAskFor) {
  expect_safe(queue({.posts = {{5}, {5}},
                     .data = false,
                     .first_may_die = true,
                     .rescan = Rescan::kRingsIfAsked}));
}

}  // namespace
}  // namespace clan::nic
