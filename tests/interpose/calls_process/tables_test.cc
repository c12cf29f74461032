// Threads and processes that do not have their descriptors in common with their memory.
#include <linux/close_range.h>
#include <linux/sched.h>
#include <sched.h>

#include "helpers.h"

namespace clan::test {
namespace {

struct Departure {
  const char* name;
  void (*leave_and_close)(int fd);  ///< in a thread
};
const Departure kWays[] = {
    {"unshare",
     [](int fd) {
       EXPECT_EQ(::unshare(CLONE_FILES), 0);
       ::close(fd);
     }},
    {"unshare by number",
     [](int fd) {
       EXPECT_EQ(::syscall(SYS_unshare, CLONE_FILES), 0);
       ::close(fd);
     }},
    {"close_range",
     [](int fd) {
       const auto number = static_cast<unsigned>(fd);
       EXPECT_EQ(::close_range(number, number, CLOSE_RANGE_UNSHARE), 0);
     }},
};

// What it closes in its own table stays open in that of the others.
TEST(Tables, OfOneThreadAreNotTheOthers) {
  for (const Departure& way : kWays) {
    SCOPED_TRACE(way.name);
    Peer peer([&way](int fd) {
      std::thread([&] { way.leave_and_close(fd); }).join();
      return echo(fd);
    });
    ping(peer.fd, 100);
    EXPECT_TRUE(by_tcp(peer.fd));
  }
}

// A process that is no thread, and closes what its parent has.
TEST(Tables, MayBeSharedByProcessesThatShareNoMemory) {
  for (const bool by_number : {false, true}) {
    Peer peer([by_number](int fd) {
      const int copy = ::dup(fd);
      auto close_one = [](void* which) {
        ::close(*static_cast<int*>(which));
        return 0;
      };
      std::vector<char> stack(1 << 18);
      const auto pid =
          by_number ? static_cast<pid_t>(::syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0))
                    : ::clone(close_one, stack.data() + stack.size(), CLONE_FILES | SIGCHLD, &fd);
      if (pid == 0) ::_exit(close_one(&fd));
      if (result_of(pid) != 0) return 3;
      if (::fcntl(fd, F_GETFD) >= 0) return 4;  // it has closed ours
      return echo(copy);
    });
    ping(peer.fd, 100);
    EXPECT_TRUE(by_tcp(peer.fd));
  }
}

}  // namespace
}  // namespace clan::test
