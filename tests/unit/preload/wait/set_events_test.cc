#include "wait/set_events.h"

#include <fcntl.h>

#include "demote/demote.h"
#include "preload/wait/set.h"
#include "wait/ready_check.h"

namespace clan::preload {
namespace {

struct SetEvents : EpollSet {};

TEST_F(SetEvents, ASocketThatMigratesIsAnsweredFromItsPipe) {
  TcpPair later;
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(control(epfd, EPOLL_CTL_ADD, later.fd(1), &event), 0);
  EXPECT_EQ(find(epfd)->moved.load(), 0u);
  later.migrate();
  EXPECT_EQ(find(epfd)->moved.load(), 1u);
}

TEST_F(SetEvents, ASocketThatIsBackOnTcpIsTheKernels) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  leave_pipe(pair.fd(0), false, reasons::Why::kUrgent);
  (void)pair.receive(1);
  leave_pipe(pair.fd(1), false, reasons::Why::kUrgent);
  (void)pair.receive(0);
  (void)pair.receive(1);
  EXPECT_FALSE(pair.socket(1).shared());
  EXPECT_EQ(find(epfd)->moved.load(), 0u);
  ASSERT_EQ(::send(pair.fd(0), "tcp", 3, 0), 3);
  EXPECT_EQ(told(1'000), EPOLLIN);
}

TEST_F(SetEvents, AThreadSleepsInASetAsLongAsItsSocketsLet) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  const Guard guard(epfd);
  EXPECT_TRUE(prepare(*find(epfd)));
  EXPECT_EQ(longest_sleep(*find(epfd)), kNoCap);
  EXPECT_EQ(find(epfd)->sleepers, 1);
  awake(*find(epfd));
  EXPECT_EQ(find(epfd)->sleepers, 0);
}

}  // namespace
}  // namespace clan::preload
