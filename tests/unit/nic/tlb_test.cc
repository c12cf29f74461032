#include <clan/tlb.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace clan {
namespace {

constexpr std::uint64_t kPage = 4096;
using Key = std::pair<AddressSpaceId, std::uint64_t>;

// A kernel that remembers everything and insists on matching pins with unpins.
class FakePinner : public Pinner {
 public:
  PinResult pin(AddressSpaceId asid, std::uint64_t page, PageAccess access,
                std::span<PinnedPage> out) override {
    ++calls;
    for (std::size_t i = 0; i < out.size(); ++i) {
      Key key{asid, page + i};
      if (faulty.count(key) != 0) return {PinOutcome::kFault, i};
      if (access == PageAccess::kWrite && read_only.count(key) != 0) return {PinOutcome::kFault, i};
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (absent.count({asid, page + i}) != 0) return {PinOutcome::kNotResident, i};
    }
    bool over = pinned_pages() + out.size() > limit;
    for (std::size_t i = 0; i < out.size(); ++i) {
      Key key{asid, page + i};
      std::uint64_t frame = frames.count(key) != 0 ? frames[key] : (page + i) * kPage;
      out[i] = {frame, ++last_token, access == PageAccess::kWrite, transient};
      if (!over) pins[key].insert(last_token);
    }
    return {over ? PinOutcome::kOverLimit : PinOutcome::kPinned, 0};
  }
  void unpin(AddressSpaceId asid, std::uint64_t page, std::uint64_t token) override {
    EXPECT_EQ((pins[{asid, page}].erase(token)), 1u) << "unpin without pin, page " << page;
    order.push_back(page);
  }
  void forget(AddressSpaceId asid, std::uint64_t page, std::uint64_t token) override {
    EXPECT_EQ((pins[{asid, page}].erase(token)), 1u) << "forget without pin, page " << page;
    ++forgotten;
  }
  bool is_pinned(AddressSpaceId asid, std::uint64_t page) const {
    auto it = pins.find({asid, page});
    return it != pins.end() && !it->second.empty();
  }
  std::size_t pinned_pages() const {
    std::size_t sum = 0;
    for (const auto& [key, tokens] : pins) sum += tokens.size();
    return sum;
  }

