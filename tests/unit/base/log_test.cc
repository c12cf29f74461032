// CLAN_LOG: what is said on descriptor 2, and when. The variable is read once per process, so each
// case runs in a fresh one (a death test of the threadsafe style starts the program anew).
#include <clan/detail/log.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

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

// What has got the number 2 since is somebody else's.
[[noreturn]] void talk_to(int fd) {
  ::dup2(fd, 2);
  CLAN_WARN("a warning");
  char line[100];
  std::exit(::recv(fd, line, sizeof line, MSG_DONTWAIT) < 0 ? 0 : 1);
}
[[noreturn]] void talk_when_closed() {
  ::close(2);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) std::exit(2);
  if (ends[0] != 2) std::exit(3);
  CLAN_WARN("a warning");
  char line[100];
  std::exit(::recv(ends[1], line, sizeof line, MSG_DONTWAIT) < 0 ? 0 : 1);
}

TEST_F(LogDeathTest, SaysNothingToWhatHasTakenTheNumberSince) {
  ::setenv("CLAN_LOG", "warn", 1);
  EXPECT_EXIT(talk_when_closed(), ::testing::ExitedWithCode(0), "^$");
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  EXPECT_EXIT(talk_to(ends[0]), ::testing::ExitedWithCode(0), "^$");
  for (const int fd : ends) ::close(fd);
}

// In a program whose standard error is a pipe that nobody reads any more.
TEST_F(LogDeathTest, RaisesNoSigpipe) {
  if (std::getenv("CLAN_LOG_TEST_TALKS") != nullptr) talk();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], 2);
    for (const int fd : ends) ::close(fd);
    ::setenv("CLAN_LOG", "debug", 1);
    ::setenv("CLAN_LOG_TEST_TALKS", "1", 1);
    ::execl("/proc/self/exe", "test", "--gtest_filter=*RaisesNoSigpipe", nullptr);
    ::_exit(9);
  }
  for (const int fd : ends) ::close(fd);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace clan
