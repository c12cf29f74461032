// Sockets by name: binding, calling and accepting streams, and the names in messages.
#include "af_clan/af_clan.h"

#include <gtest/gtest.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "clan/af_clan.h"

namespace clan::preload {
namespace {

std::string fresh_name() {
  static int number = 0;
  return "unit-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
}

struct ClanAddress {
  explicit ClanAddress(const std::string& name = {}) : size(clan_address(&address, name.c_str())) {}
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&address); }
  std::string name() const {
    char text[CLAN_NAME_MAX + 1];
    return {text, clan_name(&address, size, text)};
  }
  sockaddr_clan address;
  socklen_t size;
};

/// As socket(AF_CLAN, type, 0) makes one.
struct ClanFd {
  explicit ClanFd(int type) {
    const int domain = af_clan_kernel_domain(type, 0);
    fd = ::socket(domain, type | SOCK_CLOEXEC, 0);
    EXPECT_GE(fd, 0);
    EXPECT_TRUE(af_clan_appeared(fd, type));
  }
  struct Accepted {};
  ClanFd(Accepted, int number) : fd(number) { EXPECT_GE(fd, 0); }
  ~ClanFd() {
    if (fd < 0) return;
    forget_af_clan(fd);
    ::close(fd);
  }
  ClanFd(const ClanFd&) = delete;
  ClanFd& operator=(const ClanFd&) = delete;
  int bind(const std::string& name) const {
    ClanAddress a(name);
    return af_clan_bind(fd, a.get(), a.size);
  }
  int connect(const std::string& name) const {
    ClanAddress a(name);
    return af_clan_connect(fd, a.get(), a.size);
  }
  std::string local() const {
    ClanAddress a;
    a.size = sizeof a.address;
    return af_clan_getsockname(fd, a.get(), &a.size) == 0 ? a.name() : "?";
  }
  std::string peer() const {
    ClanAddress a;
    a.size = sizeof a.address;
    return af_clan_getpeername(fd, a.get(), &a.size) == 0 ? a.name() : "?";
  }
  int fd;
};

TEST(AfClanSocket, IsOfTheTypesThatTheKernelHasASocketFor) {
  EXPECT_EQ(af_clan_kernel_domain(SOCK_STREAM, 0), AF_INET);
  EXPECT_EQ(af_clan_kernel_domain(SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), AF_INET);
  EXPECT_EQ(af_clan_kernel_domain(SOCK_SEQPACKET, 0), AF_UNIX);
  EXPECT_EQ(af_clan_kernel_domain(SOCK_DGRAM, 0), AF_UNIX);
  EXPECT_EQ(af_clan_kernel_domain(SOCK_RAW, 0), -1);
  EXPECT_EQ(errno, ESOCKTNOSUPPORT);
  EXPECT_EQ(af_clan_kernel_domain(SOCK_STREAM, 6), -1);
  EXPECT_EQ(errno, EPROTONOSUPPORT);
}

TEST(AfClanSocket, OfStreamsCallsByNameAndKnowsBothNames) {
  const std::string name = fresh_name();
  const ClanFd server(SOCK_STREAM), client(SOCK_STREAM);
  ASSERT_EQ(server.bind(name), 0);
  EXPECT_EQ(server.local(), name);
  ASSERT_EQ(af_clan_listen(server.fd, 4), 0);
  ASSERT_EQ(client.connect(name), 0);
  EXPECT_EQ(client.peer(), name);
  EXPECT_EQ(client.local(), "");
  ClanAddress from;
  from.size = sizeof from.address;
  const int got = ::accept4(server.fd, nullptr, nullptr, SOCK_CLOEXEC);
  const ClanFd accepted(ClanFd::Accepted(),
                        af_clan_accepted(server.fd, got, from.get(), &from.size));
  EXPECT_EQ(from.name(), "");
  EXPECT_EQ(accepted.local(), name);
  EXPECT_EQ(af_clan_type(accepted.fd), SOCK_STREAM);
  ASSERT_EQ(::send(client.fd, "hello", 5, 0), 5);
  char text[8];
  EXPECT_EQ(::recv(accepted.fd, text, sizeof text, 0), 5);
}

TEST(AfClanSocket, CallsNobodyWhereNobodyListens) {
  const std::string name = fresh_name();
  const ClanFd client(SOCK_STREAM);
  EXPECT_EQ(client.connect(name), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  const ClanFd packets(SOCK_SEQPACKET);
  EXPECT_EQ(packets.connect(name), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
}

TEST(AfClanSocket, HasANameThatNoOtherSocketHas) {
  const std::string name = fresh_name();
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM}) {
    const ClanFd first(type), second(type);
    ASSERT_EQ(first.bind(name), 0) << type;
    if (type == SOCK_STREAM) {
      ASSERT_EQ(af_clan_listen(first.fd, 1), 0);
    }
    EXPECT_EQ(second.bind(name), -1) << type;
    EXPECT_EQ(errno, EADDRINUSE) << type;
  }
  const ClanFd after(SOCK_STREAM);  // the kernel has taken it back
  EXPECT_EQ(after.bind(name), 0);
}

