// Which users may share memory with this process.
#include "os/config.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

namespace clan::preload {
namespace {

constexpr uid_t kStranger = 123'456'789;

TEST(ConfigUsers, AreOurOwnAndThoseThatAreNamed) {
  Config asked;
  EXPECT_TRUE(asked.allows_uid(::geteuid()));
  EXPECT_FALSE(asked.allows_uid(kStranger));
  asked.uids[asked.uid_count++] = kStranger;
  EXPECT_TRUE(asked.allows_uid(kStranger));
  EXPECT_FALSE(asked.allows_uid(kStranger + 1));
}

// In a user namespace without numbers the kernel shows every user by that one: nobody knows whose
// it is, though it be named.
TEST(ConfigUsers, AreNotThoseThatTheKernelHasNoNumberFor) {
  Config asked;
  asked.uids[asked.uid_count++] = asked.overflow_uid;
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWUSER) != 0) ::_exit(77);
    ::_exit(asked.is_anybody(asked.overflow_uid) && !asked.allows_uid(asked.overflow_uid) &&
                    !asked.is_anybody(kStranger)
                ? 0
                : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no user namespaces";
  EXPECT_EQ(status, 0);
}

TEST(ConfigPorts, LeaveOutWhatIsNotNamed) {
  Config asked;
  EXPECT_FALSE(asked.leaves_out(80, 81));
  asked.only.ranges[asked.only.count++] = {8000, 8010};
  EXPECT_TRUE(asked.leaves_out(80, 81));
  EXPECT_FALSE(asked.leaves_out(80, 8010));
  EXPECT_FALSE(asked.leaves_out(8000, 81));
  asked.except.ranges[asked.except.count++] = {8005, 8005};
  EXPECT_TRUE(asked.excepts(8005, 1));
  EXPECT_TRUE(asked.excepts(1, 8005));
  EXPECT_FALSE(asked.excepts(8004, 8006));
}

TEST(ConfigOfTheProcess, IsReadOnceAndTheSameEverywhere) {
  EXPECT_EQ(&config(), &config());
  EXPECT_FALSE(config().disabled.load());
}

}  // namespace
}  // namespace clan::preload
