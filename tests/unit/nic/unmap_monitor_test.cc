#include "nic/unmap_monitor.h"

#include <clan/tlb.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "nic/page_pinner.h"

namespace clan::nic {
namespace {

constexpr std::uint64_t kPage = 4096;
using Bytes = unsigned char*;

Bytes map(std::size_t pages, unsigned char fill, void* at = nullptr) {
  int fixed = at == nullptr ? 0 : MAP_FIXED;
  void* p =
      ::mmap(at, pages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  std::memset(p, fill, pages * kPage);
  return static_cast<Bytes>(p);
}

// Keeps an address that was unmapped from being taken by somebody else. False: too late.
bool reserve(void* p, std::size_t pages = 1) {
  void* got =
      ::mmap(p, pages * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (got != MAP_FAILED && got != p) ::munmap(got, pages * kPage);
  return got == p;
}

std::uint64_t vaddr(const void* p) { return reinterpret_cast<std::uint64_t>(p); }

// A NIC driver: a lock, a Tlb. The tests are applications.
class Driver final : UnmapMonitor::Listener {
 public:
  Driver(std::shared_ptr<UnmapMonitor> monitor, PagePinner::Mode mode)
      : monitor_(std::move(monitor)) {
    PagePinner::Options options;
    options.mode = mode;
    options.monitor = monitor_.get();
    auto pinner = PagePinner::create(options);
    if (!pinner.ok()) return;
    pinner_ = std::move(*pinner);
    tlb_ = std::move(*Tlb::create({}, *pinner_));
    monitor_->add(*this);
  }
  ~Driver() override { monitor_->remove(*this); }
  bool usable() const { return tlb_ != nullptr; }

  /// Serves a request: reads `length` bytes at `from` through the Tlb. False = fault.
  bool copy(std::uint64_t from, void* to, std::uint64_t length) {
    for (;;) {
      {
        const auto lock = settled();
        TlbUse use = tlb_->acquire(0, from, length, PageAccess::kRead);
        if (use.outcome() == RangeOutcome::kFault) return false;
        if (use.ready()) {
          std::memcpy(to, reinterpret_cast<void*>(use.address(from)), length);
          return true;
        }
      }
      pinner_->resolve_deferred();
    }
  }
  /// Whether a page is translated without a page-in by another thread.
  bool is_there_at_once(const void* p) {
    const auto lock = settled();
    return tlb_->translate(0, vaddr(p), PageAccess::kWrite).ok();
  }
  bool has(const void* p) {
    const auto lock = settled();
    return tlb_->contains(0, vaddr(p));
  }
  std::uint64_t pinned() {
    const auto lock = settled();
    return tlb_->stats().pinned;
  }
  UnmapMonitor::Change last() {
    const auto lock = settled();
    return last_;
  }
  std::optional<unsigned char> first_byte(const void* p) {
    unsigned char byte = 0;
    if (!copy(vaddr(p), &byte, 1)) return std::nullopt;
    return byte;
  }

 private:
  std::unique_lock<std::mutex> settled() {
    monitor_->settle();
    return std::unique_lock(mutex_);
  }
  void on_change(const UnmapMonitor::Change& change) override {
    std::lock_guard lock(mutex_);
    last_ = change;
    bool kept = change.kind == UnmapMonitor::Kind::kEmptied;
    if (change.kind == UnmapMonitor::Kind::kMoved) {
      pinner_->moved(change.start, change.to, change.length);
    }
    tlb_->invalidate(0, change.start, change.length,
                     kept ? Tlb::Mapping::kKept : Tlb::Mapping::kGone);
  }
  void on_end() override {}

  std::shared_ptr<UnmapMonitor> monitor_;
  std::unique_ptr<PagePinner> pinner_;
  std::unique_ptr<Tlb> tlb_;
  std::mutex mutex_;
  UnmapMonitor::Change last_;
};

class UnmapMonitorTest : public ::testing::TestWithParam<PagePinner::Mode> {
 protected:
  void SetUp() override {
    auto monitor = UnmapMonitor::get();
    if (!monitor) GTEST_SKIP() << monitor.error().message();
    driver_ = std::make_unique<Driver>(std::move(*monitor), GetParam());
    if (!driver_->usable()) GTEST_SKIP() << "no page pinner here";
  }
  std::unique_ptr<Driver> driver_;
};

TEST_P(UnmapMonitorTest, ForgetsAPageThatIsUnmapped) {
  Bytes p = map(4, 'a');
  EXPECT_EQ(driver_->first_byte(p + kPage), 'a');
  EXPECT_TRUE(driver_->has(p + kPage));
  ::munmap(p, 4 * kPage);
  EXPECT_FALSE(driver_->has(p + kPage));
  EXPECT_EQ(driver_->pinned(), 0u);
  if (!reserve(p + kPage)) return;
  EXPECT_EQ(driver_->first_byte(p + kPage), std::nullopt);
  ::munmap(p + kPage, kPage);
}

TEST_P(UnmapMonitorTest, SeesNewContentAtAnOldAddress) {
  Bytes p = map(2, 0);
  for (int round = 0; round < 300; ++round) {
    auto fill = static_cast<unsigned char>(round);
    ::munmap(p, 2 * kPage);
    if (!reserve(p, 2)) p = nullptr;  // another thread's allocator was faster: go on elsewhere
    p = map(2, fill, p);
    ASSERT_NE(p, nullptr);
    ASSERT_EQ(driver_->first_byte(p), fill);
    ASSERT_EQ(driver_->first_byte(p + kPage), fill);
    ASSERT_TRUE(driver_->has(p));
  }
  ::munmap(p, 2 * kPage);
}

TEST_P(UnmapMonitorTest, HasUntouchedMemoryFilledAtOnce) {
  Bytes p = map(2, 0);
  ASSERT_EQ(::madvise(p, 2 * kPage, MADV_DONTNEED), 0);
  auto watched = (*UnmapMonitor::get())->watch(vaddr(p), 2 * kPage);
  ASSERT_TRUE(watched.ok());
  if (!watched->anonymous) GTEST_SKIP() << "the kernel cannot say what a mapping is of";
  EXPECT_TRUE(driver_->is_there_at_once(p + kPage));
  EXPECT_EQ(driver_->first_byte(p + kPage), 0);
  ::munmap(p, 2 * kPage);
}

TEST_P(UnmapMonitorTest, NoticesAMappingPlacedOverAnother) {
  Bytes p = map(1, 'a');
  EXPECT_EQ(driver_->first_byte(p), 'a');
  ASSERT_EQ(map(1, 'b', p), p);
  EXPECT_FALSE(driver_->has(p));
  EXPECT_EQ(driver_->first_byte(p), 'b');
  ::munmap(p, kPage);
}

TEST_P(UnmapMonitorTest, NoticesMremap) {
  Bytes p = map(2, 'a');
  Bytes target = map(2, 'x');
  EXPECT_EQ(driver_->first_byte(p), 'a');
  EXPECT_EQ(driver_->first_byte(target), 'x');
  if (::mremap(p, 2 * kPage, 2 * kPage, MREMAP_MAYMOVE | MREMAP_FIXED, target) != target) {
    // Locking (or, before Linux 6.11, watching) one of two pages made two mappings of them.
    ASSERT_EQ(errno, EFAULT);
    ::munmap(p, 2 * kPage);
    ::munmap(target, 2 * kPage);
    if (GetParam() == PagePinner::Mode::kLock) return;
    GTEST_SKIP() << "mremap does not move two mappings at once";
  }
  EXPECT_FALSE(driver_->has(p));
  EXPECT_EQ(driver_->first_byte(target), 'a');
  ::munmap(target, 2 * kPage);
  EXPECT_EQ(driver_->pinned(), 0u);
}

TEST_P(UnmapMonitorTest, NoticesMadviseDontneed) {
  Bytes p = map(1, 'a');
  EXPECT_EQ(driver_->first_byte(p), 'a');
  if (::madvise(p, kPage, MADV_DONTNEED) != 0) {
    // The visible side of mlock: the kernel refuses, the content stays.
    EXPECT_EQ(GetParam(), PagePinner::Mode::kLock);
    EXPECT_EQ(driver_->first_byte(p), 'a');
  } else {
    EXPECT_EQ(driver_->last().kind, UnmapMonitor::Kind::kEmptied);
    EXPECT_EQ(driver_->first_byte(p), 0);
  }
  ::munmap(p, kPage);
}

TEST_P(UnmapMonitorTest, WatchesSharedMemoryToo) {
  Result<Fd> file = create_memfd("unmap-monitor-test", kPage);
  ASSERT_TRUE(file.ok());
  void* p = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file->get(), 0);
  ASSERT_NE(p, MAP_FAILED);
  std::memset(p, 's', kPage);
  EXPECT_EQ(driver_->first_byte(p), 's');
  if (!driver_->has(p)) GTEST_SKIP() << "this kernel does not watch shared memory";
  ::munmap(p, kPage);
  EXPECT_FALSE(driver_->has(p));
}

TEST_P(UnmapMonitorTest, FilesOnDiskAreServedButNotKept) {
  int fd = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  void* p = ::mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE, fd, 0);
  ::close(fd);
  ASSERT_NE(p, MAP_FAILED);
  EXPECT_EQ(driver_->first_byte(p), 0x7f);
  bool kept = driver_->has(p);
  ::munmap(p, kPage);
  EXPECT_FALSE(driver_->has(p)) << (kept ? "watched" : "not watched");
}

TEST_P(UnmapMonitorTest, LargeFreesDoNotHang) {
  for (int round = 0; round < 100; ++round) {
    std::size_t bytes = 256 * 1024 + static_cast<std::size_t>(round) * 4096;
    auto* p = static_cast<Bytes>(std::malloc(bytes));
    ASSERT_NE(p, nullptr);
    std::memset(p, round, bytes);
    ASSERT_EQ(driver_->first_byte(p + 5000), static_cast<unsigned char>(round));
    std::free(p);
  }
}

TEST_P(UnmapMonitorTest, ForkNeitherHangsNorBreaksTheParent) {
  Bytes p = map(2, 'a');
  EXPECT_EQ(driver_->first_byte(p), 'a');
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Nobody watches here: must not sleep, must not disturb the parent's monitor.
    p[0] = 'c';
    ::munmap(p, 2 * kPage);
    ::_exit(0);
  }
  p[0] = 'b';
  EXPECT_EQ(driver_->first_byte(p), 'b') << "copy-on-write after fork";
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(driver_->first_byte(p), 'b');
  ::munmap(p, 2 * kPage);
  EXPECT_FALSE(driver_->has(p));
}

TEST_P(UnmapMonitorTest, AChildThatLivesOnDoesNotKeepTheParentsMonitor) {
  Bytes p = map(1, 'a');
  EXPECT_EQ(driver_->first_byte(p), 'a');
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char byte = 0;
    ::close(ends[1]);
    [[maybe_unused]] ssize_t n = ::read(ends[0], &byte, 1);
    ::_exit(0);
  }
  ::close(ends[0]);
  driver_.reset();
  EXPECT_EQ(::munmap(p, kPage), 0) << "would sleep for ever";
  ::close(ends[1]);
  ::waitpid(child, nullptr, 0);
}

