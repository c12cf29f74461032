// The two switches for tests.
#include "os/test_settings.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

namespace clan::preload {
namespace {

struct TestSwitches : testing::Test {
  ~TestSwitches() override {
    ::unsetenv("CLAN_TEST_MOVE");
    ::unsetenv("CLAN_TEST_COUNT");
    test_settings = before;
  }
  TestSettings before = test_settings;
};

TEST_F(TestSwitches, MoveAtOnceWhereTheVariableIsSetAndNotNought) {
  constexpr std::pair<const char*, bool> kValues[] = {
      {"1", true}, {"yes", true}, {"0", false}, {"", false}};
  for (const auto& [value, moves] : kValues) {
    ::setenv("CLAN_TEST_MOVE", value, 1);
    read_test_settings();
    EXPECT_EQ(moves_at_once(), moves) << value;
  }
  ::unsetenv("CLAN_TEST_MOVE");
  read_test_settings();
  EXPECT_FALSE(moves_at_once());
}

TEST_F(TestSwitches, CountInAFileThatHasRoomForTheSums) {
  char path[] = "/tmp/clan-test-settings-XXXXXX";
  const int fd = ::mkstemp(path);
  ASSERT_GE(fd, 0);
  test_settings.sums = nullptr;
  ::setenv("CLAN_TEST_COUNT", path, 1);
  read_test_settings();
  EXPECT_EQ(test_settings.sums, nullptr) << "the file is empty";
  ASSERT_EQ(::ftruncate(fd, 24), 0);
  read_test_settings();
  ASSERT_NE(test_settings.sums, nullptr);
  test_settings.sums[2].fetch_add(5);
  std::uint64_t sums[3] = {};
  EXPECT_EQ(::pread(fd, sums, sizeof sums, 0), static_cast<ssize_t>(sizeof sums));
  EXPECT_EQ(sums[2], 5u);
  ::munmap(test_settings.sums, 4096);
  ::close(fd);
  ::unlink(path);
}

TEST_F(TestSwitches, CountNothingInWhatIsNoFile) {
  test_settings.sums = nullptr;
  for (const char* path : {"/dev/null", "/nowhere/at/all", "/tmp"}) {
    ::setenv("CLAN_TEST_COUNT", path, 1);
    read_test_settings();
    EXPECT_EQ(test_settings.sums, nullptr) << path;
  }
}

}  // namespace
}  // namespace clan::preload
