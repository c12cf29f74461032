// Calls that move bytes, with functions of the test in the kernel's place and in the pipe's.
#include "calls/counted_call.h"

#include <gtest/gtest.h>

#include <array>

#include "preload/tcp_pair.h"
#include "state/face.h"

namespace clan::preload {
namespace {

struct CountedCall : testing::Test {
  ssize_t receive(int fd, int flags = MSG_DONTWAIT) {
    return receiving(
        fd, flags,
        [&] {
          ++by_kernel;
          counted = pair.socket(0).open_file().receives.load();
          return answer;
        },
        [&](Socket& s) {
          ++by_pipe;
          EXPECT_EQ(&s, &pair.socket(0));
          return ssize_t{22};
        });
  }
  ssize_t send(int fd, int flags = MSG_DONTWAIT) {
    return sending(
        fd, flags,
        [&] {
          ++by_kernel;
          counted = pair.socket(0).open_file().sends.load();
          return answer;
        },
        [&](Socket&) {
          ++by_pipe;
          return ssize_t{33};
        });
  }
  TcpPair pair;
  ssize_t answer = 11;
  std::uint32_t counted = 0;
  int by_kernel = 0, by_pipe = 0;
};

TEST_F(CountedCall, OfADescriptorThatIsNoSocketIsTheKernels) {
  const int fd = ::dup(STDERR_FILENO);
  EXPECT_EQ(receive(fd), 11);
  EXPECT_EQ(send(fd), 11);
  EXPECT_EQ(receive(-1), 11);
  EXPECT_EQ(by_kernel, 3);
  EXPECT_EQ(counted, 0u);
  ::close(fd);
}

TEST_F(CountedCall, OfASocketOnTcpIsCountedWhileTheKernelHasIt) {
  EXPECT_EQ(receive(pair.fd(0)), 11);
  EXPECT_EQ(counted, 1u);
  EXPECT_EQ(pair.socket(0).open_file().receives.load(), 0u);
  EXPECT_EQ(send(pair.fd(0)), 11);
  EXPECT_EQ(counted, 1u);
  EXPECT_EQ(pair.socket(0).open_file().sends.load(), 0u);
  EXPECT_EQ(by_kernel, 2);
}

// It would see its bytes divided between both.
TEST_F(CountedCall, KeepsTheSocketFromMovingMeanwhile) {
  pair.open_pipe();
  Route route;
  ASSERT_TRUE(route_of(pair.fd(0), &route));
  bool moved = true;
  (void)receiving(
      pair.fd(0), MSG_DONTWAIT,
      [&] {
        moved = enter_pipe(pair.fd(0), pair.socket(0), route);
        return ssize_t{0};
      },
      [](Socket&) { return ssize_t{0}; });
  EXPECT_FALSE(moved);
  EXPECT_TRUE(enter_pipe(pair.fd(0), pair.socket(0), route));
}

TEST_F(CountedCall, OfASocketThatHasMovedIsThePipes) {
  pair.migrate();
  EXPECT_EQ(receive(pair.fd(0)), 22);
  EXPECT_EQ(send(pair.fd(0)), 33);
  EXPECT_EQ(by_pipe, 2);
  EXPECT_EQ(by_kernel, 0);
}

TEST(CountedCallBuffers, AreAsManyAsTheKernelTakes) {
  std::array<iovec, 1> one{};
  EXPECT_FALSE(bad_buffers(nullptr, 0));
  EXPECT_FALSE(bad_buffers(one.data(), kMostVectors));
  EXPECT_TRUE(bad_buffers(one.data(), kMostVectors + 1));
  EXPECT_EQ(errno, EINVAL);
  EXPECT_TRUE(bad_buffers(one.data(), -1));
  EXPECT_TRUE(bad_buffers(nullptr, 1));
}

TEST_F(CountedCall, WithAFlagThatOnlyTcpKnowsTakesTheSocketBack) {
  pair.migrate();
  leave_if_tcps(pair.fd(0), MSG_DONTWAIT | MSG_PEEK);
  EXPECT_EQ(state_of(pair.socket(0).mine()) & socket_face::kLeaving, 0u);
  leave_if_tcps(pair.fd(0), MSG_OOB);
  EXPECT_NE(state_of(pair.socket(0).mine()) & socket_face::kLeaving, 0u);
}

}  // namespace
}  // namespace clan::preload
