// Watch: the state machine of one connection's watch, in one atomic word. It decides, and does
// nothing itself: Channel and Watcher do what a change of the word asks for.
//
//        setSelectable(0)        a tick        a tick, setSelectable(1, 2)
//   idle ---------------> wanted -----> due -------------------------------> armed
//     ^                     |            |                                     |
//     '---------------------+------------+-------------------------------------'
//               clearSelectable(), Peek(), or the watcher notifies the ORB
//
// setSelectable(1) also arms an idle or a wanted watch; setSelectable(2) leaves an idle one idle.
// During a call of a few microseconds the watch becomes wanted and then idle again. If the call
// still runs at a tick, the watch becomes due, and the next tick arms it. Only then do the client's
// next bytes make the watcher notify the ORB. The phase and the flags are in one word, so a step
// changes both at once.
//
// Thread-safety: any thread. Acquire and release suffice: none relies on this word's order with
// another. A template, so that tests/model/omniorb/watch_model_test.cc runs it in every
// interleaving.
#pragma once

#include <clan/detail/words.h>

#include <atomic>
#include <cstdint>

namespace clan::orb {

enum Phase : std::uint32_t { kIdle, kWanted, kDue, kArmed };
inline constexpr std::uint32_t kPhase = 3;  ///< its bits
// The flags.
inline constexpr std::uint32_t kListed = 4;    ///< the watcher has it in its list for the next tick
inline constexpr std::uint32_t kInBuffer = 8;  ///< the ORB holds bytes already
inline constexpr std::uint32_t kTelling = 16;  ///< the watcher is telling the ORB

enum class WatchEvent : std::uint32_t {
  kSoon,     ///< setSelectable(0): to be armed if the call takes long
  kWant,     ///< to be armed by another call: peek() has found nothing, or the ORB holds bytes
  kNow,      ///< setSelectable(1)
  kAgain,    ///< setSelectable(2), after peek(): if no other thread has ended the watch
  kClear,    ///< clearSelectable()
  kPeek,     ///< a thread in peek() watches instead
  kTick,     ///< of the watcher, if listed
  kArrived,  ///< the watcher finds the stream readable
  kHeld,     ///< the watcher finds nothing there, but the ORB may hold bytes
};

struct WatchStep {
  std::uint32_t to, sets = 0, clears = 0;
};
inline constexpr WatchStep kTell{kIdle, kTelling, kInBuffer};
inline constexpr WatchStep kTake{kIdle, 0, kInBuffer};  ///< peek() learns that the ORB holds bytes
inline constexpr WatchStep kUnlist{kArmed, 0, kListed};

/// What an event does in each phase. For a new event, add its row to kWatchTable in the order of
/// WatchEvent, and a row to tests/programs/omniorb/watch_test.cc.
struct WatchRow {
  std::uint32_t needs;  ///< without this flag the event changes nothing
  WatchStep steps[4];
};
// clang-format off
inline constexpr WatchRow kWatchTable[] = {
    //              needs       idle                  wanted     due       armed
    /* kSoon    */ {0,         {{kWanted, kListed},  {kWanted}, {kDue},   {kArmed}}},
    /* kWant    */ {0,         {{kWanted},           {kWanted}, {kDue},   {kArmed}}},
    /* kNow     */ {0,         {{kArmed},            {kArmed},  {kArmed}, {kArmed}}},
    /* kAgain   */ {0,         {{kIdle},             {kArmed},  {kArmed}, {kArmed}}},
    /* kClear   */ {0,         {{kIdle},             {kIdle},   {kIdle},  {kIdle}}},
    /* kPeek    */ {0,         {{kIdle},             kTake,     kTake,    kTake}},
    /* kTick    */ {kListed,   {{kIdle, 0, kListed}, {kDue},    kUnlist,  kUnlist}},
    /* kArrived */ {0,         {{kIdle},             {kWanted}, {kDue},   kTell}},
    /* kHeld    */ {kInBuffer, {{kIdle},             kTell,     kTell,    kTell}},
};
// clang-format on

/// The word before and after an event: what the caller has to do is what has changed.
struct WatchChange {
  std::uint32_t before, after;
  bool was(Phase phase) const { return (before & kPhase) == phase; }
  bool is(Phase phase) const { return (after & kPhase) == phase; }
  bool enters(Phase phase) const { return !was(phase) && is(phase); }
  bool leaves(Phase phase) const { return was(phase) && !is(phase); }
  bool has(std::uint32_t flag) const { return (after & flag) != 0; }
  bool sets(std::uint32_t flag) const { return (after & ~before & flag) != 0; }
  bool clears(std::uint32_t flag) const { return (before & ~after & flag) != 0; }
};

template <typename Word = std::atomic<std::uint32_t>>
class Watch {
 public:
  Watch() = default;
  explicit Watch(auto word) : word_(word) {}

  /// The state now, as a change that changes nothing.
  WatchChange now() const {
    const auto word = words::load_acquire(word_);  // PAIR orb.watch: what came before
    return {word, word};
  }
  WatchChange take(WatchEvent event) {
    const WatchRow& row = kWatchTable[static_cast<std::uint32_t>(event)];
    WatchChange change = now();
    do {
      const WatchStep& step = row.steps[change.before & kPhase];
      change.after = (change.before & ~(kPhase | step.clears)) | step.to | step.sets;
      if ((change.before & row.needs) != row.needs) change.after = change.before;
      if (change.after == change.before) break;
      // PAIR orb.watch: sees what the thread of the step before has done, and publishes
    } while (!words::cas(word_, change.before, change.after));
    return change;
  }
  // Flags, in any phase.
  void set(std::uint32_t flags) { words::set_bits(word_, flags); }  // PAIR orb.watch: it has bytes
  // PAIR orb.watch: this thread has told the ORB
  void clear(std::uint32_t flags) { words::clear_bits(word_, flags); }

 private:
  Word word_{kIdle};
};

/// Which thread reads or checks a stream: one at a time. Its own word, so that a plain store ends
/// it.
template <typename Word = std::atomic<std::uint32_t>>
class Reader {
 public:
  Reader() = default;
  explicit Reader(auto word) : word_(word) {}
  /// False: another thread reads.
  bool begin() { return words::swap(word_, kReads) == kNone; }  // PAIR orb.reader: the one before
  /// The same for a thread that tries until it may.
  bool insist() { return words::swap(word_, kInsists) == kNone; }  // PAIR orb.reader: as begin()
  /// Where this thread reads. Also true for a thread that has insisted itself.
  bool gives_way() const {
    return word_.load(std::memory_order_relaxed) == kInsists;  // relaxed: a hint
  }
  void end() { words::store_release(word_, kNone); }  // PAIR orb.reader: for the next

 private:
  enum : std::uint32_t { kNone, kReads, kInsists };
  Word word_{kNone};
};

}  // namespace clan::orb
