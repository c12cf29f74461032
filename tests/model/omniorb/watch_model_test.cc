// Runs plugins/omniorb/watch.h under every interleaving of an x86 machine, with what Channel and
// Watcher do around it, and broken versions of that to show that the checker would notice.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "plugins/omniorb/watch.h"
#include "support/interleaving.h"
#include "support/model_checks.h"

namespace clan::orb {
namespace {

using testing::Ghost;
using testing::Model;
using testing::model_await;
using testing::model_restart;
using testing::ModelAtomic;
using testing::Report;

constexpr auto kSeqCst = std::memory_order_seq_cst;

struct Options {
  std::uint32_t word = kIdle;    ///< the watch at first
  bool events_on = false;        ///< at first
  bool ends = false;             ///< the ORB ends the watch, and deletes the connection
  bool passes_events = true;     ///< Channel::end_watch() waits for a thread that uses the stream
  bool waits_for_tell = true;    ///< and for the watcher in the ORB
  bool looks_when_armed = true;  ///< Channel::arm() checks the stream, or resumes events
};

struct Connection {
  Model m;
  Options options;
  ModelAtomic<std::uint32_t> word, events_on;
  ModelAtomic<std::uint32_t> reader_word = m.word<std::uint32_t>("reader");
  ModelAtomic<std::uint32_t> unlocked = m.word<std::uint32_t>("events_", 1);
  ModelAtomic<std::uint32_t> bytes = m.word<std::uint32_t>("bytes in the stream");
  ModelAtomic<std::uint32_t> queue = m.word<std::uint32_t>("event queue");
  ModelAtomic<std::uint32_t> used = m.word<std::uint32_t>("the stream is used");
  Ghost deleted = m.ghost("deleted");

  explicit Connection(Options o)
      : options(o),
        word(m.word<std::uint32_t>("watch", o.word)),
        events_on(m.word<std::uint32_t>("events_on_", o.events_on)) {}
  Watch<ModelAtomic<std::uint32_t>> watch() const {
    return Watch<ModelAtomic<std::uint32_t>>(word);
  }

  void lock(std::uint64_t again) const {
    model_await(unlocked);
    std::uint32_t is = 1;
    if (!unlocked.compare_exchange_strong(is, 0, kSeqCst)) model_restart(again);
  }
  void unlock() const { unlocked.store(1, kSeqCst); }

  // --- the peer ---
  void send() const {
    bytes.store(1, kSeqCst);
    if (events_on.load(kSeqCst) != 0) queue.store(1, kSeqCst);
  }

  // --- the ORB's thread ---
  enum OrbStep : std::uint64_t { kBegin, kPass, kTellEnds };
  void call(std::uint64_t step) const {
    if (step == kBegin) {
      watch().take(WatchEvent::kSoon);
      if (!options.ends) return;
      const bool was_armed = watch().take(WatchEvent::kClear).leaves(kArmed);
      model_restart(was_armed && options.passes_events ? kPass : kTellEnds);
    }
    if (step == kPass) {
      lock(kPass);
      unlock();
    }
    if (options.waits_for_tell && watch().now().has(kTelling)) model_restart(kTellEnds);
    deleted.set_bits(1);
  }

  // --- the watcher ---
  bool readable() const {
    used.store(1, kSeqCst);
    const bool is = bytes.load(kSeqCst) != 0;
    used.store(0, kSeqCst);
    return is;
  }
  enum WatcherStep : std::uint64_t { kTicks, kArms = 3, kWaits, kLooks, kPauses };
  void serve(std::uint64_t step) const {
    auto w = watch();
    Reader<ModelAtomic<std::uint32_t>> reader(reader_word);
    if (step < kArms) {  // three ticks: the first may be early
      const WatchChange change = w.take(WatchEvent::kTick);
      model_restart(change.enters(kArmed) ? kArms : step + 1 < kArms ? step + 1 : kWaits);
    }
    if (step == kArms) {
      lock(kArms);
      if (options.looks_when_armed && w.now().is(kArmed)) {
        if (events_on.load(kSeqCst) != 0 && reader.begin()) {
          if (readable()) queue.store(1, kSeqCst);
          reader.end();
        } else {
          events_on.store(1, kSeqCst);
          if (readable()) queue.store(1, kSeqCst);
        }
      }
      unlock();
      model_restart(kWaits);
    }
    if (step == kWaits) {
      model_await(queue);
      queue.store(0, kSeqCst);
      model_restart(kLooks);
    }
    if (step == kLooks) {
      lock(kLooks);
      bool arrived = w.now().is(kArmed);
      if (arrived && reader.begin()) {
        arrived = readable();
        reader.end();
      }
      const bool tells = w.take(arrived ? WatchEvent::kArrived : WatchEvent::kHeld).sets(kTelling);
      unlock();
      if (!tells) model_restart(kPauses);
      w.clear(kTelling);
      return;
    }
    lock(kPauses);
    if (!w.now().is(kArmed)) events_on.store(0, kSeqCst);
    unlock();
    model_restart(kTicks);
  }

