#include "omniorb/watch.h"

#include <gtest/gtest.h>

#include <string>

namespace clan::orb {
namespace {

constexpr std::uint32_t kFlags[] = {kListed, kInBuffer, kTelling};
constexpr std::uint32_t kWords = 32;  // each phase with each set of flags

Watch<> in(std::uint32_t word) { return Watch<>(word); }

/// "idle listed telling"
std::string text(std::uint32_t word) {
  constexpr const char* kPhases[] = {"idle", "wanted", "due", "armed"};
  constexpr const char* kNames[] = {" listed", " in-buffer", " telling"};
  std::string all = kPhases[word & kPhase];
  for (int i = 0; i < 3; ++i) all += (word & kFlags[i]) != 0 ? kNames[i] : "";
  return all;
}
std::string after(std::uint32_t word, WatchEvent event) { return text(in(word).take(event).after); }

struct Expected {
  WatchEvent event;
  const char *idle, *wanted, *due, *armed;
};

TEST(WatchTable, HasEachEventInEachPhase) {
  constexpr Expected kWithoutFlags[] = {
      {WatchEvent::kSoon, "wanted listed", "wanted", "due", "armed"},
      {WatchEvent::kWant, "wanted", "wanted", "due", "armed"},
      {WatchEvent::kNow, "armed", "armed", "armed", "armed"},
      {WatchEvent::kAgain, "idle", "armed", "armed", "armed"},
      {WatchEvent::kClear, "idle", "idle", "idle", "idle"},
      {WatchEvent::kPeek, "idle", "idle", "idle", "idle"},
      {WatchEvent::kTick, "idle", "wanted", "due", "armed"},
      {WatchEvent::kArrived, "idle", "wanted", "due", "idle telling"},
      {WatchEvent::kHeld, "idle", "wanted", "due", "armed"},
  };
  for (const auto& [event, idle, wanted, due, armed] : kWithoutFlags) {
    SCOPED_TRACE(static_cast<int>(event));
    EXPECT_EQ(after(kIdle, event), idle);
    EXPECT_EQ(after(kWanted, event), wanted);
    EXPECT_EQ(after(kDue, event), due);
    EXPECT_EQ(after(kArmed, event), armed);
  }
}

TEST(WatchTable, ListsAConnectionUntilATickFindsItArmedOrIdle) {
  EXPECT_TRUE(in(kIdle).take(WatchEvent::kSoon).sets(kListed));
  EXPECT_FALSE(in(kIdle | kListed).take(WatchEvent::kSoon).sets(kListed)) << "it is in the list";
  EXPECT_EQ(after(kIdle | kListed, WatchEvent::kTick), "idle");
  EXPECT_EQ(after(kWanted | kListed, WatchEvent::kTick), "due listed");
  EXPECT_EQ(after(kDue | kListed, WatchEvent::kTick), "armed");
  EXPECT_EQ(after(kArmed | kListed, WatchEvent::kTick), "armed");
  EXPECT_TRUE(in(kDue | kListed).take(WatchEvent::kTick).enters(kArmed));
  EXPECT_FALSE(in(kArmed | kListed).take(WatchEvent::kTick).enters(kArmed));
}

TEST(WatchTable, GivesTheBytesInTheBufferToOneThread) {
  EXPECT_EQ(after(kIdle | kInBuffer, WatchEvent::kHeld), "idle in-buffer") << "nobody wants them";
  EXPECT_EQ(after(kIdle | kInBuffer, WatchEvent::kPeek), "idle in-buffer");
  for (const std::uint32_t phase : {kWanted, kDue, kArmed}) {
    EXPECT_EQ(after(phase | kInBuffer, WatchEvent::kHeld), "idle telling");
    EXPECT_TRUE(in(phase | kInBuffer).take(WatchEvent::kPeek).clears(kInBuffer));
    EXPECT_EQ(after(phase | kInBuffer, WatchEvent::kPeek), "idle");
    EXPECT_EQ(after(phase | kInBuffer, WatchEvent::kClear), "idle in-buffer") << "they stay";
  }
  EXPECT_EQ(after(kArmed | kInBuffer, WatchEvent::kArrived), "idle telling");
}

TEST(WatchTable, ACallThatEndsBeforeTheNextTickBeginsAnew) {
  Watch<> watch;
  watch.take(WatchEvent::kSoon);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(watch.take(WatchEvent::kTick).has(kListed));
    EXPECT_TRUE(watch.now().is(kDue));
    watch.take(WatchEvent::kClear);
    watch.take(WatchEvent::kSoon);
    EXPECT_TRUE(watch.now().is(kWanted));
  }
}

TEST(WatchTable, LeavesTheFlagsOfOthersAlone) {
  for (std::uint32_t word = 0; word < kWords; ++word) {
    for (int event = 0; event <= static_cast<int>(WatchEvent::kHeld); ++event) {
      const WatchChange change = in(word).take(static_cast<WatchEvent>(event));
      EXPECT_EQ(change.before, word);
      EXPECT_FALSE(change.sets(kInBuffer)) << text(word);
      EXPECT_FALSE(change.clears(kTelling)) << "only the watcher ends it: " << text(word);
      EXPECT_LT(change.after, kWords);
    }
  }
}

TEST(WatchFlags, AreBesideThePhase) {
  for (std::uint32_t word = 0; word < kWords; ++word) {
    for (const std::uint32_t flag : kFlags) {
      Watch<> watch(word);
      watch.set(flag);
      EXPECT_EQ(watch.now().after, word | flag);
    }
    Watch<> watch(word);
    for (int i = 0; i < 2; ++i) {
      watch.clear(kTelling);
      EXPECT_EQ(watch.now().after, word & ~kTelling);
    }
  }
}

TEST(Reader, IsOneThreadWhichLearnsThatAnotherInsists) {
  Reader<> reader;
  EXPECT_TRUE(reader.begin());
  EXPECT_FALSE(reader.begin());
  EXPECT_FALSE(reader.gives_way());
  EXPECT_FALSE(reader.insist());
  EXPECT_TRUE(reader.gives_way());
  reader.end();
  EXPECT_TRUE(reader.insist());
  EXPECT_FALSE(reader.begin());
  reader.end();
  EXPECT_TRUE(reader.begin());
}

}  // namespace
}  // namespace clan::orb
