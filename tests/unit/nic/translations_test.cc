#include "nic/translations.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

namespace clan::nic {
namespace {

class Pages {
 public:
  explicit Pages(std::size_t count, bool touched = true, int kind = MAP_PRIVATE)
      : bytes_(count * PagePinner::page_size()),
        start_(static_cast<std::byte*>(
            ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0))) {
    if (touched) std::memset(start_, 1, bytes_);
  }
  ~Pages() { unmap(); }
  std::byte* at(std::size_t page = 0) { return start_ + page * PagePinner::page_size(); }
  void unmap() { ::munmap(std::exchange(start_, nullptr), std::exchange(bytes_, 0)); }

 private:
  std::size_t bytes_;
  std::byte* start_;
};

std::unique_ptr<Translations> make(bool keep, std::size_t entries = 64, bool lock = false) {
  Translations::Options options;
  options.keep = keep;
  options.tlb.primary_entries = entries;
  options.tlb.victim_entries = 4;
  if (lock) options.mode = PagePinner::Mode::kLock;
  auto made = Translations::create(options);
  return made.ok() ? std::move(*made) : nullptr;
}

class TranslationsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    translations_ = make(true);
    if (translations_ == nullptr) GTEST_SKIP() << "no MADV_POPULATE_READ here";
    if (!translations_->keeps()) GTEST_SKIP() << translations_->why_not().message();
  }
  std::unique_ptr<Translations> translations_;
  std::array<std::byte, 64> local_{};
};

TEST_F(TranslationsTest, AnEntryOutlivesItsTransfer) {
  Pages pages(1);
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(translations_->copy_from(local_.data(), pages.at(), local_.size()), 0);
  const TlbStats stats = translations_->stats();
  EXPECT_EQ(stats.misses, 1u);
  EXPECT_EQ(stats.hits, 9u);
  EXPECT_EQ(stats.transient_fills, 0u);
  EXPECT_EQ(stats.entries, 1u);
}

TEST(Translations, GoWithTheirTransferWhenTheyAreNotKept) {
  auto translations = make(false);
  if (translations == nullptr) GTEST_SKIP() << "no MADV_POPULATE_READ here";
  Pages pages(1);
  std::array<std::byte, 64> local{};
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(translations->copy_from(local.data(), pages.at(), local.size()), 0);
  EXPECT_EQ(translations->stats().misses, 10u);
  EXPECT_EQ(translations->stats().entries, 0u);
}

// Red without rounds_: the entry is still there when munmap() returns.
TEST_F(TranslationsTest, NoEntryIsFoundBehindAnUnmap) {
  for (int i = 0; i < 2000; ++i) {
    Pages pages(1);
    std::byte* const at = pages.at();
    ASSERT_EQ(translations_->copy_to(at, local_.data(), local_.size()), 0);
    pages.unmap();
    // Something else may have been mapped there meanwhile, as a sanitizer does.
    const std::size_t size = PagePinner::page_size();
    void* const none =
        ::mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (none == at) {
      ASSERT_EQ(translations_->copy_to(at, local_.data(), local_.size()), EFAULT) << i;
    }
    if (none != MAP_FAILED) ::munmap(none, size);
  }
  EXPECT_GE(translations_->stats().invalidations, 2000u);
}

TEST_F(TranslationsTest, AMoveTakesTheEntryAlong) {
  Pages pages(1), room(1);
  ASSERT_EQ(translations_->copy_to(pages.at(), local_.data(), local_.size()), 0);
  void* const moved = ::mremap(pages.at(), PagePinner::page_size(), PagePinner::page_size(),
                               MREMAP_MAYMOVE | MREMAP_FIXED, room.at());
  ASSERT_EQ(moved, room.at());
  EXPECT_EQ(translations_->copy_to(pages.at(), local_.data(), local_.size()), EFAULT);
  EXPECT_EQ(translations_->copy_to(moved, local_.data(), local_.size()), 0);
}

