#include "link/udp/packet_choice.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "link/udp/socket_io.h"

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

TEST(PacketChoice, SocketsAreTheDefaultWhateverIsPossible) {
  const auto io = open_packets({}, Packets::kSockets);
  ASSERT_TRUE(io.ok());
  EXPECT_NE(dynamic_cast<SocketIo*>(io.value().get()), nullptr);
}

}  // namespace
}  // namespace clan::udp