  std::map<Key, std::set<std::uint64_t>> pins;
  std::map<Key, std::uint64_t> frames;
  std::set<Key> absent, faulty, read_only;
  std::vector<std::uint64_t> order;  // of unpins
  std::size_t limit = ~std::size_t{0};
  std::size_t calls = 0, forgotten = 0;
  std::uint64_t last_token = 0;
  bool transient = false;
};

class TlbTest : public ::testing::Test {
 protected:
  Tlb& make(TlbConfig config = {}) {
    Result<std::unique_ptr<Tlb>> made = Tlb::create(config, pinner_);
    EXPECT_TRUE(made.ok());
    tlb_ = std::move(*made);
    return *tlb_;
  }
  Tlb& make_small(std::size_t primary, std::size_t victims, std::size_t most = 0) {
    TlbConfig config;
    config.primary_entries = primary;
    config.victim_entries = victims;
    config.max_entries = most;
    return make(config);
  }
  Lookup read(std::uint64_t page, AddressSpaceId asid = 0) {
    return tlb_->translate(asid, page * kPage, PageAccess::kRead).lookup;
  }
  FakePinner pinner_;
  std::unique_ptr<Tlb> tlb_;
};

TEST_F(TlbTest, PinsAPageWhileItHasAnEntry) {
  Tlb& tlb = make();
  EXPECT_EQ(read(7), Lookup::kMissFilled);
  EXPECT_TRUE(pinner_.is_pinned(0, 7));
  EXPECT_EQ(read(7), Lookup::kHit);
  EXPECT_EQ(pinner_.calls, 1u);
  EXPECT_EQ(tlb.stats().pinned, 1u);
  tlb_.reset();
  EXPECT_EQ(pinner_.pinned_pages(), 0u);
}

TEST_F(TlbTest, TranslatesToTheFrameAndKeepsTheOffset) {
  Tlb& tlb = make();
  pinner_.frames[{3, 9}] = 0x77000;
  Translation found = tlb.translate(3, 9 * kPage + 123, PageAccess::kWrite);
  EXPECT_EQ(found.page_base, 0x77000u);
  EXPECT_EQ(found.address, 0x77000u + 123);
  EXPECT_TRUE(found.writable);
  EXPECT_TRUE(found.pinned);
}

TEST_F(TlbTest, KeepsAddressSpacesApart) {
  Tlb& tlb = make();
  pinner_.frames[{1, 5}] = 0x1000;
  pinner_.frames[{2, 5}] = 0x2000;
  EXPECT_EQ(tlb.translate(1, 5 * kPage, PageAccess::kRead).page_base, 0x1000u);
  EXPECT_EQ(tlb.translate(2, 5 * kPage, PageAccess::kRead).page_base, 0x2000u);
  EXPECT_NE(tlb.slot_of(1, 5 * kPage), tlb.slot_of(2, 5 * kPage));
}

TEST_F(TlbTest, SpreadsEightIdenticalAddressSpacesWithoutConflict) {
  Tlb& tlb = make();
  for (AddressSpaceId start = 0; start < 100; ++start) {
    std::set<std::size_t> slots;
    for (AddressSpaceId asid = start; asid < start + 8; ++asid) {
      for (std::uint64_t page = 0; page < 92; ++page) slots.insert(tlb.slot_of(asid, page * kPage));
    }
    EXPECT_EQ(slots.size(), 8u * 92u) << "first address space " << start;
  }
}

TEST_F(TlbTest, SwapsAVictimBackWithoutPinningAgain) {
  Tlb& tlb = make_small(4, 2);
  EXPECT_EQ(read(0), Lookup::kMissFilled);
  EXPECT_EQ(read(4), Lookup::kMissFilled);  // same slot: 0 is a victim now
  EXPECT_EQ(read(0), Lookup::kHit);
  EXPECT_EQ(read(4), Lookup::kHit);
  EXPECT_EQ(tlb.stats().victim_hits, 2u);
  EXPECT_EQ(pinner_.calls, 2u);
  EXPECT_EQ(tlb.stats().evictions, 0u);
}

TEST_F(TlbTest, UnpinsVictimsInTheOrderTheyCame) {
  make_small(1, 3);
  for (std::uint64_t page = 0; page < 8; ++page) read(page);
  EXPECT_EQ(pinner_.order, (std::vector<std::uint64_t>{0, 1, 2, 3}));
}

TEST_F(TlbTest, WithoutVictimsIsDirectMapped) {
  make_small(4, 0);
  read(0);
  read(4);
  EXPECT_FALSE(pinner_.is_pinned(0, 0));
  EXPECT_EQ(read(0), Lookup::kMissFilled);
}

TEST_F(TlbTest, NeverEvictsAPageInUseAndShrinksAfterwards) {
  Tlb& tlb = make_small(4, 2);
  std::vector<TlbUse> uses;
  for (std::uint64_t page = 0; page < 10; ++page) {
    uses.push_back(tlb.acquire(0, page * kPage, 1, PageAccess::kRead));
    ASSERT_TRUE(uses.back().ready());
  }
  EXPECT_EQ(tlb.stats().evictions, 0u);
  EXPECT_EQ(tlb.stats().entries, 10u);
  for (std::uint64_t page = 0; page < 10; ++page) EXPECT_TRUE(pinner_.is_pinned(0, page));
  uses.clear();
  EXPECT_EQ(tlb.stats().entries, 6u);
  EXPECT_EQ(pinner_.order, (std::vector<std::uint64_t>{0, 1, 2, 3}));
}

TEST_F(TlbTest, DefersWhenEveryEntryIsInUse) {
  Tlb& tlb = make_small(2, 1, 4);
  std::vector<TlbUse> uses;
  for (std::uint64_t page = 0; page < 4; ++page) {
    uses.push_back(tlb.acquire(0, page * kPage, 1, PageAccess::kRead));
    ASSERT_TRUE(uses.back().ready());
  }
  TlbUse more = tlb.acquire(0, 9 * kPage, 1, PageAccess::kRead);
  EXPECT_EQ(more.outcome(), RangeOutcome::kDeferred);
  EXPECT_EQ(tlb.stats().full, 1u);
  EXPECT_FALSE(pinner_.is_pinned(0, 9));
  uses.clear();
  EXPECT_TRUE(tlb.acquire(0, 9 * kPage, 1, PageAccess::kRead).ready());
}

TEST_F(TlbTest, PinsARunOfMissingPagesWithOneCall) {
  Tlb& tlb = make();
  TlbUse use = tlb.acquire(0, 100 * kPage + 10, 40 * kPage, PageAccess::kRead);
  ASSERT_TRUE(use.ready());
  EXPECT_EQ(pinner_.calls, 1u);
  EXPECT_EQ(tlb.stats().pins, 41u);
  EXPECT_EQ(use.address(100 * kPage + 10), 100 * kPage + 10);
}

TEST_F(TlbTest, AnAddressIsInTheFrameOfItsPage) {
  Tlb& tlb = make();
  pinner_.frames[{0, 12}] = 0x99000;
  TlbUse use = tlb.acquire(0, 10 * kPage + 96, 4 * kPage, PageAccess::kRead);
  ASSERT_TRUE(use.ready());
  EXPECT_EQ(use.address(10 * kPage + 96), 10 * kPage + 96);
  EXPECT_EQ(use.address(12 * kPage + 5), 0x99000u + 5);
}

TEST_F(TlbTest, DefersAPageThatIsNotResidentAndHoldsNothing) {
  Tlb& tlb = make();
  pinner_.absent.insert({0, 12});
  TlbUse use = tlb.acquire(0, 10 * kPage, 5 * kPage, PageAccess::kRead);
  EXPECT_EQ(use.outcome(), RangeOutcome::kDeferred);
  EXPECT_EQ(use.stopped_at(), 12 * kPage);
  EXPECT_EQ(tlb.stats().deferred, 1u);
  EXPECT_EQ(read(20), Lookup::kMissFilled) << "others go on";
  EXPECT_EQ(read(12), Lookup::kDeferred);
  pinner_.absent.clear();
  EXPECT_TRUE(tlb.acquire(0, 10 * kPage, 5 * kPage, PageAccess::kRead).ready());
}

TEST_F(TlbTest, RefusesAPageThatMayNotBeUsed) {
  Tlb& tlb = make();
  pinner_.faulty.insert({0, 3});
  EXPECT_EQ(read(3), Lookup::kFault);
  EXPECT_EQ(tlb.translate(0, 3 * kPage, PageAccess::kRead).error, EFAULT);
  TlbUse use = tlb.acquire(0, kPage, 4 * kPage, PageAccess::kRead);
  EXPECT_EQ(use.outcome(), RangeOutcome::kFault);
  EXPECT_EQ(use.error(), EFAULT);
  EXPECT_EQ(use.stopped_at(), 3 * kPage);
  EXPECT_EQ(pinner_.pinned_pages(), 0u);
}

TEST_F(TlbTest, AsksAgainForTheRightToWrite) {
  Tlb& tlb = make();
  EXPECT_FALSE(tlb.translate(0, kPage, PageAccess::kRead).writable);
  Translation written = tlb.translate(0, kPage, PageAccess::kWrite);
  EXPECT_EQ(written.lookup, Lookup::kHit);
  EXPECT_TRUE(written.writable);
  EXPECT_EQ(tlb.stats().upgrades, 1u);
  EXPECT_EQ(pinner_.pinned_pages(), 1u);
  pinner_.read_only.insert({0, 2});
  EXPECT_EQ(read(2), Lookup::kMissFilled);
  EXPECT_EQ(tlb.translate(0, 2 * kPage, PageAccess::kWrite).lookup, Lookup::kFault);
  EXPECT_EQ(read(2), Lookup::kHit) << "the right to read stays";
}

TEST_F(TlbTest, ATransferKeepsItsFrameWhenAWriteCopiesThePage) {
  Tlb& tlb = make();
  pinner_.frames[{0, 1}] = 0x10000;
  TlbUse reader = tlb.acquire(0, kPage, 100, PageAccess::kRead);
  pinner_.frames[{0, 1}] = 0x20000;
  TlbUse writer = tlb.acquire(0, kPage, 100, PageAccess::kWrite);
  EXPECT_EQ(reader.address(kPage), 0x10000u);
  EXPECT_EQ(writer.address(kPage), 0x20000u);
  EXPECT_EQ(pinner_.pinned_pages(), 2u);
  reader.release();
  EXPECT_EQ(pinner_.pinned_pages(), 1u);
  EXPECT_EQ(writer.address(kPage), 0x20000u);
}

TEST_F(TlbTest, InvalidationHidesAPageInUseAndDropsItAtTheEnd) {
  Tlb& tlb = make();
  pinner_.frames[{0, 1}] = 0x10000;
  TlbUse old_use = tlb.acquire(0, kPage, 100, PageAccess::kRead);
  EXPECT_EQ(tlb.invalidate(0, kPage, 1, Tlb::Mapping::kKept), 1u);
  EXPECT_FALSE(tlb.contains(0, kPage));
  EXPECT_TRUE(pinner_.is_pinned(0, 1));
  pinner_.frames[{0, 1}] = 0x20000;
  TlbUse new_use = tlb.acquire(0, kPage, 100, PageAccess::kRead);
  EXPECT_EQ(old_use.address(kPage), 0x10000u);
  EXPECT_EQ(new_use.address(kPage), 0x20000u);
  new_use.release();
  EXPECT_EQ(old_use.address(kPage), 0x10000u);
  old_use.release();
  EXPECT_TRUE(tlb.contains(0, kPage));
  EXPECT_EQ(pinner_.pinned_pages(), 1u);
}

TEST_F(TlbTest, ForgetsRatherThanUnpinsWhatIsNoLongerMapped) {
  Tlb& tlb = make();
  read(1);
  TlbUse use = tlb.acquire(0, 2 * kPage, 1, PageAccess::kRead);
  EXPECT_EQ(tlb.invalidate(0, 0, 10 * kPage), 2u);
  EXPECT_EQ(pinner_.forgotten, 2u);
  EXPECT_TRUE(pinner_.order.empty());
  EXPECT_EQ(tlb.stats().pinned, 0u);
  use.release();
  EXPECT_EQ(tlb.stats().entries, 0u);
}

TEST_F(TlbTest, ClosingAnEndpointUnpinsItsPagesOnly) {
  Tlb& tlb = make();
  for (std::uint64_t page = 0; page < 50; ++page) {
    read(page, 1);
    read(page, 2);
  }
  EXPECT_EQ(tlb.invalidate(1), 50u);
  EXPECT_EQ(pinner_.pinned_pages(), 50u);
  EXPECT_FALSE(tlb.contains(1, 0));
  EXPECT_TRUE(tlb.contains(2, 0));
}

TEST_F(TlbTest, GivesUpIdlePagesAtTheLimitOnLockedMemory) {
  Tlb& tlb = make();
  pinner_.limit = 8;
  for (std::uint64_t page = 0; page < 20; ++page) EXPECT_EQ(read(page), Lookup::kMissFilled);
  EXPECT_EQ(tlb.stats().pinned, 8u);
  EXPECT_EQ(tlb.stats().over_limit, 12u);
  EXPECT_EQ(tlb.stats().unpinned_fills, 0u);
  EXPECT_EQ(tlb.stats().evictions, 12u);
}

TEST_F(TlbTest, GoesOnWithoutPinsWhenNothingCanBeGivenUp) {
  Tlb& tlb = make();
  pinner_.limit = 4;
  TlbUse holds = tlb.acquire(0, 0, 4 * kPage, PageAccess::kRead);
  TlbUse more = tlb.acquire(0, 100 * kPage, 3 * kPage, PageAccess::kRead);
  EXPECT_TRUE(more.ready());
  EXPECT_EQ(tlb.stats().unpinned_fills, 3u);
  EXPECT_FALSE(tlb.translate(0, 100 * kPage, PageAccess::kRead).pinned);
  EXPECT_EQ(pinner_.pinned_pages(), 4u);
}

TEST_F(TlbTest, TransientEntriesEndWithTheirTransfer) {
  Tlb& tlb = make();
  pinner_.transient = true;
  TlbUse use = tlb.acquire(0, kPage, 2 * kPage, PageAccess::kRead);
  EXPECT_TRUE(tlb.contains(0, kPage));
  use.release();
  EXPECT_FALSE(tlb.contains(0, kPage));
  EXPECT_EQ(pinner_.pinned_pages(), 0u);
  EXPECT_EQ(read(1), Lookup::kMissFilled);
  EXPECT_FALSE(tlb.contains(0, kPage));
}

TEST_F(TlbTest, PreTranslatesReceiveBuffersForWriting) {
  Tlb& tlb = make();
  EXPECT_TRUE(tlb.acquire(0, 0, 64 * kPage, PageAccess::kWrite).ready());
  std::size_t calls = pinner_.calls;
  for (std::uint64_t page = 0; page < 64; ++page) {
    EXPECT_EQ(tlb.translate(0, page * kPage, PageAccess::kWrite).lookup, Lookup::kHit);
  }
  EXPECT_EQ(pinner_.calls, calls);
}

TEST_F(TlbTest, TellsFirstTouchesFromRepeatedMisses) {
  TlbConfig config;
  config.primary_entries = 2;
  config.victim_entries = 0;
  config.track_compulsory = true;
  Tlb& tlb = make(config);
  for (std::uint64_t page : {0, 2, 0, 2}) read(page);
  EXPECT_EQ(tlb.stats().compulsory_misses, 2u);
  EXPECT_EQ(tlb.stats().non_compulsory_misses(), 2u);
}

TEST_F(TlbTest, RefusesRangesThatWrapAndServesTheLastPage) {
  Tlb& tlb = make();
  constexpr std::uint64_t kTop = ~std::uint64_t{0};
  for (std::uint64_t length : {std::uint64_t{2}, kPage, kTop}) {
    TlbUse use = tlb.acquire(0, kTop, length, PageAccess::kRead);
    EXPECT_EQ(use.error(), EFAULT) << length;
  }
  EXPECT_EQ(tlb.acquire(0, 0, kTop, PageAccess::kRead).error(), EMSGSIZE);
  EXPECT_EQ(tlb.acquire(0, 1, kTop, PageAccess::kRead).error(), EMSGSIZE);
  EXPECT_EQ(tlb.acquire(0, 1 << 20, 1025 * kPage, PageAccess::kRead).error(), EMSGSIZE);
  EXPECT_TRUE(tlb.acquire(0, 1 << 20, 1024 * kPage, PageAccess::kRead).ready());
  EXPECT_EQ(tlb.translate(~0u, kTop, PageAccess::kRead).lookup, Lookup::kMissFilled);
  {
    TlbUse use = tlb.acquire(~0u, kTop, 1, PageAccess::kRead);
    EXPECT_TRUE(use.ready());
    EXPECT_EQ(use.address(kTop), kTop);
  }
  EXPECT_EQ(tlb.invalidate(~0u, kTop - 5, kTop), 1u) << "clamped, not wrapped";
  EXPECT_EQ(tlb.invalidate(0, 0, 0), 0u);
  EXPECT_TRUE(tlb.acquire(0, kTop, 0, PageAccess::kRead).ready());
}

TEST_F(TlbTest, RefusesSizesThatMakeNoSense) {
  auto error_of = [&](std::size_t primary, std::size_t page, std::size_t most) {
    TlbConfig config;
    config.primary_entries = primary;
    config.page_size = page;
    config.max_entries = most;
    auto made = Tlb::create(config, pinner_);
    return made.ok() ? 0 : made.error().err;
  };
  EXPECT_EQ(error_of(0, 4096, 0), EINVAL);
  EXPECT_EQ(error_of(1000, 4096, 0), EINVAL);
  EXPECT_EQ(error_of(1024, 4095, 0), EINVAL);
  EXPECT_EQ(error_of(1024, 0, 0), EINVAL);
  EXPECT_EQ(error_of(std::size_t{1} << 63, 4096, 0), EINVAL);
  EXPECT_EQ(error_of(1024, 4096, 1040), EINVAL);
  EXPECT_EQ(error_of(1, 4096, 0), 0);
}

TEST_F(TlbTest, AMovedUseIsReleasedOnce) {
  Tlb& tlb = make_small(4, 0);
  TlbUse a = tlb.acquire(0, 0, 1, PageAccess::kRead);
  TlbUse b = std::move(a);
  a.release();  // NOLINT(bugprone-use-after-move): on purpose
  EXPECT_TRUE(b.ready());
  TlbUse c;
  c = std::move(b);
  read(4);
  EXPECT_TRUE(pinner_.is_pinned(0, 0));
  c.release();
  c.release();
  EXPECT_FALSE(pinner_.is_pinned(0, 0));
}

// ---- against a naive model ----

class Model {
 public:
  struct Entry {
    Key key;
    int uses = 0;
  };
  using Ref = std::shared_ptr<Entry>;