INSTANTIATE_TEST_SUITE_P(Modes, UnmapMonitorTest,
                         ::testing::Values(PagePinner::Mode::kLock, PagePinner::Mode::kPopulate),
                         [](const auto& instance) {
                           return instance.param == PagePinner::Mode::kLock ? "Lock" : "Populate";
                         });

struct Counted final : UnmapMonitor::Listener {
  void on_change(const UnmapMonitor::Change&) override { changes.fetch_add(1); }
  void on_end() override { ended = true; }
  std::atomic<int> changes{0};
  bool ended = false;
};

Bytes watched_page(UnmapMonitor& monitor) {
  Bytes page = map(1, 'a');
  EXPECT_TRUE(monitor.watch(vaddr(page), kPage).ok());
  return page;
}

TEST(UnmapMonitor, SaysThatAMappingIsNotWatchedAnyMore) {
  auto monitor = UnmapMonitor::get();
  if (!monitor) GTEST_SKIP() << monitor.error().message();
  Bytes pages = map(3, 'a');
  const auto watched = (*monitor)->watch(vaddr(pages), kPage);
  ASSERT_TRUE(watched.ok());
  EXPECT_TRUE((*monitor)->is_current(*watched));
  EXPECT_TRUE(watched->covers(vaddr(pages), kPage));
  EXPECT_FALSE(watched->covers(watched->end - kPage, 2 * kPage));
  ::munmap(pages, kPage);
  (*monitor)->settle();
  EXPECT_FALSE((*monitor)->is_current(*watched));
  ::munmap(pages + kPage, 2 * kPage);
}

