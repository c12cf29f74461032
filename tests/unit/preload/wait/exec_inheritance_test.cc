#include "wait/exec_inheritance.h"

#include <fcntl.h>

#include <cstring>
#include <string>

#include "preload/wait/set.h"
#include "wait/registration.h"

namespace clan::preload {
namespace {

struct HandedOn : EpollSet {
  HandedOn() { EXPECT_EQ(::fcntl(epfd, F_SETFD, 0), 0); }
  std::string described(std::size_t room = 100) {
    char text[100] = {};
    const int n = describe_sets(pair.fd(1), pair.socket(1), text, room);
    return n < 0 ? "no" : std::string(text, static_cast<std::size_t>(n));
  }
  std::string as_asked() const {
    return "e" + std::to_string(epfd) + "/" + std::to_string(pair.fd(1)) + "/0/1/29,";
  }
};

TEST_F(HandedOn, AreDescribedWithWhatIsAskedOfASocket) {
  EXPECT_EQ(described(), "");
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  EXPECT_EQ(described(), as_asked());
  EXPECT_EQ(described(as_asked().size()), "no");
  ASSERT_EQ(::fcntl(epfd, F_SETFD, FD_CLOEXEC), 0);
  EXPECT_EQ(described(), "") << "it is closed";
}

TEST_F(HandedOn, AreNotWhereThereIsMoreToSay) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  const int copy = ::dup(epfd);
  duplicate_epoll(epfd, copy);
  EXPECT_EQ(described(), "no");
  forget_epoll(copy);
  ::close(copy);
  EXPECT_EQ(described(), as_asked());
}

TEST_F(HandedOn, HaveNothingThatTheApplicationHasTakenOut) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  ASSERT_EQ(ask(EPOLL_CTL_DEL, 0), 0);
  EXPECT_EQ(described(), "");
  EXPECT_EQ(find(epfd)->interests.count, 0u);
  EXPECT_TRUE(is_empty(epfd));
}

TEST_F(HandedOn, AreTakenOverByTheProgram) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  const std::string text = described() + "5:6:0,";
  forget_epoll(epfd);  // as a program that has just begun
  ASSERT_EQ(find(epfd), nullptr);
  EXPECT_EQ(take_over_set(text.c_str()), static_cast<int>(as_asked().size()));
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_EQ(told(1'000), EPOLLIN);
  EXPECT_EQ(take_over_set("5:6:0,"), 0);
  EXPECT_EQ(take_over_set(""), 0);
  EXPECT_EQ(take_over_set("e900/901/0/1/7,"), 15) << "of no socket";
  EXPECT_EQ(find(900), nullptr);
}

}  // namespace
}  // namespace clan::preload
