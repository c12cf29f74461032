#include "os/fd_message.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace clan::preload {
namespace {

struct FdMessage : testing::Test {
  FdMessage() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0); }
  ~FdMessage() override {
    for (const int fd : ends) ::close(fd);
  }
  int ends[2];
};

TEST_F(FdMessage, CarriesBytesAndDescriptors) {
  const int memfd = ::memfd_create("test", MFD_CLOEXEC);
  ASSERT_TRUE(send_descriptors(ends[0], "hello", 5, &memfd, 1));
  char text[5];
  int received = -1;
  ASSERT_EQ(receive_descriptors(ends[1], text, 5, &received, 1), 1);
  struct stat a {
  }, b{};
  ::fstat(memfd, &a);
  ::fstat(received, &b);
  EXPECT_EQ(a.st_ino, b.st_ino);
  EXPECT_EQ(::fcntl(received, F_GETFD), FD_CLOEXEC);
  ::close(memfd);
  ::close(received);
}

TEST_F(FdMessage, DoesNotWait) {
  char text[5];
  int received = -1;
  EXPECT_EQ(receive_descriptors(ends[1], text, 5, &received, 1), 0);
}

TEST_F(FdMessage, ThatDiffersIsRefusedAndItsDescriptorsAreClosed) {
  const int memfd = ::memfd_create("test", MFD_CLOEXEC);
  const int two[] = {memfd, memfd};
  const int next = ::dup(memfd);
  ::close(next);
  ASSERT_TRUE(send_descriptors(ends[0], "hello", 5, two, 2));
  char text[5];
  int received = -1;
  EXPECT_EQ(receive_descriptors(ends[1], text, 5, &received, 1), -1);
  EXPECT_EQ(received, -1);
  const int again = ::dup(memfd);
  EXPECT_EQ(again, next);
  ::close(again);
  ::close(memfd);
}

}  // namespace
}  // namespace clan::preload