TEST(UnmapMonitor, IsOneForTheProcessAndTellsAll) {
  auto monitor = UnmapMonitor::get(), again = UnmapMonitor::get();
  if (!monitor) GTEST_SKIP() << monitor.error().message();
  EXPECT_EQ(*monitor, *again);
  Counted first, second;
  (*monitor)->add(first);
  (*monitor)->add(second);
  ::munmap(watched_page(**monitor), kPage);
  (*monitor)->settle();
  EXPECT_TRUE((*monitor)->settled());
  EXPECT_GE(first.changes.load(), 1);
  EXPECT_GE(second.changes.load(), 1);
  const int before = first.changes.load();
  (*monitor)->remove(first);
  ::munmap(watched_page(**monitor), kPage);
  (*monitor)->settle();
  EXPECT_EQ(first.changes.load(), before);
  EXPECT_GE(second.changes.load(), 2);
  again = Error{ENOENT, ""};
  monitor = Error{ENOENT, ""};
  EXPECT_TRUE(second.ended);
  EXPECT_FALSE(first.ended);
}

TEST(UnmapMonitor, AForkedChildMakesItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer starts no threads in a child of a process that has some";
#endif
  auto monitor = UnmapMonitor::get();
  if (!monitor) GTEST_SKIP() << monitor.error().message();
  Bytes page = watched_page(**monitor);
  const pid_t child = ::fork();
  if (child == 0) {
    ::munmap(page, kPage);  // without a message to anybody
    auto own = UnmapMonitor::get();
    const bool right = own.ok() && *own != *monitor && (*own)->available();
    monitor = Error{ENOENT, ""};
    ::munmap(watched_page(**own), kPage);
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::munmap(page, kPage);
}

int count_of_pagemaps() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    char name[64] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (::readlink(link.c_str(), name, sizeof name - 1) > 0 &&
        std::string_view(name).ends_with("/pagemap"))
      ++count;
  }
  return count;
}