  Model(const Tlb& tlb, std::size_t victims) : tlb_(tlb), most_victims_(victims) {}

  Ref find(Key key) {
    auto it = primary_.find(slot(key));
    if (it != primary_.end() && it->second->key == key) return it->second;
    for (const Ref& victim : victims_) {
      if (victim->key == key) return victim;
    }
    return nullptr;
  }
  // One look-up: true for a hit. The entry gets one use.
  std::pair<bool, Ref> touch(Key key) {
    Ref entry = find(key);
    bool hit = entry != nullptr;
    if (!hit) entry = std::make_shared<Entry>(Entry{key});
    ++entry->uses;
    auto in_victims = std::find(victims_.begin(), victims_.end(), entry);
    if (in_victims != victims_.end()) victims_.erase(in_victims);
    Ref& home = primary_[slot(key)];
    if (home != entry) {
      if (home != nullptr) victims_.push_back(home);
      home = entry;
      trim();
    }
    return {hit, entry};
  }
  void trim() {
    while (victims_.size() > most_victims_) {
      auto idle = std::find_if(victims_.begin(), victims_.end(),
                               [](const Ref& entry) { return entry->uses == 0; });
      if (idle == victims_.end()) return;
      victims_.erase(idle);
    }
  }
  std::size_t invalidate(AddressSpaceId asid, std::uint64_t first, std::uint64_t last) {
    auto hit = [&](const Ref& entry) {
      return entry->key.first == asid && entry->key.second >= first && entry->key.second <= last;
    };
    std::size_t gone = std::erase_if(victims_, hit);
    gone += std::erase_if(primary_, [&](const auto& pair) { return hit(pair.second); });
    trim();
    return gone;
  }
  std::size_t size() const { return primary_.size() + victims_.size(); }

