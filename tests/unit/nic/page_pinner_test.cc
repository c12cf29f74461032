#include "nic/page_pinner.h"

#include <clan/tlb.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CLAN_TEST_MLOCK_IS_STUBBED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CLAN_TEST_MLOCK_IS_STUBBED 1
#endif
#endif

namespace clan::nic {
namespace {

constexpr std::uint64_t kPinnedPage = 4096;

class PinnedPages {
 public:
  explicit PinnedPages(std::size_t count, int protection = PROT_READ | PROT_WRITE)
      : bytes_(count * kPinnedPage),
        start_(::mmap(nullptr, bytes_, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~PinnedPages() { ::munmap(start_, bytes_); }
  std::uint64_t vaddr(std::size_t page = 0) const {
    return reinterpret_cast<std::uint64_t>(start_) + page * kPinnedPage;
  }
  void touch() { std::memset(start_, 1, bytes_); }

 private:
  std::size_t bytes_;
  void* start_;
};

std::size_t locked_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    std::size_t kilobytes = 0;
    if (std::sscanf(line.c_str(), "VmLck: %zu", &kilobytes) == 1) return kilobytes;
  }
  return 0;
}

class PagePinnerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (PagePinner::page_size() != kPinnedPage) GTEST_SKIP() << "pages are not 4096 bytes here";
    auto made = create(PagePinner::Mode::kLock);
    if (!made.ok()) GTEST_SKIP() << made.error().message();
    pinner_ = std::move(*made);
    tlb_ = std::move(*Tlb::create({}, *pinner_));
  }
  static Result<std::unique_ptr<PagePinner>> create(PagePinner::Mode mode) {
    PagePinner::Options options;
    options.mode = mode;
    options.unmaps_are_reported = true;
    return PagePinner::create(options);
  }
  std::unique_ptr<PagePinner> pinner_;
  std::unique_ptr<Tlb> tlb_;
};

TEST_F(PagePinnerTest, LocksPresentPagesAndUnlocksThem) {
  PinnedPages pages(4);
  pages.touch();
  std::size_t before = locked_kilobytes();
  {
    TlbUse use = tlb_->acquire(0, pages.vaddr() + 10, 3 * kPinnedPage, PageAccess::kWrite);
    ASSERT_TRUE(use.ready());
    EXPECT_EQ(use.address(pages.vaddr() + 10), pages.vaddr() + 10);
    EXPECT_EQ(PagePinner::locked_pages(), 4u);
#ifndef CLAN_TEST_MLOCK_IS_STUBBED
    EXPECT_EQ(locked_kilobytes(), before + 16);
#endif
  }
  tlb_->invalidate(0);
  EXPECT_EQ(PagePinner::locked_pages(), 0u);
  EXPECT_EQ(locked_kilobytes(), before);
}

TEST_F(PagePinnerTest, DefersUntouchedPagesAndFetchesThemLater) {
  PinnedPages pages(8);
  TlbUse use = tlb_->acquire(0, pages.vaddr(), 8 * kPinnedPage, PageAccess::kWrite);
  EXPECT_EQ(use.outcome(), RangeOutcome::kDeferred);
  EXPECT_EQ(use.stopped_at(), pages.vaddr());
  EXPECT_TRUE(pinner_->has_deferred());
  EXPECT_EQ(tlb_->acquire(0, pages.vaddr(), 8 * kPinnedPage, PageAccess::kWrite).outcome(),
            RangeOutcome::kDeferred);
  EXPECT_EQ(pinner_->resolve_deferred(), 1u) << "one page-in for both attempts";
  EXPECT_FALSE(pinner_->has_deferred());
  EXPECT_TRUE(tlb_->acquire(0, pages.vaddr(), 8 * kPinnedPage, PageAccess::kWrite).ready());
}

