#include "af_clan/af_clan_far.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "af_clan/af_clan.h"

namespace clan::preload {
namespace {

ClanName name_of(const char* text) {
  ClanName name;
  name.size = std::strlen(text);
  std::memcpy(name.text, text, name.size);
  return name;
}

TEST(AfClanFar, NamesOfOtherHostsBeginWithUdp) {
  EXPECT_TRUE(is_far_name(name_of("udp:host/jobs")));
  EXPECT_TRUE(is_far_name(name_of("udp:")));
  EXPECT_FALSE(is_far_name(name_of("udp")));
  EXPECT_FALSE(is_far_name(name_of("jobs/udp:")));
  EXPECT_FALSE(is_far_name(ClanName{}));
}

TEST(AfClanFar, WithoutANetworkTheOtherHostIsNotReached) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect_far(fd, name_of("udp:127.0.0.1/jobs")), -1);
  EXPECT_EQ(errno, ENETUNREACH);
  ::close(fd);
}

TEST(AfClanFar, NamesOfOtherHostsCannotBeTakenHereNorReachedByPackets) {
  sockaddr_clan address;
  const socklen_t size = clan_address(&address, "udp:127.0.0.1/jobs");
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM}) {
    const int fd = ::socket(af_clan_kernel_domain(type, 0), type | SOCK_CLOEXEC, 0);
    ASSERT_TRUE(af_clan_appeared(fd, type));
    const auto* at = reinterpret_cast<const sockaddr*>(&address);
    EXPECT_EQ(af_clan_bind(fd, at, size), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(af_clan_connect(fd, at, size), -1);
    EXPECT_EQ(errno, type == SOCK_STREAM ? ENETUNREACH : EOPNOTSUPP);
    forget_af_clan(fd);
    ::close(fd);
  }
}

}  // namespace
}  // namespace clan::preload
