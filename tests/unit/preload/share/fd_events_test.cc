#include "share/fd_events.h"

#include <algorithm>

#include "preload/wait/set.h"

namespace clan::preload {
namespace {

struct FdEvents : EpollSet {};

TEST_F(FdEvents, TellAllTablesOfAClosedDescriptor) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  gone(epfd);
  EXPECT_FALSE(known_epoll(epfd));
  gone(pair.fd(0));
  EXPECT_FALSE(known(pair.fd(0)));
}

TEST_F(FdEvents, TellAllTablesOfACopy) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  const int set = ::dup(epfd), socket = ::dup(pair.fd(0));
  same(epfd, set);
  same(pair.fd(0), socket);
  EXPECT_EQ(find(set), find(epfd));
  EXPECT_EQ(acquire(socket).get(), &pair.socket(0));
  const auto first = static_cast<unsigned>(std::min(set, socket)),
             last = static_cast<unsigned>(std::max(set, socket));
  if (last - first == 1) {
    gone_range(first, last);
    EXPECT_FALSE(known_epoll(set));
    EXPECT_FALSE(known(socket));
  } else {
    gone(set);
    gone(socket);
  }
  ::close(set);
  ::close(socket);
}

}  // namespace
}  // namespace clan::preload
