#include "table/internal_fds.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

int half_of_limit() {
  rlimit most{};
  ::getrlimit(RLIMIT_NOFILE, &most);
  return static_cast<int>(std::min<rlim_t>(most.rlim_cur, 1u << 16) / 2);
}

TEST(InternalFds, HaveHighNumbers) {
  const int low = ::memfd_create("test", MFD_CLOEXEC);
  const int high = move_high(low);
  ASSERT_GE(high, half_of_limit());
  EXPECT_LT(::fcntl(low, F_GETFD), 0);
  EXPECT_EQ(::fcntl(high, F_GETFD), FD_CLOEXEC);
  EXPECT_TRUE(is_ours(high));
  EXPECT_FALSE(is_ours(low));
  ::close(high);
}

TEST(InternalFds, AreInTheUpperQuarterAndNotHighWhereVeryManyAreAllowed) {
  EXPECT_EQ(first_internal(1024), 768);
  EXPECT_EQ(first_internal(1 << 16), 3 << 14);
  EXPECT_EQ(first_internal(1 << 20), 3 << 14) << "the table has 65,536 entries";
}

TEST(InternalFds, OfAPipeGoAndThePipeGoesOn) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  const int memfd = s.pipe.memfd();
  close_descriptor(s);
  EXPECT_LT(::fcntl(memfd, F_GETFD), 0);
  EXPECT_EQ(s.pipe.memfd(), -1);
  EXPECT_EQ(pair.send(0, "still"), 5);
  EXPECT_EQ(pair.receive(1), "still");
}

// A thread that found the socket moved may still be reading the pipe. In a child, as nothing moves
// where there is no room. The hard limit leaves none behind the soft one.
TEST(InternalFds, OfASocketThatHasGoneBackGoAndItsPipeStays) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  const auto goes = [&s] {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_max = limit.rlim_cur;
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0 || !move_high(s.pipe)) return 1;
    const int memfd = s.pipe.memfd();
    s.state.store(Socket::State::kKernel);
    return give_up_ours() && ::fcntl(memfd, F_GETFD) < 0 && s.pipe ? 0 : 2;
  };
  EXPECT_EXIT(::_exit(goes()), testing::ExitedWithCode(0), "");
}

TEST(InternalFds, AreBehindTheSoftLimitWhenTheUpperQuarterIsFull) {
  const auto are = [] {
    rlimit limit{}, after{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < 512) return 0;
    limit.rlim_cur = 256;
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    int high = -1;
    for (int i = 0; i < 100 && high < 256; ++i)
      high = move_high(::memfd_create("test", MFD_CLOEXEC));
    if (high < 256 || ::fcntl(high, F_GETFD) != FD_CLOEXEC || !is_ours(high)) return 2;
    ::getrlimit(RLIMIT_NOFILE, &after);
    if (after.rlim_cur != 256 || after.rlim_max != limit.rlim_max) return 3;
    return ::fcntl(high, F_GETFD) < 0 ? 4 : 0;
  };
  EXPECT_EXIT(::_exit(are()), testing::ExitedWithCode(0), "");
}

TEST(InternalFds, AreForgottenWhenTheApplicationClosesTheirNumbers) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  ASSERT_TRUE(move_high(s.pipe));
  const auto number = static_cast<unsigned>(s.pipe.memfd());
  disown(number, number);
  EXPECT_EQ(s.pipe.memfd(), -1);
  ::close(static_cast<int>(number));
}

TEST(InternalFds, TheTableOfSlotsMovesWhereItsNumberIsNeeded) {
  const int memfd = ::memfd_create("test", MFD_CLOEXEC);
  const int before = passing_memfd.exchange(memfd);  // of this process, if there is one
  const auto number = static_cast<unsigned>(memfd);
  EXPECT_FALSE(move_slots(number + 1, number + 2, false));
  EXPECT_EQ(passing_memfd, memfd);
  EXPECT_TRUE(move_slots(number, number + 2, false));
  EXPECT_LT(::fcntl(memfd, F_GETFD), 0);
  const int moved = passing_memfd.exchange(before);
  EXPECT_GT(moved, memfd + 2);
  EXPECT_EQ(::fcntl(moved, F_GETFD), FD_CLOEXEC);
  ::close(moved);
}

TEST(InternalFds, TheTableOfSlotsIsClosedWhereNoNumberIsFreeBehindItsOwn) {
  const int memfd = ::memfd_create("test", MFD_CLOEXEC);
  const int before = passing_memfd.exchange(memfd);  // of this process, if there is one
  EXPECT_TRUE(move_slots(static_cast<unsigned>(memfd), ~0u, false));
  EXPECT_LT(::fcntl(memfd, F_GETFD), 0);
  EXPECT_EQ(passing_memfd.exchange(before), -1);
}

}  // namespace
}  // namespace clan::preload
