#include "kernel/tcp.h"

#include <cerrno>

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

TEST(Tcp, CountsWhatTheKernelHasTakenAndWhatHasArrived) {
  TcpPair pair;
  std::uint64_t sent = 1;
  ASSERT_TRUE(sent_by_tcp(pair.fd(0), &sent));
  EXPECT_EQ(sent, 0u);
  ASSERT_EQ(::send(pair.fd(0), "hello", 5, 0), 5);
  ASSERT_TRUE(sent_by_tcp(pair.fd(0), &sent));
  EXPECT_EQ(sent, 5u);
  char text[8];
  ASSERT_EQ(::recv(pair.fd(1), text, sizeof text, 0), 5);
  EXPECT_EQ(arrived(pair.fd(1)), 5u);
}

TEST(Tcp, KnowsEachSocketByAName) {
  TcpPair pair;
  const int copy = ::dup(pair.fd(0));
  EXPECT_NE(cookie_of(pair.fd(0)), 0u);
  EXPECT_EQ(cookie_of(pair.fd(0)), cookie_of(copy));
  EXPECT_NE(cookie_of(pair.fd(0)), cookie_of(pair.fd(1)));
  EXPECT_EQ(cookie_of(-1), 0u);
  ::close(copy);
}

TEST(Tcp, TellsAnEndOfTheOtherOneFromAShutdownOfReading) {
  TcpPair pair;
  EXPECT_TRUE(other_end_is_open(pair.fd(0)));
  ASSERT_EQ(::shutdown(pair.fd(0), SHUT_RDWR), 0);
  EXPECT_TRUE(other_end_is_open(pair.fd(0)));
  EXPECT_FALSE(other_end_is_open(pair.fd(1)));
  EXPECT_FALSE(other_end_is_open(-1));
}

TEST(Tcp, ResetsAConnection) {
  TcpPair pair;
  reset_connection(pair.fd(0));
  char byte;
  EXPECT_EQ(::recv(pair.fd(1), &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

}  // namespace
}  // namespace clan::preload