TEST_F(PagePinnerTest, RefusesWhatTheProcessMayNotTouch) {
  PinnedPages readable(1, PROT_READ);
  PinnedPages closed(1, PROT_NONE);
  PinnedPages hole(3);
  hole.touch();
  ::munmap(reinterpret_cast<void*>(hole.vaddr(1)), kPinnedPage);
  auto settle = [&](std::uint64_t vaddr, std::uint64_t length, PageAccess access) {
    TlbUse use = tlb_->acquire(0, vaddr, length, access);
    for (int i = 0; i < 4 && use.outcome() == RangeOutcome::kDeferred; ++i) {
      pinner_->resolve_deferred();
      use = tlb_->acquire(0, vaddr, length, access);
    }
    return use.ready() ? 0 : use.error();
  };
  EXPECT_EQ(settle(readable.vaddr(), 1, PageAccess::kWrite), EFAULT);
  EXPECT_EQ(settle(readable.vaddr(), 1, PageAccess::kRead), 0);
  EXPECT_EQ(settle(readable.vaddr(), 1, PageAccess::kWrite), EFAULT);
  EXPECT_EQ(settle(closed.vaddr(), 1, PageAccess::kRead), EFAULT);
  EXPECT_EQ(settle(hole.vaddr(), 3 * kPinnedPage, PageAccess::kRead), EFAULT);
  EXPECT_EQ(settle(hole.vaddr(), kPinnedPage, PageAccess::kRead), 0);
  EXPECT_EQ(settle(0, 1, PageAccess::kRead), EFAULT);
  EXPECT_EQ(settle(~std::uint64_t{0}, 1, PageAccess::kRead), EFAULT);
  EXPECT_EQ(settle(std::uint64_t{1} << 63, kPinnedPage, PageAccess::kRead), EFAULT);
  EXPECT_EQ(settle(0xffffffffff600000, 1, PageAccess::kRead), EFAULT);
}

TEST_F(PagePinnerTest, TwoTlbsLockAPageUntilTheLastLetsGo) {
  PinnedPages pages(1);
  pages.touch();
  auto other_pinner = std::move(*create(PagePinner::Mode::kLock));
  auto other = std::move(*Tlb::create({}, *other_pinner));
  EXPECT_TRUE(tlb_->translate(0, pages.vaddr(), PageAccess::kRead).ok());
  EXPECT_TRUE(other->translate(0, pages.vaddr(), PageAccess::kRead).ok());
  EXPECT_EQ(PagePinner::locked_pages(), 1u);
  other.reset();
  EXPECT_EQ(PagePinner::locked_pages(), 1u);
  tlb_->invalidate(0);
  EXPECT_EQ(PagePinner::locked_pages(), 0u);
}

TEST_F(PagePinnerTest, ALateUnpinOfAFormerMappingDoesNothing) {
  PinnedPages pages(1);
  pages.touch();
  auto other = std::move(*Tlb::create({}, *pinner_));
  EXPECT_TRUE(tlb_->translate(0, pages.vaddr(), PageAccess::kRead).ok());
  EXPECT_TRUE(other->translate(0, pages.vaddr(), PageAccess::kRead).ok());
  tlb_->invalidate(0, pages.vaddr(), kPinnedPage);  // unmapped, and mapped again
  EXPECT_TRUE(tlb_->translate(0, pages.vaddr(), PageAccess::kRead).ok());
  EXPECT_EQ(PagePinner::locked_pages(), 1u);
  other.reset();
  EXPECT_EQ(PagePinner::locked_pages(), 1u) << "its pin was of the mapping before";
}

TEST_F(PagePinnerTest, ManyPagesComeAndGo) {
  PinnedPages pages(3000);
  pages.touch();
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    ASSERT_TRUE(tlb_->translate(0, pages.vaddr(random() % 3000), PageAccess::kRead).ok());
  }
  EXPECT_EQ(PagePinner::locked_pages(), tlb_->stats().pinned);
  EXPECT_LE(tlb_->stats().pinned_high_water, 1024u + 16u + 1u);
  tlb_->invalidate(0);
  EXPECT_EQ(PagePinner::locked_pages(), 0u);
}

TEST_F(PagePinnerTest, PopulateModeLeavesNoTrace) {
  PinnedPages pages(4);
  pages.touch();
  auto quiet = std::move(*create(PagePinner::Mode::kPopulate));
  auto tlb = std::move(*Tlb::create({}, *quiet));
  std::size_t before = locked_kilobytes();
  EXPECT_TRUE(tlb->acquire(0, pages.vaddr(), 4 * kPinnedPage, PageAccess::kWrite).ready());
  EXPECT_EQ(locked_kilobytes(), before);
  EXPECT_EQ(::madvise(reinterpret_cast<void*>(pages.vaddr()), kPinnedPage, MADV_DONTNEED), 0);
}

