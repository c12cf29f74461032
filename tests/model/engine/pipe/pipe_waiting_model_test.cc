// Runs the wake-ups of a pipe (engine/pipe/pipe_waiting.h) under every interleaving of an x86
// machine, and broken versions of them to show that the checker would notice.
//
// Around that code the model has what the interposer does with it: a ring is an edge for each
// thread that sleeps at the end, and of one that comes later it takes no notice.
#include <gtest/gtest.h>

#include <string>

#include "engine/pipe/pipe_waiting.h"
#include "support/interleaving.h"
#include "support/model_checks.h"

namespace clan::pipes {
namespace {

using testing::Model;
using testing::model_futex_wait;
using testing::model_futex_wake;
using testing::model_restart;
using testing::ModelAtomic;
using testing::ModelFence;
using testing::Report;
using testing::Unfenced;

struct Options {
  std::uint32_t messages = 2;
  std::uint32_t room = 1;  ///< messages that the ring holds
  bool looks_first = false;
  bool anybody = false;         ///< the reader asks for anybody, as sets do
  bool forgets_others = false;  ///< a reader that asks to be rung takes the place of another
};

constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;
constexpr auto kSeqCst = std::memory_order_seq_cst;

/// What the two sides have in memory, and a bell each way, which counts its rings.
struct Words {
  Model m;
  ModelAtomic<std::uint32_t> published = m.word<std::uint32_t>("ring.head");
  ModelAtomic<std::uint32_t> taken = m.word<std::uint32_t>("ring.credit");
  ModelAtomic<std::uint32_t> reader_waits = m.word<std::uint32_t>("receiver.waiting");
  ModelAtomic<std::uint32_t> writer_waits = m.word<std::uint32_t>("sender.waiting");
  ModelAtomic<std::uint32_t> for_reader = m.word<std::uint32_t>("rings for the reader");
  ModelAtomic<std::uint32_t> for_writer = m.word<std::uint32_t>("rings for the writer");
  Options options;

  static void ring(const ModelAtomic<std::uint32_t>& bell) {
    bell.fetch_add(1, kSeqCst);
    model_futex_wake(bell);
  }

  // A thread's key: messages it has sent or taken, rings it has heard.
  struct Key {
    std::uint32_t done, heard;
    explicit Key(std::uint64_t key)
        : done(static_cast<std::uint32_t>(key & 0xff)),
          heard(static_cast<std::uint32_t>(key >> 8 & 0xff)) {}
    std::uint64_t value() const { return done | std::uint64_t{heard} << 8; }
  };
  static constexpr std::uint64_t kAwake = 1 << 16;

  template <typename Fence>
  void write(std::uint64_t key) const {
    Key k(key);
    if ((key & kAwake) != 0) {
      k.heard = for_writer.load(kSeqCst);
      model_restart(k.value());
    }
    if (k.done == options.messages) return;
    if (k.done - taken.load(kAcquire) < options.room) {
      published.store(++k.done, kRelease);
      if (take_waiting<Fence>(reader_waits)) ring(for_reader);
      model_restart(k.value());
    }
    announce<Fence>(writer_waits, kWindowWanted);
    const bool full = k.done - taken.load(kAcquire) == options.room;
    if (full) model_futex_wait(for_writer, k.heard);
    model_restart(k.value() | kAwake);
  }
};

/// One thread at each end.
template <typename Fence>
struct OneReader : Words {
  void read(std::uint64_t key) const {
    constexpr std::uint32_t kMe = 7;
    Key k(key);
    if ((key & kAwake) != 0) {
      withdraw_reader(reader_waits, kMe);
      k.heard = for_reader.load(kSeqCst);
      model_restart(k.value());
    }
    if (published.load(kAcquire) != k.done) {
      taken.store(++k.done, kRelease);
      if (take_waiting_for_room<Fence>(writer_waits, [](std::uint32_t) { return true; }))
        ring(for_writer);
      if (k.done == options.messages) return;
      model_restart(k.value());
    }
    const bool early = options.looks_first && published.load(kAcquire) == k.done;
    if (options.anybody) {
      announce<Fence>(reader_waits, kAnybody);
      announce<Fence>(writer_waits, kAnybody);
    } else {
      announce<Fence>(reader_waits, kMe);
    }
    const bool nothing = options.looks_first ? early : published.load(kAcquire) == k.done;
    if (nothing) model_futex_wait(for_reader, k.heard);
    model_restart(k.value() | kAwake);
  }

