#include "share/pipes_along.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <vector>

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

struct PipesAlong : testing::Test {
  PipesAlong() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, two), 0); }
  ~PipesAlong() override {
    for (const int fd : two) ::close(fd);
  }
  // A message of one byte that carries `fds`.
  msghdr carrying(const std::vector<int>& fds) {
    const std::size_t bytes = fds.size() * sizeof(int);
    msghdr message{nullptr, 0, &io, 1, control, CMSG_SPACE(bytes), 0};
    const cmsghdr head{CMSG_LEN(bytes), SOL_SOCKET, SCM_RIGHTS};
    std::memset(control, 0, sizeof control);
    std::memcpy(control, &head, sizeof head);
    std::memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), fds.data(), bytes);
    return message;
  }
  // How many descriptors come, past what takes pipes out.
  std::size_t received() {
    msghdr message{nullptr, 0, &io, 1, control, sizeof control, 0};
    EXPECT_EQ(::recvmsg(two[1], &message, MSG_CMSG_CLOEXEC), 1);
    std::size_t count = 0;
    for_each_passed(message, [&](int fd) {
      ++count;
      ::close(fd);
    });
    return count;
  }
  TcpPair pair;
  int two[2] = {-1, -1};
  char byte = 'p';
  iovec io{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))];
};

TEST_F(PipesAlong, OfConnectionsThatHaveMovedGoAndEachOnce) {
  pair.migrate();
  const int copy = ::dup(pair.fd(0));
  ASSERT_TRUE(duplicate_entry(pair.fd(0), copy));
  const msghdr message = carrying({pair.fd(0), copy});
  const PipesToSend with(message);
  EXPECT_TRUE(with.any());
  ASSERT_EQ(::sendmsg(two[0], with.message(), 0), 1);
  EXPECT_EQ(received(), 4u) << "with one pipe, and the table of slots";
  forget(copy);
  ::close(copy);
}

TEST_F(PipesAlong, OfOthersAreNotThere) {
  const msghdr message = carrying({pair.fd(0), STDERR_FILENO});
  const PipesToSend with(message);
  EXPECT_FALSE(with.any());
  EXPECT_EQ(with.message()->msg_control, message.msg_control);
  EXPECT_EQ(with.message()->msg_controllen, message.msg_controllen);
}

TEST_F(PipesAlong, AreNotSeenByTheProgram) {
  pair.migrate();
  const msghdr message = carrying({pair.fd(0)});
  const PipesToSend with(message);
  ASSERT_EQ(::sendmsg(two[0], with.message(), 0), 1);
  alignas(cmsghdr) char own[CMSG_SPACE(sizeof(int))], larger[sizeof own + kRoomForPipes];
  msghdr to{nullptr, 0, &io, 1, own, sizeof own, 0};
  ASSERT_TRUE(may_bring_pipes(&to));
  msghdr with_room = with_room_for_pipes(to, larger);
  ASSERT_EQ(::recvmsg(two[1], &with_room, MSG_CMSG_CLOEXEC), 1);
  take_pipes(with_room, &to, two[1], false);
  EXPECT_EQ(to.msg_control, own);
  EXPECT_EQ(to.msg_controllen, CMSG_SPACE(sizeof(int)));
  EXPECT_EQ(to.msg_flags & MSG_CTRUNC, 0);
  std::vector<int> fds;
  for_each_passed(to, [&](int fd) { fds.push_back(fd); });
  ASSERT_EQ(fds.size(), 1u);
  EXPECT_TRUE(acquire(fds[0])->shared());
  forget(fds[0]);
  ::close(fds[0]);
}

TEST_F(PipesAlong, TheProgramsOwnMemfdsAreNot) {
  const int own = ::memfd_create("program", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const msghdr message = carrying({pair.fd(0), own});
  ASSERT_EQ(::sendmsg(two[0], &message, 0), 1);
  alignas(cmsghdr) char small[CMSG_SPACE(2 * sizeof(int))], larger[sizeof small + kRoomForPipes];
  msghdr to{nullptr, 0, &io, 1, small, sizeof small, 0};
  msghdr with_room = with_room_for_pipes(to, larger);
  ASSERT_EQ(::recvmsg(two[1], &with_room, MSG_CMSG_CLOEXEC), 1);
  take_pipes(with_room, &to, two[1], false);
  std::size_t count = 0;
  for_each_passed(to, [&](int fd) {
    ++count;
    forget(fd);
    ::close(fd);
  });
  EXPECT_EQ(count, 2u);
  ::close(own);
}

}  // namespace
}  // namespace clan::preload
