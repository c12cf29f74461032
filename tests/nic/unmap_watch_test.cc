#include "nic/unmap_watch.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

namespace clan::nic {
namespace {

struct Counted final : UnmapWatch::Listener {
  void on_change(const UnmapMonitor::Change&) override { changes.fetch_add(1); }
  void on_end() override { ended = true; }
  std::atomic<int> changes{0};
  bool ended = false;
};

void* watched_page(UnmapWatch& watch) {
  void* const page =
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::memset(page, 1, 4096);
  EXPECT_TRUE(watch.monitor().watch(reinterpret_cast<std::uint64_t>(page), 4096).ok());
  return page;
}

TEST(UnmapWatch, IsOneForTheProcessAndTellsAll) {
  auto watch = UnmapWatch::get(), again = UnmapWatch::get();
  ASSERT_TRUE(watch.ok() && again.ok());
  if (!(*watch)->available()) GTEST_SKIP() << (*watch)->why_not().message();
  EXPECT_EQ(*watch, *again);
  Counted first, second;
  (*watch)->add(first);
  (*watch)->add(second);
  ::munmap(watched_page(**watch), 4096);
  (*watch)->settle();
  EXPECT_TRUE((*watch)->settled());
  EXPECT_GE(first.changes.load(), 1);
  EXPECT_GE(second.changes.load(), 1);
  const int before = first.changes.load();
  (*watch)->remove(first);
  ::munmap(watched_page(**watch), 4096);
  (*watch)->settle();
  EXPECT_EQ(first.changes.load(), before);
  EXPECT_GE(second.changes.load(), 2);
  again = Error{ENOENT, ""};
  watch = Error{ENOENT, ""};
  EXPECT_TRUE(second.ended);
  EXPECT_FALSE(first.ended);
}

TEST(UnmapWatch, AForkedChildMakesItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer starts no threads in a child of a process that has some";
#endif
  auto watch = UnmapWatch::get();
  ASSERT_TRUE(watch.ok());
  if (!(*watch)->available()) GTEST_SKIP() << (*watch)->why_not().message();
  void* const page = watched_page(**watch);
  const pid_t child = ::fork();
  if (child == 0) {
    ::munmap(page, 4096);  // which nobody is told of
    auto own = UnmapWatch::get();
    const bool right = own.ok() && *own != *watch && (*own)->available();
    watch = Error{ENOENT, ""};
    ::munmap(watched_page(**own), 4096);
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::munmap(page, 4096);
}

}  // namespace
}  // namespace clan::nic
