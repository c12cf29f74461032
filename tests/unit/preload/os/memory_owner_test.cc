#include "os/memory_owner.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace clan::preload {
namespace {

TEST(MemoryOwner, IsTheProcessItselfAndAForkedChildButNotOneOfVfork) {
  note_process();
  EXPECT_FALSE(in_borrowed_memory());
  int status = 0;
  pid_t child = ::fork();
  if (child == 0) {
    note_process();
    ::_exit(in_borrowed_memory() ? 1 : 0);
  }
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "vfork() is the sanitizer's, and may be fork()";
#endif
  child = ::vfork();
  if (child == 0) ::_exit(in_borrowed_memory() ? 2 : 0);
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

}  // namespace
}  // namespace clan::preload
