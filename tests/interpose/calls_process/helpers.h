// What the tests of interpose-calls_process share: options and names of sockets, and the program
// executed anew.
//
// Calls that make, name, pass on and end sockets, streams on them, and processes that share them:
// on connections that have moved, with what the kernel does by itself expected. Run with the
// interposer preloaded, and without: both have to pass. preload/calls.def names the test of each
// call.
#pragma once

#include "../connection.h"
#include "support/pass_fd.h"

namespace clan::test {

// Executed anew by a test, this program only echoes on the socket that this variable names.
inline constexpr char kEchoOn[] = "CLAN_TEST_ECHO_ON";
inline constexpr char kAcceptOn[] = "CLAN_TEST_ACCEPT_ON";    ///< or on what it accepts there,
inline constexpr char kConnectTo[] = "CLAN_TEST_CONNECT_TO";  ///< or is connected to at this port
inline constexpr char kClose[] = "CLAN_TEST_CLOSE";           ///< and closes this one first
inline constexpr char kWaitIn[] = "CLAN_TEST_WAIT_IN";        ///< waits in this epoll set,
inline constexpr std::uint64_t kDataInSet = 0xdeed;           ///< which has these data
inline constexpr char kTakeFrom[] = "CLAN_TEST_TAKE_FROM";    ///< or on what it receives there

/// The environment as it is, without LD_PRELOAD. Valid until the next call.
char* const* environment_without_library();
/// `fd` becomes standard input and output.
int onto_standard(int fd);

inline int set(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof value);
}
inline int option(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, level, name, &value, &size) == 0 ? value : -1;
}
inline short poll_one(int fd, short events, int timeout_ms) {
  pollfd p{fd, events, 0};
  return ::poll(&p, 1, timeout_ms) < 0 ? static_cast<short>(-1) : p.revents;
}
inline sockaddr_in name_of(int fd, bool peer) {
  sockaddr_in name{};
  socklen_t size = sizeof name;
  auto* to = reinterpret_cast<sockaddr*>(&name);
  EXPECT_EQ(peer ? ::getpeername(fd, to, &size) : ::getsockname(fd, to, &size), 0);
  EXPECT_EQ(size, sizeof name);
  return name;
}
inline bool same(const sockaddr_in& a, const sockaddr_in& b) {
  return a.sin_family == b.sin_family && a.sin_port == b.sin_port &&
         a.sin_addr.s_addr == b.sin_addr.s_addr;
}
/// Reads to the end: how it was.
inline bool ends(int fd) {
  char byte;
  return poll_one(fd, POLLIN, 3000) != 0 && ::read(fd, &byte, 1) == 0;
}

inline bool pass(int through, int fd) { return pass_fd(through, fd) == 1; }
inline int take(int through, int flags = 0) { return take_fd(through, flags); }

}  // namespace clan::test
