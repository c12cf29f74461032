// The look-up over bare tables, as a peer has them mapped: also such that no Nic would write.
#include "nic/tripwire_match.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace clan::nic {
namespace {

// Zeroed, and no memory until it is touched.
template <typename T>
class ImageMemory {
 public:
  ImageMemory()
      : at_(::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~ImageMemory() { ::munmap(at_, sizeof(T)); }
  ImageMemory(const ImageMemory&) = delete;
  ImageMemory& operator=(const ImageMemory&) = delete;
  T& operator*() const { return *static_cast<T*>(at_); }
  T* operator->() const { return static_cast<T*>(at_); }

 private:
  void* at_;
};

struct Image : testing::Test, Ringer {
  static constexpr std::uint32_t kAperture = 3;
  static constexpr std::uint64_t kLength = 64 * 64;  // 64 chunks of 64 bytes

  Image() : nic{&*tables, &*signals, this} {
    for (auto& a : tables->apertures) {
      if (&a > &tables->apertures[kAperture]) break;
      a.first_tripwire = shm::kNoTripwire;
    }
    tables->apertures[kAperture].length = kLength;
  }
  // Before those that are there; armed, with no event.
  void add(std::uint32_t tripwire, std::uint64_t start, std::uint64_t end,
           std::uint32_t flags = shm::kTripOnWrite) {
    auto& a = tables->apertures[kAperture];
    auto& t = tables->tripwires[tripwire];
    t.start = start;
    t.end = end;
    t.aperture = kAperture;
    t.flags = flags;
    t.queue = shm::kMaxEventQueues;
    t.next = a.first_tripwire.load();
    a.first_tripwire = tripwire;
    a.armed |= shm::chunk_mask(kLength, start, end - start);
    signals->tripwires[tripwire].armed = 1;
  }
  std::uint32_t fired(std::uint32_t tripwire) const {
    return signals->tripwires[tripwire].fired.news.load();
  }
  bool shown(std::uint32_t tripwire) const {
    return (signals->tripwire_state[tripwire / 64].load() >> (tripwire % 64) & 1) != 0;
  }
  void write(std::uint64_t offset, std::uint64_t length) {
    match_tripwires(nic, kAperture, offset, length, AccessKind::kWrite);
  }
  void ring(std::uint32_t queue) override {
    if (while_ringing) std::exchange(while_ringing, nullptr)();
    rung.push_back(queue);
  }

