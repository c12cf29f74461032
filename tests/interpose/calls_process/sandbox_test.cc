// Processes under filters of system calls.
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "helpers.h"

namespace clan::test {
namespace {

sock_fprog allow_all() {
  static sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  return {1, allow};
}

TEST(Sandbox, InOneConnectionsAreTcp) {
  using Enter = bool (*)();
  const std::pair<const char*, Enter> kWays[] = {
      {"prctl",
       [] {
         const sock_fprog program = allow_all();
         return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
       }},
      {"seccomp",
       [] {
         const sock_fprog program = allow_all();
         return ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
       }},
      {"a limit of file sizes",
       [] {
         const rlimit small{4096, 4096};
         return ::setrlimit(RLIMIT_FSIZE, &small) == 0;
       }},
  };
  for (const auto& [name, enter] : kWays) {
    SCOPED_TRACE(name);
    Peer peer([enter = enter](int fd) {
      ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
      if (!enter()) return 1;
      return echo(fd);
    });
    ping(peer.fd, 100);
    EXPECT_TRUE(by_tcp(peer.fd));
  }
}

/// What the process has locked in memory, in KB, by /proc/self/status.
long locked_kb() {
  char text[4096] = {};
  const int fd = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  EXPECT_GT(::read(fd, text, sizeof text - 1), 0);
  ::close(fd);
  const char* line = std::strstr(text, "VmLck:");
  return line != nullptr ? std::atol(line + 6) : -1;
}

TEST(Sandbox, AProcessThatLocksItsMemoryDoesNotLockRings) {
  const pid_t pid = child([] {
    if (::mlockall(MCL_FUTURE) != 0) return 77;
    constexpr long kMostKb = 2048;  // of which a ring is many times as much
    const long before = locked_kb();
    const Pair pair;
    pair.talk();
    EXPECT_LT(locked_kb() - before, kMostKb);
    return testing::Test::HasFailure() ? 1 : 0;
  });
  const int result = result_of(pid);
  if (result == 77) GTEST_SKIP() << "this process may not lock memory";
  EXPECT_EQ(result, 0);
}

/// Refuses one system call, and the program that is executed does not see it happen.
bool refuse(std::uint32_t number) {
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{4, filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(Sandbox, FromBeforeExecThatRefusesACallAPipeNeedsKeepsConnectionsOnTcp) {
  for (const std::uint32_t number : {SYS_sendmsg, SYS_recvmsg, SYS_recvfrom, SYS_ioctl}) {
    for (const bool accepts : {true, false}) {
      const int listening = listener();
      const pid_t pid = child([&] {
        ::fcntl(listening, F_SETFD, 0);
        ::setenv(accepts ? kAcceptOn : kConnectTo,
                 std::to_string(accepts ? listening : port_of(listening)).c_str(), 1);
        if (refuse(number)) ::execl("/proc/self/exe", "echo", nullptr);
        return 1;
      });
      const int fd =
          accepts ? connect_to(port_of(listening)) : ::accept(listening, nullptr, nullptr);
      ping(fd, 100);
      EXPECT_TRUE(by_tcp(fd));
      ::close(fd);
      ::close(listening);
      EXPECT_EQ(result_of(pid), 0) << number;
    }
  }
}

TEST(Sandbox, AConnectionMadeInOneDoesNotMove) {
  Peer peer(
      [](int fd) {
        ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        const sock_fprog program = allow_all();
        if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return 1;
        return echo(fd);
      },
      false);
  ping(peer.fd, 100);
  EXPECT_TRUE(by_tcp(peer.fd));
}

}  // namespace
}  // namespace clan::test