  Report run(Options o) {
    options = o;
    const std::size_t writer = m.thread("writer", [this](auto key) { this->write<Fence>(key); });
    const std::size_t reader = m.thread("reader", [this](auto key) { this->read(key); });
    m.at_end([=](const Model::End& end) {
      if (end.asleep(writer)) return std::string("the writer sleeps for ever");
      if (end.asleep(reader)) return std::string("the reader sleeps for ever");
      return std::string();
    });
    return m.run();
  }
};

/// Two threads that read at one end, a message each. Each has a set of its own, by edges.
struct TwoReaders : Words {
  // A thread's key: rings it has heard.
  void read(std::uint32_t me, std::uint64_t key) const {
    auto heard = static_cast<std::uint32_t>(key & 0xff);
    if ((key & kAwake) != 0) {
      withdraw_reader(reader_waits, me);
      heard = for_reader.load(kSeqCst);
      model_restart(heard);
    }
    std::uint32_t mine = taken.load(kAcquire);
    if (published.load(kAcquire) != mine) {  // under the lock of the side, in production
      if (taken.compare_exchange_strong(mine, mine + 1, kSeqCst)) {
        if (take_waiting_for_room<ModelFence>(writer_waits, [](std::uint32_t) { return true; }))
          ring(for_writer);
        return;  // its program is busy with that one
      }
      model_restart(heard);
    }
    if (options.forgets_others) {
      reader_waits.store(me, kSeqCst);
    } else {
      announce<ModelFence>(reader_waits, me);
    }
    if (published.load(kAcquire) == taken.load(kAcquire)) model_futex_wait(for_reader, heard);
    model_restart(heard | kAwake);
  }

  Report run(Options o) {
    options = o;
    const std::size_t writer = m.thread("writer", [this](auto key) { write<ModelFence>(key); });
    for (const std::uint32_t me : {7u, 8u}) {
      m.thread("reader" + std::to_string(me), [this, me](auto key) { read(me, key); });
    }
    m.at_end([=, this](const Model::End& end) {
      if (end.asleep(writer)) return std::string("the writer sleeps for ever");
      const bool all = end.value(taken) == options.messages;
      return all ? std::string() : std::string("a reader sleeps for ever");
    });
    return m.run();
  }
};

template <typename Fence = ModelFence>
Report pipe(Options options = {}) {
  return OneReader<Fence>{}.run(options);
}

TEST(PipeWakeup, IsNeverLostWithOneMessage) { expect_safe(pipe({.messages = 1})); }
TEST(PipeWakeup, IsNeverLostWhereTheRingHoldsOneMessage) { expect_safe(pipe({.messages = 3})); }
TEST(PipeWakeup, IsNeverLostWhereTheRingHoldsTwoMessages) {
  expect_safe(pipe({.messages = 3, .room = 2}));
}
TEST(PipeWakeup, IsNeverLostByASetThatAsksForAnybody) {
  expect_safe(pipe({.messages = 3, .anybody = true}));
}
TEST(PipeWakeup, IsNeverLostWithTwoReadersOfOneEnd) {
  expect_safe(TwoReaders{}.run({.messages = 2, .room = 2}));
}

TEST(PipeWakeup, WouldBeLostWithoutFences) { expect_caught(pipe<Unfenced>({.messages = 1})); }
TEST(PipeWakeup, WouldBeLostByLookingBeforeAsking) {
  expect_caught(pipe({.messages = 1, .looks_first = true}));
}
TEST(PipeWakeup, WouldBeLostIfAReaderTookThePlaceOfAnother) {
  expect_caught(TwoReaders{}.run({.messages = 2, .room = 2, .forgets_others = true}));
}

}  // namespace
}  // namespace clan::pipes
