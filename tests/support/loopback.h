// Sockets of this host's loopback, for tests.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>

namespace clan::test {

inline sockaddr_in loopback() {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return at;
}

/// A UDP port that nobody has just now.
inline std::uint16_t free_udp_port() {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in at = loopback();
  socklen_t size = sizeof at;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&at), size), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size), 0);
  ::close(fd);
  return ntohs(at.sin_port);
}

/// Two ends of a TCP connection, which block; the first is the client's, the other's address is
/// `at`, at a port that is free. The caller closes them.
inline std::array<int, 2> tcp_ends(sockaddr_in at = loopback()) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t size = sizeof at;
  EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&at), size), 0);
  EXPECT_EQ(::listen(listener, 1), 0);
  EXPECT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size), 0);
  const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::connect(client, reinterpret_cast<sockaddr*>(&at), size), 0);
  const int server = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  EXPECT_GE(server, 0);
  ::close(listener);
  return {client, server};
}

}  // namespace clan::test