  ImageMemory<shm::NicTables> tables;
  ImageMemory<shm::NicSignals> signals;
  NicImage nic;
  std::vector<std::uint32_t> rung;
  std::function<void()> while_ringing;
};

TEST_F(Image, FiresWhatAnAccessOverlapsAndNoNeighbour) {
  add(100, 10, 20);
  add(101, 20, 30);  // in the same chunk
  write(15, 5);
  EXPECT_EQ(fired(100), 1u);
  EXPECT_TRUE(shown(100));
  EXPECT_EQ(fired(101), 0u);
  EXPECT_FALSE(shown(101));
  write(29, 1);
  EXPECT_EQ(fired(101), 1u);
}

TEST_F(Image, FiresASingleShotOnceUntilItIsArmedAgain) {
  add(100, 0, 8);
  write(0, 8);
  write(0, 8);
  EXPECT_EQ(fired(100), 1u);
  EXPECT_EQ(signals->tripwires[100].armed.load(), 0u);
  signals->tripwires[100].armed = 1;
  write(7, 1);
  EXPECT_EQ(fired(100), 2u);
}

TEST_F(Image, FiresAPersistentOneAtEachAccessWhileItIsArmed) {
  add(100, 0, 8, shm::kTripOnWrite | shm::kTripPersistent);
  write(0, 1);
  write(0, 1);
  EXPECT_EQ(fired(100), 2u);
  EXPECT_EQ(signals->tripwires[100].armed.load(), 1u);
  signals->tripwires[100].armed = 0;
  write(0, 1);
  EXPECT_EQ(fired(100), 2u);
}

TEST_F(Image, TellsReadsFromWrites) {
  add(100, 0, 8, shm::kTripOnRead);
  add(101, 0, 8, shm::kTripOnWrite);
  match_tripwires(nic, kAperture, 0, 8, AccessKind::kRead);
  EXPECT_EQ(fired(100), 1u);
  EXPECT_EQ(fired(101), 0u);
  match_for_packets(nic, kAperture, 0, 8, AccessKind::kWrite);
  EXPECT_EQ(fired(100), 1u);
  EXPECT_EQ(fired(101), 1u);
}

// What is not in the summary costs one load, whatever the chain says.
TEST_F(Image, LooksAtNothingWhereTheSummaryShowsNothingArmed) {
  add(100, 0, 8);
  tables->apertures[kAperture].armed = shm::chunk_mask(kLength, 640, 1);
  write(0, 8);
  match_for_packets(nic, kAperture, 0, 8, AccessKind::kWrite);
  EXPECT_EQ(fired(100), 0u);
}

TEST_F(Image, AnAccessThatWrapsAroundReachesTheEndOfAll) {
  add(100, 4000, kLength);
  write(0, 0);
  EXPECT_EQ(fired(100), 0u) << "an access of no bytes";
  write(4090, ~std::uint64_t{0});
  EXPECT_EQ(fired(100), 1u);
}

TEST_F(Image, OfAnApertureThatIsNoneDoesNothing) {
  add(100, 0, 8);
  for (const std::uint32_t aperture : {kAperture + 1, shm::kMaxApertures, ~0u}) {
    match_tripwires(nic, aperture, 0, 8, AccessKind::kWrite);
  }
  EXPECT_EQ(fired(100), 0u);
}

// The owner of the tables may be hostile: a look-up ends, and stays within them.
TEST_F(Image, EndsOnAChainThatLoops) {
  add(100, 0, 8, shm::kTripOnWrite | shm::kTripPersistent);
  add(101, 0, 8, shm::kTripOnWrite | shm::kTripPersistent);
  tables->tripwires[100].next = 101;
  write(0, 8);
  EXPECT_EQ(fired(100), fired(101));
  EXPECT_GE(fired(100), 1u);
}

TEST_F(Image, EndsWhereAChainLeavesTheApertureOrTheTable) {
  add(100, 0, 8);
  add(101, 0, 8);
  tables->tripwires[100].aperture = kAperture + 1;
  write(0, 8);
  EXPECT_EQ(fired(101), 1u);
  EXPECT_EQ(fired(100), 0u);
  signals->tripwires[101].armed = 1;
  tables->tripwires[101].next = shm::kMaxTripwires;
  write(0, 8);
  EXPECT_EQ(fired(101), 2u);
}

TEST_F(Image, PostsTheEventOfATripwireIfItsQueueIsOne) {
  add(100, 0, 8, shm::kTripOnWrite | shm::kTripPersistent);
  tables->tripwires[100].queue = 7;
  tables->tripwires[100].event = 65;
  write(0, 8);
  EXPECT_EQ(signals->queues[7].leaf[1].load(), 2u);
  tables->tripwires[100].queue = shm::kMaxEventQueues;
  tables->tripwires[100].event = 66;
  write(0, 8);
  tables->tripwires[100].queue = 7;
  tables->tripwires[100].event = shm::kEventsPerQueue;
  write(0, 8);
  EXPECT_EQ(signals->queues[7].leaf[1].load(), 2u);
  EXPECT_EQ(fired(100), 3u);
}

TEST_F(Image, RingsAConsumerThatSleepsOnADescriptorOnce) {
  post_event(nic, 7, 1);
  EXPECT_TRUE(rung.empty()) << "it is awake, and looks";
  signals->queues[7].sleeping = shm::kSleepsOnFd;
  post_event(nic, 7, 2);
  post_event(nic, 7, 3);
  EXPECT_EQ(rung, std::vector<std::uint32_t>{7});
  signals->queues[7].sleeping = shm::kSleepsOnFutex;
  post_event(nic, 7, 4);
  EXPECT_EQ(rung.size(), 1u);
  EXPECT_EQ(signals->queues[7].sleeping.load(), shm::kAwake);
  EXPECT_EQ(signals->queues[7].leaf[0].load(), 0b11110u);
}

// As one that is stopped: the others do not wait for it.
TEST_F(Image, RingsByItselfWhileAnotherOneIsAboutToRing) {
  std::size_t others = 0;
  while_ringing = [&] {
    post_event(nic, 7, 2);
    others = rung.size();
  };
  signals->queues[7].sleeping = shm::kSleepsOnFd;
  post_event(nic, 7, 1);
  EXPECT_EQ(others, 1u);
  post_event(nic, 7, 3);
  EXPECT_EQ(rung.size(), 2u) << "it is awake, and looks";
}

TEST_F(Image, LeavesALaterSleepAsItIs) {
  while_ringing = [&] {  // it is late: the consumer has looked, and sleeps again
    std::uint32_t word = 0, cursor = 0, base = 0;
    while (take_events(signals->queues[7], &cursor, &base) != 0) {
    }
    EXPECT_TRUE(prepare_sleep(signals->queues[7], shm::kSleepsOnFd, &word));
  };
  signals->queues[7].sleeping = shm::kSleepsOnFd;
  post_event(nic, 7, 1);
  post_event(nic, 7, 2);
  EXPECT_EQ(rung.size(), 2u);
}

// As one that is stopped while it fires a single shot: the others do not wait for it.
TEST_F(Image, FiresASingleShotByItselfWhileAnotherOneIsAboutToRing) {
  add(100, 0, 8);
  tables->tripwires[100].queue = 7;
  tables->tripwires[100].event = 65;
  std::size_t others = 0;
  while_ringing = [&] {
    write(0, 8);
    others = rung.size();
  };
  signals->queues[7].sleeping = shm::kSleepsOnFd;
  write(0, 8);
  EXPECT_EQ(others, 1u);
  EXPECT_FALSE(shm::is_armed(signals->tripwires[100].armed));
  signals->queues[7].sleeping = shm::kSleepsOnFd;
  write(0, 8);
  EXPECT_EQ(rung.size(), 2u) << "it has rung, and is armed no more";
}

TEST_F(Image, LeavesALaterArmingAsItIs) {
  add(100, 0, 8);
  tables->tripwires[100].queue = 7;
  tables->tripwires[100].event = 65;
  auto& armed = signals->tripwires[100].armed;
  while_ringing = [&] { armed = shm::armed_after(armed); };  // it is late
  signals->queues[7].sleeping = shm::kSleepsOnFd;
  write(0, 8);
  EXPECT_TRUE(shm::is_armed(armed));
  write(0, 8);
  EXPECT_EQ(fired(100), 2u);
  EXPECT_FALSE(shm::is_armed(armed));
}

// A process that has mapped the tables has nobody to ring.
TEST_F(Image, WithoutARingerPostsAllTheSame) {
  nic.ringer = nullptr;
  signals->queues[7].sleeping = shm::kSleepsOnFd;
  post_event(nic, 7, 2);
  EXPECT_EQ(signals->queues[7].leaf[0].load(), 0b100u);
}

}  // namespace
}  // namespace clan::nic
