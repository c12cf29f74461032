#include "state/kept_pipes.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

class KeptPipes : public testing::Test {
 protected:
  void SetUp() override {
    pair_.migrate();
    holders() = 2;  // this process, and one that has been sent the descriptor
  }
  void TearDown() override { (void)close_kept(0, ~0u, false); }
  std::atomic<std::uint64_t>& holders() { return pair_.socket(1).mine().words[socket_face::kHolders]; }
  void keep() { keep_for_receivers(pair_.socket(1)); }
  // The descriptor of a memfd of ours beside that of the pipe, -1: there is none.
  int copy() {
    struct stat pipe {};
    EXPECT_EQ(::fstat(pair_.socket(1).pipe.memfd(), &pipe), 0);
    for (int fd = 1 << 20; fd > 2; --fd) {
      struct stat about {};
      if (fd != pair_.socket(1).pipe.memfd() && fd != pair_.socket(0).pipe.memfd() && ::fstat(fd, &about) == 0 &&
          about.st_ino == pipe.st_ino && about.st_dev == pipe.st_dev) {
        return fd;
      }
    }
    return -1;
  }
  TcpPair pair_;
};

TEST_F(KeptPipes, HaveACopyOfTheDescriptor) {
  keep();
  EXPECT_EQ(kept_pipes(), 1);
  EXPECT_GE(copy(), 0);
}

TEST_F(KeptPipes, GoOnceTheReceiverHasClosed) {
  keep();
  sweep_kept();
  EXPECT_EQ(kept_pipes(), 1);
  holders() = 0;
  sweep_kept();
  EXPECT_EQ(kept_pipes(), 0);
  EXPECT_LT(copy(), 0);
}

TEST_F(KeptPipes, AreNotOfASocketThatNobodyElseHolds) {
  holders() = 1;
  keep();
  EXPECT_EQ(kept_pipes(), 0);
}

TEST_F(KeptPipes, AreAFew) {
  for (int i = 0; i < 40; ++i) keep();
  EXPECT_EQ(kept_pipes(), 16);
}

TEST_F(KeptPipes, GoWhereTheApplicationTakesTheirNumber) {
  keep();
  const auto number = static_cast<unsigned>(copy());
  EXPECT_EQ(close_kept(number + 1, number + 2, false), 0);
  EXPECT_EQ(close_kept(number, number, false), 1);
  EXPECT_LT(copy(), 0);
}

TEST_F(KeptPipes, LeaveANumberAloneThatIsTheApplicationsAlready) {
  keep();
  const int number = copy();
  ASSERT_GE(::dup2(STDERR_FILENO, number), 0);
  holders() = 0;
  keep();
  EXPECT_EQ(kept_pipes(), 0);
  EXPECT_GE(::fcntl(number, F_GETFD), 0);
  ::close(number);
}

}  // namespace
}  // namespace clan::preload
