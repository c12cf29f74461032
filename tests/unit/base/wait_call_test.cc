#include "base/wait_call.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstdint>

#include "base/fd.h"

namespace clan {
namespace {

class WaitCall : public ::testing::Test {
 protected:
  void ring() { signal_eventfd(event_.get()); }
  Fd event_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

TEST_F(WaitCall, OfPollTellsWhatIsReadable) {
  pollfd p{event_.get(), POLLIN, 0};
  timespec none{};
  EXPECT_EQ(sys::ppoll(&p, 1, &none), 0);
  ring();
  EXPECT_EQ(sys::ppoll(&p, 1, nullptr), 1);
  EXPECT_EQ(p.revents, POLLIN);
}

TEST_F(WaitCall, UntilADeadlineTellsWhatEndedIt) {
  pollfd p{event_.get(), POLLIN, 0};
  const std::uint64_t begin = monotonic_ns();
  EXPECT_EQ(sys::poll_until({&p, 1}, begin + 20'000'000), ETIMEDOUT);
  EXPECT_GE(monotonic_ns(), begin + 20'000'000);
  EXPECT_EQ(sys::poll_until({&p, 1}, 0), ETIMEDOUT) << "in the past";
  ring();
  EXPECT_EQ(sys::poll_until({&p, 1}, kNoDeadline), 0);
  EXPECT_EQ(p.revents, POLLIN);
}

TEST_F(WaitCall, OfEpollTellsWhatIsReadable) {
  const Fd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = event_.get();
  ASSERT_EQ(sys::epoll_ctl(set.get(), EPOLL_CTL_ADD, event_.get(), &event), 0);
  epoll_event told{};
  EXPECT_EQ(sys::epoll_wait(set.get(), &told, 1, 0), 0);
  ring();
  EXPECT_EQ(sys::epoll_wait(set.get(), &told, 1, -1), 1);
  EXPECT_EQ(told.data.fd, event_.get());
}

TEST_F(WaitCall, ThatFailsSaysWhyInErrno) {
  epoll_event event{};
  EXPECT_EQ(sys::epoll_ctl(event_.get(), EPOLL_CTL_ADD, event_.get(), &event), -1);
  EXPECT_EQ(errno, EINVAL);
}

}  // namespace
}  // namespace clan
