// CLAN_LOG: what is said on descriptor 2, and when. The variable is read once per process, so each
// case runs in a fresh one (a death test of the threadsafe style starts the program anew).
#include <clan/log.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace clan {
namespace {

// Lines of two levels, asked for twice over; then the end of the program.
[[noreturn]] void talk() {
  for (int i = 0; i < 2; ++i) {
    CLAN_WARN("a warning");
    CLAN_DEBUG("a detail");
  }
  std::exit(0);
}

class LogDeathTest : public ::testing::Test {
 protected:
  LogDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  ~LogDeathTest() override { ::unsetenv("CLAN_LOG"); }
};

TEST_F(LogDeathTest, SaysNothingUnlessAsked) {
  EXPECT_EXIT(talk(), ::testing::ExitedWithCode(0), "^$");
  ::setenv("CLAN_LOG", "off", 1);
  EXPECT_EXIT(talk(), ::testing::ExitedWithCode(0), "^$");
  ::setenv("CLAN_LOG", "", 1);
  EXPECT_EXIT(talk(), ::testing::ExitedWithCode(0), "^$");
}

TEST_F(LogDeathTest, SaysWhatTheLevelAsksFor) {
  ::setenv("CLAN_LOG", "warn", 1);
  EXPECT_EXIT(talk(), ::testing::ExitedWithCode(0),
              "^clan\\[[0-9]+\\] warn: a warning\nclan\\[[0-9]+\\] warn: a warning\n$");
  ::setenv("CLAN_LOG", "debug", 1);
  EXPECT_EXIT(talk(), ::testing::ExitedWithCode(0), "warn: a warning\n.* debug: a detail\n");
}

TEST_F(LogDeathTest, NamesTheLevelsOnceWhenAskedForNone) {
  ::setenv("CLAN_LOG", "bogus", 1);
  EXPECT_EXIT(
      talk(), ::testing::ExitedWithCode(0),
      "^clan\\[[0-9]+\\] warn: CLAN_LOG=bogus is not understood: say off, error, warn, info or "
      "debug\n$");
}

}  // namespace
}  // namespace clan