TEST_F(TranslationsTest, RightsAreChecked) {
  Pages pages(2);
  ASSERT_EQ(::mprotect(pages.at(), PagePinner::page_size(), PROT_READ), 0);
  EXPECT_EQ(translations_->copy_from(local_.data(), pages.at(), 8), 0);
  EXPECT_EQ(translations_->copy_to(pages.at(), local_.data(), 8), EFAULT);
  EXPECT_EQ(translations_->copy_to(pages.at(1) - 4, local_.data(), 8), EFAULT)
      << "and no byte of it";
  EXPECT_EQ(*pages.at(1), std::byte{1});
  EXPECT_EQ(translations_->copy_from(local_.data(), nullptr, 8), EFAULT);
}

// Shared memory has a file behind it.
TEST_F(TranslationsTest, APageThatIsNotThereIsDeferred) {
  Pages pages(3, false, MAP_SHARED);
  EXPECT_EQ(translations_->copy_to(pages.at(), local_.data(), 8), EAGAIN);
  EXPECT_EQ(translations_->copy_to(pages.at(1), local_.data(), 8), EAGAIN);
  EXPECT_TRUE(translations_->has_deferred());
  EXPECT_TRUE(translations_->resolve());
  EXPECT_FALSE(translations_->resolve());
  EXPECT_EQ(translations_->copy_to(pages.at(), local_.data(), 8), 0);
}

TEST_F(TranslationsTest, PreTranslationBringsPagesIn) {
  Pages pages(3, false);
  EXPECT_EQ(
      translations_->pre_translate(pages.at(), 3 * PagePinner::page_size(), PageAccess::kWrite), 0);
  const std::uint64_t misses = translations_->stats().misses;
  EXPECT_EQ(translations_->copy_to(pages.at(2) - 4, local_.data(), 8), 0);
  EXPECT_EQ(translations_->stats().misses, misses);
  EXPECT_EQ(translations_->pre_translate(nullptr, 8, PageAccess::kRead), EFAULT);
  EXPECT_EQ(
      translations_->pre_translate(pages.at(), 65 * PagePinner::page_size(), PageAccess::kRead),
      EMSGSIZE);
}

TEST_F(TranslationsTest, NoMorePagesArePinnedThanThereAreEntries) {
  auto locks = make(true, 16, true);
  ASSERT_NE(locks, nullptr);
  if (!locks->keeps()) GTEST_SKIP() << locks->why_not().message();
  Pages pages(200);
  for (std::size_t i = 0; i < 200; ++i)
    ASSERT_EQ(locks->copy_to(pages.at(i), local_.data(), local_.size()), 0);
  EXPECT_LE(locks->stats().pinned, 20u);
  EXPECT_EQ(PagePinner::locked_pages(), locks->stats().pinned);
  EXPECT_EQ(locks->stats().pinned + locks->stats().evictions, 200u);
}

TEST_F(TranslationsTest, APageInUseIsNotEvicted) {
  auto few = make(true, 16);
  Pages pages(100);
  {
    const auto use = few->acquire(pages.at(0), 1, PageAccess::kWrite);
    ASSERT_EQ(use.outcome(), RangeOutcome::kReady);
    for (std::size_t i = 1; i < 100; ++i)
      ASSERT_EQ(few->copy_to(pages.at(i), local_.data(), local_.size()), 0);
    const TlbStats before = few->stats();
    ASSERT_EQ(few->copy_to(pages.at(0), local_.data(), local_.size()), 0);
    EXPECT_EQ(few->stats().misses, before.misses);
  }
}

TEST_F(TranslationsTest, ManyThreadsUseAndUnmapAtOnce) {
  std::atomic<bool> wrong{false};
  const auto work = [&](std::byte fill) {
    std::array<std::byte, 64> mine;
    mine.fill(fill);
    for (int i = 0; i < 300 && !wrong.load(); ++i) {
      Pages pages(2);
      std::byte* const at = pages.at(1) - 32;
      bool right = translations_->copy_to(at, mine.data(), mine.size()) == 0 &&
                   std::memcmp(at, mine.data(), mine.size()) == 0;
      pages.unmap();
      if (!right) wrong.store(true);
    }
  };
  std::thread first(work, std::byte{2}), second(work, std::byte{3});
  work(std::byte{4});
  first.join();
  second.join();
  EXPECT_FALSE(wrong.load());
}

TEST_F(TranslationsTest, AForkedChildUnmapsAtOnce) {
  Pages pages(1);
  ASSERT_EQ(translations_->copy_to(pages.at(), local_.data(), local_.size()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    pages.unmap();
    translations_.reset();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace clan::nic