 private:
  std::size_t slot(Key key) const { return tlb_.slot_of(key.first, key.second * kPage); }
  const Tlb& tlb_;
  std::size_t most_victims_;
  std::map<std::size_t, Ref> primary_;
  std::deque<Ref> victims_;
};

class TlbModel : public ::testing::TestWithParam<std::tuple<std::size_t, std::size_t>> {};

TEST_P(TlbModel, BehavesLikeMapsAndQueues) {
  constexpr AddressSpaceId kSpaces = 3;
  constexpr std::uint64_t kPages = 24;
#if defined(__SANITIZE_ADDRESS__)
  constexpr std::uint32_t kSeeds = 2;  // each takes fifty times as long
#else
  constexpr std::uint32_t kSeeds = 6;
#endif
  auto [primary, victims] = GetParam();
  for (std::uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FakePinner pinner;
    TlbConfig config;
    config.primary_entries = primary;
    config.victim_entries = victims;
    config.max_entries = 512;
    std::unique_ptr<Tlb> tlb = std::move(*Tlb::create(config, pinner));
    Model model(*tlb, victims);
    struct Held {
      TlbUse use;
      std::vector<Model::Ref> entries;
    };
    std::vector<Held> held;
    std::mt19937 random(seed);
    auto below = [&](std::uint64_t n) { return random() % n; };
    for (int step = 0; step < 4000; ++step) {
      AddressSpaceId asid = static_cast<AddressSpaceId>(below(kSpaces));
      std::uint64_t page = below(kPages);
      std::uint64_t pages = 1 + below(std::min<std::uint64_t>(primary, 4));
      switch (below(8)) {
        case 0: {  // a transfer begins
          if (held.size() > 6) break;
          Held one;
          one.use = tlb->acquire(asid, page * kPage, pages * kPage, PageAccess::kRead);
          ASSERT_TRUE(one.use.ready());
          for (std::uint64_t i = 0; i < pages; ++i) {
            one.entries.push_back(model.touch({asid, page + i}).second);
          }
          held.push_back(std::move(one));
          break;
        }
        case 1: {  // a transfer ends
          if (held.empty()) break;
          std::size_t which = below(held.size());
          held[which].use.release();
          for (const Model::Ref& entry : held[which].entries) --entry->uses;
          model.trim();
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
          break;
        }
        case 2: {
          if (below(10) != 0) break;
          bool gone = below(2) == 0;
          ASSERT_EQ(tlb->invalidate(asid, page * kPage, pages * kPage,
                                    gone ? Tlb::Mapping::kGone : Tlb::Mapping::kKept),
                    model.invalidate(asid, page, page + pages - 1));
          break;
        }
        case 3: {
          if (below(100) != 0) break;
          ASSERT_EQ(tlb->invalidate(asid), model.invalidate(asid, 0, ~std::uint64_t{0}));
          break;
        }
        default: {
          Translation found = tlb->translate(
              asid, page * kPage + 17, below(2) == 0 ? PageAccess::kRead : PageAccess::kWrite);
          auto [hit, entry] = model.touch({asid, page});
          --entry->uses;
          model.trim();
          ASSERT_EQ(found.lookup == Lookup::kHit, hit) << "step " << step;
          ASSERT_EQ(found.address, page * kPage + 17);
        }
      }
      ASSERT_EQ(tlb->stats().entries, model.size()) << "step " << step;
      ASSERT_EQ(tlb->stats().pinned, pinner.pinned_pages());
      for (AddressSpaceId a = 0; a < kSpaces; ++a) {
        for (std::uint64_t p = 0; p < kPages + 4; ++p) {
          ASSERT_EQ(tlb->contains(a, p * kPage), model.find({a, p}) != nullptr)
              << "step " << step << " space " << a << " page " << p;
          ASSERT_TRUE(!tlb->contains(a, p * kPage) || pinner.is_pinned(a, p));
        }
      }
    }
    held.clear();
    tlb.reset();
    EXPECT_EQ(pinner.pinned_pages(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, TlbModel,
                         ::testing::Values(std::tuple{1, 0}, std::tuple{1, 3}, std::tuple{4, 2},
                                           std::tuple{8, 2}, std::tuple{16, 4},
                                           std::tuple{64, 16}));

}  // namespace
}  // namespace clan
