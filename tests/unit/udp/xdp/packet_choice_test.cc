#include "link/udp/xdp/packet_choice.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <iterator>

#include "link/udp/io/socket_io.h"
#include "link/udp/xdp/xdp_program.h"

namespace clan::udp {
namespace {

TEST(PacketChoice, WithoutPrivilegeXdpIsRefusedAndAutoTakesSockets) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::geteuid() == 0 && ::setresuid(65'534, 65'534, 65'534) != 0) ::_exit(9);
    const auto demanded = open_packets({}, Packets::kXdp);
    if (demanded.ok()) ::_exit(1);
    if (std::strstr(demanded.error().what, "AF_XDP") == nullptr) ::_exit(2);
    const auto wanted = open_packets({}, Packets::kAuto);
    if (!wanted.ok() || dynamic_cast<SocketIo*>(wanted.value().get()) == nullptr) ::_exit(3);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

#ifdef __x86_64__
// A process that may have AF_XDP sockets, and none of rtnetlink.
bool forbid_netlink() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(code)), code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(PacketChoice, WhatIsPossibleAndFailsYetIsRefusedAndAutoTakesSockets) {
  if (const Status s = XdpProgram::possible(); !s) GTEST_SKIP() << s.error().message();
  const pid_t child = ::fork();
  if (child == 0) {
    if (!forbid_netlink()) ::_exit(9);
    if (open_packets({}, Packets::kXdp).ok()) ::_exit(1);
    const auto wanted = open_packets({}, Packets::kAuto);
    if (!wanted.ok() || dynamic_cast<SocketIo*>(wanted.value().get()) == nullptr) ::_exit(2);
    ::_exit(wanted.value()->local_address().port != 0 ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}
#endif

TEST(PacketChoice, SocketsAreTheDefaultWhateverIsPossible) {
  const auto io = open_packets({}, Packets::kSockets);
  ASSERT_TRUE(io.ok());
  EXPECT_NE(dynamic_cast<SocketIo*>(io.value().get()), nullptr);
}

}  // namespace
}  // namespace clan::udp
