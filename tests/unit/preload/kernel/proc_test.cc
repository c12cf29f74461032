#include "kernel/proc.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <string>

namespace clan::preload {
namespace {

TEST(Proc, ReadsTheNamesInADirectory) {
  const int fds = ::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DirectoryReader names(fds);
  std::set<std::string> found;
  while (const char* name = names.next()) found.insert(name);
  EXPECT_EQ(found.count("."), 1u);
  EXPECT_EQ(found.count(std::to_string(fds)), 1u);
  ::close(fds);
}

TEST(Proc, OpensAMemfdOfAProcessByItsLinkAlone) {
  const int memfd = ::memfd_create("proc-test", MFD_CLOEXEC);
  const auto self = static_cast<unsigned>(::getpid());
  const int same = open_memfd_of(self, memfd, "/memfd:proc-test (deleted)");
  EXPECT_GE(same, 0);
  EXPECT_LT(open_memfd_of(self, memfd, "/memfd:other (deleted)"), 0);
  EXPECT_EQ(errno, ENOENT);
  ::close(same);
  ::close(memfd);
}

TEST(Proc, FindsADescriptorByItsLinkAmongThoseThatAreLookedAt) {
  const int memfd = ::memfd_create("proc-test", MFD_CLOEXEC);
  const char* const link = "/memfd:proc-test (deleted)";
  const auto is = [link](const char* found) { return std::strcmp(found, link) == 0; };
  const auto all = [](int) { return true; };
  EXPECT_TRUE(any_descriptor("self", all, is));
  EXPECT_FALSE(any_descriptor(
      "self", [memfd](int fd) { return fd != memfd; }, is));
  EXPECT_TRUE(any_descriptor(
      "self", [memfd](int fd) { return fd == memfd; }, is));
  EXPECT_FALSE(any_descriptor("0", all, is));
  ::close(memfd);
}

// The directory is open here by that number meanwhile.
TEST(Proc, FindsADescriptorOfAnotherProcessByEveryNumber) {
  const int memfd = ::memfd_create("proc-test", MFD_CLOEXEC);
  int go[2];
  ASSERT_EQ(::pipe(go), 0);
  const int next = ::dup(memfd);  // the lowest number that is free
  ::close(next);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    ::dup2(memfd, next);
    ::close(memfd);
    ::close(go[1]);
    (void)!::read(go[0], &byte, 1);
    ::_exit(0);
  }
  ::close(memfd);
  const std::string process = std::to_string(child);
  const auto has_it = [&] {
    return any_descriptor(
        process.c_str(), [](int) { return true; },
        [](const char* found) { return std::strcmp(found, "/memfd:proc-test (deleted)") == 0; });
  };
  const int first = ::open("/dev/null", O_RDONLY);  // where the memfd was
  const std::string old = "/proc/" + process + "/fd/" + std::to_string(memfd);
  char link[64];
  while (::readlink(old.c_str(), link, sizeof link) >= 0) ::sched_yield();
  EXPECT_TRUE(has_it());
  ::close(first);
  ::close(go[1]);
  ::waitpid(child, nullptr, 0);
  ::close(go[0]);
}

TEST(Proc, OpensMemfdsOfAProcessUntilOneIsTheRightOne) {
  const char* const link = "/memfd:proc-test (deleted)";
  int made[2];
  for (int& memfd : made) memfd = ::memfd_create("proc-test", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(made[1], 7), 0);
  int opened = 0, found = -1;
  const auto is_right = [&](int memfd) {
    struct stat about {};
    ++opened;
    if (::fstat(memfd, &about) == 0 && about.st_size == 7) return found = memfd, true;
    ::close(memfd);
    return false;
  };
  const std::string self = std::to_string(::getpid());
  const auto has_it = [&](const char* pid) {
    return pid == self && any_memfd_of(pid, link, is_right);
  };
  EXPECT_TRUE(any_process(has_it));
  EXPECT_GE(found, 0);
  EXPECT_EQ(opened, 2);
  EXPECT_FALSE(any_process([](const char*) { return false; }));
  for (const int memfd : {made[0], made[1], found}) ::close(memfd);
}

TEST(Proc, CountsThisProcessAsItself) {
  EXPECT_TRUE(sys::proc_is_ours());
  EXPECT_TRUE(counts_as_we_do(std::to_string(::getpid()).c_str()));
  EXPECT_FALSE(counts_as_we_do("0"));
}

}  // namespace
}  // namespace clan::preload
