// Runs the wake-ups of a pipe (engine/pipe/pipe_waiting.h) under every interleaving of an x86
// machine, and broken versions of them to show that the checker would notice.
//
// Around that code the model has what the interposer does with it: a doorbell is a byte of the TCP
// connection, which is there until it has been read, and which all threads that sleep on the socket
// wake up for.
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
  bool bell_for_all = false;    ///< a wish by bell goes for those that do not watch it, too
  bool forgets_others = false;  ///< a thread that drops a doorbell does not ask for another
};

constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;
constexpr auto kSeqCst = std::memory_order_seq_cst;

/// What the two sides have in memory, and a doorbell each way.
struct Words {
  Model m;
  ModelAtomic<std::uint32_t> published = m.word<std::uint32_t>("ring.head");
  ModelAtomic<std::uint32_t> taken = m.word<std::uint32_t>("ring.credit");
  ModelAtomic<std::uint32_t> reader_waits = m.word<std::uint32_t>("receiver.waiting");
  ModelAtomic<std::uint32_t> writer_waits = m.word<std::uint32_t>("sender.waiting");
  ModelAtomic<std::uint32_t> for_reader = m.word<std::uint32_t>("doorbells of the reader");
  ModelAtomic<std::uint32_t> for_writer = m.word<std::uint32_t>("doorbells of the writer");
  Options options;

  static void ring(const ModelAtomic<std::uint32_t>& bell) {
    bell.fetch_add(1, kSeqCst);
    model_futex_wake(bell);
  }

  // A thread's key: messages it has sent or taken, doorbells it has heard.
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

/// Two threads that read at one end, a message each. One that has been woken drops the doorbells,
/// as stream/poll_tcp.cc does: it counts them, asks for another in the other's name, looks, and
/// drops those that it has counted.
struct TwoReaders : Words {
  ModelAtomic<std::uint32_t> heard = m.word<std::uint32_t>("doorbells dropped");
  ModelAtomic<std::uint32_t> sleepers = m.word<std::uint32_t>("data_sleepers");

  enum Step : std::uint64_t { kLook, kAsleep, kUp };

  void drop_doorbells() const {
    const std::uint32_t rung = for_reader.load(kSeqCst);
    std::uint32_t before = heard.load(kSeqCst);
    if (before >= rung) return;
    if (sleepers.load(kSeqCst) != 0 && !options.forgets_others) {
      announce<ModelFence>(reader_waits, kAnybody);
      if (published.load(kAcquire) != taken.load(kAcquire)) return;  // left for the other
    }
    heard.compare_exchange_strong(before, rung, kSeqCst);
  }

  void read(std::uint32_t me, std::uint64_t step) const {
    if (step == kAsleep) {  // poll() of the socket: it is readable while there is a doorbell
      const std::uint32_t rung = for_reader.load(kSeqCst);
      if (rung != heard.load(kSeqCst)) model_restart(kUp);
      model_futex_wait(for_reader, rung);
      model_restart(kAsleep);
    }
    if (step == kUp) {
      withdraw_reader(reader_waits, me);
      sleepers.fetch_add(~std::uint32_t{0}, kSeqCst);
      drop_doorbells();
      model_restart(kLook);
    }
    std::uint32_t mine = taken.load(kAcquire);
    if (published.load(kAcquire) != mine) {  // under the lock of the side, in production
      if (taken.compare_exchange_strong(mine, mine + 1, kSeqCst)) {
        if (take_waiting_for_room<ModelFence>(writer_waits, [](std::uint32_t) { return true; }))
          ring(for_writer);
        return;  // its program is busy with that one
      }
      model_restart(kLook);
    }
    sleepers.fetch_add(1, kSeqCst);
    announce<ModelFence>(reader_waits, me);
    if (published.load(kAcquire) == taken.load(kAcquire)) model_restart(kAsleep);
    model_restart(kUp);
  }

  Report run(Options o) {
    options = o;
    const std::size_t writer = m.thread("writer", [this](auto key) { write<ModelFence>(key); });
    for (const std::uint32_t me : {7u, 8u}) {
      m.thread("reader" + std::to_string(me), [this, me](auto step) { read(me, step); });
    }
    m.at_end([=, this](const Model::End& end) {
      if (end.asleep(writer)) return std::string("the writer sleeps for ever");
      const bool all = end.value(taken) == options.messages;
      return all ? std::string() : std::string("a reader sleeps for ever");
    });
    return m.run();
  }
};

/// Two threads that wait for the one message there is, without reading it: one watches the bell and
/// the socket, one the socket alone.
struct BellAndDoorbell : Words {
  ModelAtomic<std::uint32_t> bell = m.word<std::uint32_t>("rings of the bell or the socket");

  void write() const {
    published.store(1, kRelease);
    const std::uint32_t flag = take_waiting<ModelFence>(reader_waits);
    if (flag == 0) return;
    ring(bell);  // what watches it watches the socket as well
    if ((flag & kByBell) == 0) ring(for_reader);
  }
  void read(std::uint32_t mine, const ModelAtomic<std::uint32_t>& watched, std::uint64_t heard,
            std::uint64_t step) const {
    if (step != 0) heard = watched.load(kSeqCst);
    if (published.load(kAcquire) != 0) return;
    announce<ModelFence>(reader_waits, mine);
    if (published.load(kAcquire) == 0) model_futex_wait(watched, static_cast<std::uint32_t>(heard));
    model_restart(1);
  }

  Report run(Options o) {
    options = o;
    const std::uint32_t other = options.bell_for_all ? 8 | kByBell : 8;
    m.thread("writer", [this](auto) { write(); });
    const std::size_t by_bell =
        m.thread("by bell", [this](auto step) { read(7 | kByBell, bell, 0, step); });
    const std::size_t by_byte =
        m.thread("by byte", [this, other](auto step) { read(other, for_reader, 0, step); });
    m.at_end([=](const Model::End& end) {
      const bool sleeps = end.asleep(by_bell) || end.asleep(by_byte);
      return sleeps ? std::string("a reader sleeps for ever") : std::string();
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

TEST(PipeWakeup, IsNeverLostWhereOneReaderWatchesTheBellAndOneDoesNot) {
  expect_safe(BellAndDoorbell{}.run({}));
}
TEST(PipeWakeup, WouldBeLostIfAWishByBellWentForThoseThatDoNotWatchIt) {
  expect_caught(BellAndDoorbell{}.run({.bell_for_all = true}));
}

TEST(PipeWakeup, WouldBeLostWithoutFences) { expect_caught(pipe<Unfenced>({.messages = 1})); }
TEST(PipeWakeup, WouldBeLostByLookingBeforeAsking) {
  expect_caught(pipe({.messages = 1, .looks_first = true}));
}
TEST(PipeWakeup, WouldBeLostIfNobodyAskedForTheOtherReader) {
  expect_caught(TwoReaders{}.run({.messages = 2, .room = 2, .forgets_others = true}));
}

}  // namespace
}  // namespace clan::pipes
