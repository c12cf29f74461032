#include "clan/face/counter_page.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>

namespace clan {
namespace {

struct Page {
  static constexpr std::uint64_t kMagic = 7;
  std::uint64_t magic = kMagic;
  std::uint32_t pid = 0;
  std::atomic<std::uint32_t> count{0};
};

TEST(CounterPage, IsWhatOthersReadInAMemfdOfItsName) {
  Page* const page = make_counter_page<Page>("clan-counter-page-test");
  page->count = 3;
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string link = std::filesystem::read_symlink(entry, gone).string();
    if (link != "/memfd:clan-counter-page-test (deleted)") continue;
    ++found;
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    Page seen;
    EXPECT_EQ(::read(fd, static_cast<void*>(&seen), sizeof seen),
              static_cast<ssize_t>(sizeof seen));
    ::close(fd);
    EXPECT_EQ(seen.magic, Page::kMagic);
    EXPECT_EQ(seen.pid, static_cast<std::uint32_t>(::getpid()));
    EXPECT_EQ(seen.count, 3u);
  }
  EXPECT_EQ(found, 1);
}

}  // namespace
}  // namespace clan