TEST(UnmapMonitor, AForkedChildHasNoDescriptorOfItsParentsPages) {
  auto monitor = UnmapMonitor::get();
  if (!monitor) GTEST_SKIP() << monitor.error().message();
  PagePinner::Options options;
  options.monitor = monitor->get();
  auto pinner = PagePinner::create(options);
  if (!pinner.ok()) GTEST_SKIP() << pinner.error().message();
  EXPECT_EQ(count_of_pagemaps(), 1);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(count_of_pagemaps());
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// The number of the process's one userfaultfd, by which a program that closes all would find it.
int descriptor_of_monitor() {
  for (int fd = 0; fd < 1024; ++fd) {
    char name[64] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (::readlink(link.c_str(), name, sizeof name - 1) > 0 &&
        std::string_view(name) == "anon_inode:[userfaultfd]")
      return fd;
  }
  return -1;
}

TEST(UnmapMonitor, LeavesAloneAFileThatTheProgramPutInItsPlace) {
  auto monitor = UnmapMonitor::get();
  if (!monitor) GTEST_SKIP() << monitor.error().message();
  Bytes page = watched_page(**monitor);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int number = descriptor_of_monitor();
  ASSERT_EQ(::dup2(ends[0], number), number);
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  ::munmap(page, kPage);
  monitor = Error{ENOENT, ""};
  char byte = 0;
  EXPECT_EQ(::read(number, &byte, 1), 1) << "closed, or its bytes were taken";
  EXPECT_EQ(byte, 'x');
  for (int fd : {number, ends[0], ends[1]}) ::close(fd);
  EXPECT_TRUE(UnmapMonitor::get().ok());
}

TEST(UnmapMonitor, WithoutOneNothingIsKeptAcrossTransfers) {
  auto made = PagePinner::create({});
  if (!made.ok()) GTEST_SKIP() << made.error().message();
  std::unique_ptr<PagePinner> pinner = std::move(*made);
  std::unique_ptr<Tlb> tlb = std::move(*Tlb::create({}, *pinner));
  Bytes p = map(1, 'a');
  {
    TlbUse use = tlb->acquire(0, vaddr(p), kPage, PageAccess::kRead);
    EXPECT_TRUE(use.ready());
  }
  EXPECT_FALSE(tlb->contains(0, vaddr(p)));
  ::munmap(p, kPage);
}

TEST(UnmapMonitor, WorksWithoutPrivilege) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer starts no threads in a child of a process that has some";
#endif
  if (!UnmapMonitor::get()) GTEST_SKIP() << "not even with the rights we have";
  if (::geteuid() != 0) GTEST_SKIP() << "we have none to give up: the other tests show it";
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    ::_exit(UnmapMonitor::get() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace clan::nic