// mremap takes the kernel's locks along, and the table knows pages by where they were.
TEST_F(PagePinnerTest, UnlocksPagesThatHaveMovedWhereTheyAreNow) {
  PinnedPages pages(4);
  pages.touch();
  const std::size_t before = locked_kilobytes();
  ASSERT_TRUE(tlb_->acquire(0, pages.vaddr(), 4 * kPinnedPage, PageAccess::kWrite).ready());
  PinnedPages room(4);
  void* const there =
      ::mremap(reinterpret_cast<void*>(pages.vaddr()), 4 * kPinnedPage, 4 * kPinnedPage,
               MREMAP_MAYMOVE | MREMAP_FIXED, reinterpret_cast<void*>(room.vaddr()));
  ASSERT_EQ(there, reinterpret_cast<void*>(room.vaddr()));
  pinner_->moved(pages.vaddr(), room.vaddr(), 4 * kPinnedPage);
  EXPECT_EQ(locked_kilobytes(), before);
  tlb_->invalidate(0, pages.vaddr(), 4 * kPinnedPage);
  EXPECT_EQ(PagePinner::locked_pages(), 0u);
}

TEST_F(PagePinnerTest, ForgetsNothingOfAPageThatIsLockedAgain) {
  PinnedPages pages(1);
  pages.touch();
  const std::uint64_t page = pages.vaddr() / kPinnedPage;
  PinnedPage first, second;
  ASSERT_EQ(pinner_->pin(0, page, PageAccess::kRead, {&first, 1}).outcome, PinOutcome::kPinned);
  pinner_->forget(0, page, first.token);
  ASSERT_EQ(pinner_->pin(0, page, PageAccess::kRead, {&second, 1}).outcome, PinOutcome::kPinned);
  EXPECT_NE(first.token, second.token);
  pinner_->forget(0, page, first.token);
  EXPECT_EQ(PagePinner::locked_pages(), 1u);
  pinner_->unpin(0, page, second.token);
  EXPECT_EQ(PagePinner::locked_pages(), 0u);
}

// Else a transfer could use what the application has unmapped meanwhile.
TEST(PagePinnerWithoutReports, AnswersForOneTransferOnly) {
  PinnedPages pages(1);
  pages.touch();
  for (const bool reported : {false, true}) {
    PagePinner::Options options;
    options.unmaps_are_reported = reported;
    auto pinner = PagePinner::create(options);
    if (!pinner.ok()) GTEST_SKIP() << pinner.error().message();
    PinnedPage out;
    ASSERT_EQ((*pinner)->pin(0, pages.vaddr() / kPinnedPage, PageAccess::kRead, {&out, 1}).outcome,
              PinOutcome::kPinned);
    EXPECT_EQ(out.transient, !reported);
  }
}

// Run in a child that has given up its privileges: 0 = as expected.
int lock_beyond_the_limit() {
  rlimit limit{8 * kPinnedPage, 8 * kPinnedPage};
  if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 2;
  if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) return 3;
  PagePinner::Options options;
  options.mode = PagePinner::Mode::kLock;
  options.unmaps_are_reported = true;
  auto pinner = std::move(*PagePinner::create(options));
  auto tlb = std::move(*Tlb::create({}, *pinner));
  PinnedPages pages(32);
  pages.touch();
  for (std::size_t i = 0; i < 32; ++i) {
    if (!tlb->translate(0, pages.vaddr(i), PageAccess::kRead).ok()) return 4;
  }
  if (tlb->stats().over_limit == 0 || tlb->stats().pinned > 8) return 5;
  if (tlb->stats().unpinned_fills != 0) return 6;
  TlbUse all = tlb->acquire(0, pages.vaddr(), 32 * kPinnedPage, PageAccess::kRead);
  if (!all.ready() || tlb->stats().unpinned_fills == 0) return 7;
  return 0;
}

TEST_F(PagePinnerTest, HonoursTheLimitOnLockedMemory) {
#ifdef CLAN_TEST_MLOCK_IS_STUBBED
  GTEST_SKIP() << "the sanitizer's mlock does nothing";
#endif
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(lock_beyond_the_limit());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace clan::nic
