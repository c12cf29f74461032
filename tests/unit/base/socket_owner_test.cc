// Whose sockets are, by the kernel's word: on loopback, and of children that have become another
// user.
#include "base/socket_owner.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "base/fd.h"

namespace clan::test {
namespace {

constexpr uid_t kStranger = 61'003;

sockaddr_in6 loopback(bool ipv4, std::uint16_t port) {
  sockaddr_in6 a{};
  a.sin6_family = AF_INET6;
  a.sin6_port = htons(port);
  EXPECT_EQ(::inet_pton(AF_INET6, ipv4 ? "::ffff:127.0.0.1" : "::1", &a.sin6_addr), 1);
  return a;
}

TcpEnd end_of(int (*call)(int, sockaddr*, socklen_t*), const Fd& socket) {
  sockaddr_in6 a{};
  socklen_t size = sizeof a;
  EXPECT_EQ(call(socket.get(), reinterpret_cast<sockaddr*>(&a), &size), 0);
  return {a.sin6_addr, ntohs(a.sin6_port)};
}

struct Pair {
  Fd listener, client;
  explicit Pair(bool ipv4) {
    listener = Fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    client = Fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in6 at = loopback(ipv4, 0);
    const auto* name = reinterpret_cast<const sockaddr*>(&at);
    EXPECT_EQ(::bind(listener.get(), name, sizeof at), 0);
    EXPECT_EQ(::listen(listener.get(), 5), 0);
    at.sin6_port = htons(end_of(::getsockname, listener).port);
    EXPECT_EQ(::connect(client.get(), name, sizeof at), 0);
  }
};

TEST(TcpOwner, IsTheOneThatHasConnectedOrAccepted) {
  for (const bool ipv4 : {false, true}) {
    const Pair pair(ipv4);
    const Fd served(::accept(pair.listener.get(), nullptr, nullptr));
    const TcpEnd client = end_of(::getsockname, pair.client);
    const TcpEnd server = end_of(::getpeername, pair.client);
    const auto ours = tcp_owner(server, client);
    if (!ours) GTEST_SKIP() << "the kernel does not say whose sockets are (sock_diag)";
    EXPECT_EQ(*ours, ::geteuid());
    EXPECT_EQ(tcp_owner(client, server), ::geteuid());
    TcpEnd nobody = client;
    nobody.port = 1;
    EXPECT_FALSE(tcp_owner(server, nobody).has_value()) << "one that listens is no connection";
    EXPECT_FALSE(tcp_owner(nobody, server).has_value());
  }
}

TEST(TcpOwner, IsAnotherUserWhereThatHasAccepted) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const Pair pair(true);
  const TcpEnd client = end_of(::getsockname, pair.client);
  const TcpEnd server = end_of(::getpeername, pair.client);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(kStranger) != 0) ::_exit(2);
    const Fd served(::accept(pair.listener.get(), nullptr, nullptr));
    const auto owner = tcp_owner(server, client);
    ::_exit(owner && *owner == kStranger && tcp_owner(client, server) == uid_t{0} ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(UdpPortOwner, IsKnownWhateverTheAddressOfTheSocket) {
  for (const char* host : {"::", "::1", "::ffff:127.0.0.1"}) {
    const Fd socket(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_in6 at{};
    at.sin6_family = AF_INET6;
    ASSERT_EQ(::inet_pton(AF_INET6, host, &at.sin6_addr), 1);
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
    EXPECT_EQ(udp_port_owner(end_of(::getsockname, socket).port), ::geteuid()) << host;
  }
  EXPECT_FALSE(udp_port_owner(0).has_value());
}

TEST(UdpPortOwner, IsTheUserThatHasMadeTheSocket) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(kStranger) != 0) ::_exit(2);
    const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    socklen_t size = sizeof at;
    if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) ::_exit(3);
    (void)::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at), &size);
    ::_exit(udp_port_owner(ntohs(at.sin_port)) == kStranger ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace clan::test