  Report run() {
    m.thread("peer", [this](std::uint64_t) { send(); });
    m.thread("ORB", [this](auto step) { call(step); });
    m.thread("watcher", [this](auto step) { serve(step); });
    m.always([this](const Model::End& end) -> std::string {
      if (end.value(deleted) == 0) return {};
      if ((end.value(word) & kTelling) != 0) return "the ORB learns about a deleted connection";
      return end.value(used) != 0 ? "the stream is used after the connection's end" : "";
    });
    m.at_end([this](const Model::End& end) -> std::string {
      if (!end.done(1)) return "the ORB's thread waits for ever";
      const bool armed = (end.value(word) & kPhase) == kArmed;
      return armed && end.value(bytes) != 0 ? "bytes lie there, and nobody notices" : "";
    });
    return m.run();
  }
};

Report run(Options options) { return Connection(options).run(); }

TEST(WatchModel, NoticesBytesThatComeAtAnyTime) {
  expect_safe(run({}));
  expect_safe(run({.events_on = true}));
  expect_safe(run({.word = kIdle | kListed, .events_on = true}));
}

TEST(WatchModel, TellsNothingAboutAConnectionThatHasEnded) {
  expect_safe(run({.ends = true}));
  expect_safe(run({.events_on = true, .ends = true}));
  expect_safe(run({.word = kDue | kListed, .events_on = true, .ends = true}));
  expect_safe(run({.word = kArmed | kInBuffer, .events_on = true, .ends = true}));
}

TEST(WatchModelBroken, WouldUseAStreamThatHasEnded) {
  expect_caught(run({.events_on = true, .ends = true, .passes_events = false}));
}
TEST(WatchModelBroken, WouldTellTheOrbAboutAConnectionThatHasEnded) {
  expect_caught(run({.events_on = true, .ends = true, .waits_for_tell = false}));
}
TEST(WatchModelBroken, WouldMissBytesThatCameBeforeItWasArmed) {
  expect_caught(run({.looks_when_armed = false}));
}

TEST(ReaderModel, LetsOneThreadReadAndAThreadInPeekGivesWay) {
  Model m;
  const auto word = m.word<std::uint32_t>("reader");
  const auto inside = m.ghost("threads that read");
  using ModelReader = Reader<ModelAtomic<std::uint32_t>>;
  const auto end_reading = [=] {
    inside.add(~std::uint64_t{0});
    ModelReader(word).end();
  };
  m.thread("receive()", [=](std::uint64_t) {
    if (!ModelReader(word).insist()) model_restart(0);
    inside.add(1);
    end_reading();
  });
  m.thread("peek()", [=](std::uint64_t reads) {
    if (reads == 0) {
      if (!ModelReader(word).begin()) return;
      inside.add(1);
      model_restart(1);
    }
    if (!ModelReader(word).gives_way()) model_restart(1);
    end_reading();
  });
  m.thread("watcher", [=](std::uint64_t) {
    if (!ModelReader(word).begin()) return;
    inside.add(1);
    end_reading();
  });
  m.always([=](const Model::End& end) -> std::string {
    return end.value(inside) > 1 ? "two threads read" : "";
  });
  m.at_end([](const Model::End& end) -> std::string {
    return end.done(0) ? "" : "the thread in receive() waits for ever";
  });
  expect_safe(m.run());
}

}  // namespace
}  // namespace clan::orb