TEST(AfClanSocket, FindsANameWhereNoneIsGiven) {
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    const ClanFd one(type), other(type);
    ASSERT_EQ(one.bind(""), 0);
    ASSERT_EQ(other.bind(""), 0);
    EXPECT_FALSE(one.local().empty());
    EXPECT_NE(one.local(), other.local());
  }
}

TEST(AfClanSocket, OfStreamsIsBoundOnceAndListensByANameOnly) {
  const ClanFd one(SOCK_STREAM);
  EXPECT_EQ(af_clan_listen(one.fd, 1), -1);
  EXPECT_EQ(errno, EINVAL);
  ASSERT_EQ(one.bind(fresh_name()), 0);
  EXPECT_EQ(one.bind(fresh_name()), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(AfClanSocket, RefusesAddressesOfOtherFamilies) {
  const ClanFd one(SOCK_STREAM);
  sockaddr_un other{};
  other.sun_family = AF_UNIX;
  auto* address = reinterpret_cast<sockaddr*>(&other);
  EXPECT_EQ(af_clan_bind(one.fd, address, sizeof other), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(af_clan_connect(one.fd, address, sizeof other), -1);
  EXPECT_EQ(errno, EAFNOSUPPORT);
  EXPECT_EQ(one.connect(""), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(AfClanMessage, CarriesTheNamesOfBothSides) {
  const std::string name = fresh_name(), mine = fresh_name();
  const ClanFd to(SOCK_DGRAM), from(SOCK_DGRAM);
  ASSERT_EQ(to.bind(name), 0);
  ASSERT_EQ(from.bind(mine), 0);
  ClanAddress there(name);
  ASSERT_EQ(af_clan_sendto(from.fd, "hello", 5, 0, there.get(), there.size), 5);
  char text[8];
  ClanAddress sender;
  sender.size = sizeof sender.address;
  ASSERT_EQ(af_clan_recvfrom(to.fd, text, sizeof text, 0, sender.get(), &sender.size), 5);
  EXPECT_EQ(sender.name(), mine);
  // And back, by the address that came.
  ASSERT_EQ(af_clan_sendto(to.fd, "yes", 3, 0, sender.get(), sender.size), 3);
  EXPECT_EQ(af_clan_recvfrom(from.fd, text, sizeof text, 0, nullptr, nullptr), 3);
}

TEST(AfClanMessage, OfASenderWithoutANameHasNone) {
  const std::string name = fresh_name();
  const ClanFd to(SOCK_DGRAM), from(SOCK_DGRAM);
  ASSERT_EQ(to.bind(name), 0);
  ClanAddress there(name);
  iovec io{const_cast<char*>("hello"), 5};
  msghdr message{};
  message.msg_name = there.get();
  message.msg_namelen = there.size;
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  ASSERT_EQ(af_clan_sendmsg(from.fd, &message, 0), 5);
  char text[8];
  iovec into{text, sizeof text};
  ClanAddress sender;
  msghdr got{};
  got.msg_name = sender.get();
  got.msg_namelen = sizeof sender.address;
  got.msg_iov = &into;
  got.msg_iovlen = 1;
  ASSERT_EQ(af_clan_recvmsg(to.fd, &got, 0), 5);
  EXPECT_EQ(got.msg_namelen, 0u);
}

TEST(AfClanMessage, GoesNowhereByAnAddressThatIsNone) {
  const ClanFd from(SOCK_DGRAM);
  ClanAddress there(fresh_name());
  EXPECT_EQ(af_clan_sendto(from.fd, "x", 1, 0, there.get(), 1), -1);
  EXPECT_EQ(errno, EINVAL);
  there.address.sclan_family = AF_UNIX;
  EXPECT_EQ(af_clan_sendto(from.fd, "x", 1, 0, there.get(), there.size), -1);
  EXPECT_EQ(errno, EINVAL);
  ClanAddress empty;
  EXPECT_EQ(af_clan_sendto(from.fd, "x", 1, 0, empty.get(), empty.size), -1);
  EXPECT_EQ(errno, EINVAL);
  ClanAddress nobody(fresh_name());
  EXPECT_EQ(af_clan_sendto(from.fd, "x", 1, 0, nobody.get(), nobody.size), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
}

}  // namespace
}  // namespace clan::preload
