// Is what the kernel shows of the other end the other end of this connection?
#include "migrate/verify_connection.h"

#include <sys/un.h>

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

struct SameConnection : testing::Test {
  SameConnection() { EXPECT_TRUE(route_of(pair.fd(0), &route)); }
  TcpPair pair;
  Route route;
  SockDiag window;
};

TEST_F(SameConnection, IsFoundByAddressesCountersAndOwner) {
  ASSERT_EQ(::send(pair.fd(0), "hello", 5, 0), 5);
  char text[8];
  ASSERT_EQ(::recv(pair.fd(1), text, sizeof text, 0), 5);
  EXPECT_EQ(compare(pair.fd(0), route, window, 0, ::geteuid()), Verdict::kSame);
}

TEST_F(SameConnection, IsNotThatOfAnotherUser) {
  EXPECT_EQ(compare(pair.fd(0), route, window, 0, ::geteuid() + 1), Verdict::kOther);
}

TEST_F(SameConnection, IsNotThatOfOtherAddresses) {
  Route other = route;
  other.remote.port ^= 1;
  EXPECT_EQ(compare(pair.fd(0), other, window, 0, ::geteuid()), Verdict::kOther);
}

// The same addresses may be another connection's in another network namespace: what it has carried
// tells. Here the counters are those of a connection that has carried more.
TEST_F(SameConnection, IsNotOneThatHasCarriedOtherBytes) {
  TcpPair other;
  ASSERT_EQ(::send(other.fd(0), "a", 1, 0), 1);
  char byte;
  ASSERT_EQ(::recv(other.fd(1), &byte, 1, 0), 1);
  EXPECT_NE(compare(other.fd(0), route, window, 0, ::geteuid()), Verdict::kSame);
}

TEST_F(SameConnection, IsNotOneThatHasEnded) {
  pair.close(1);
  EXPECT_EQ(compare(pair.fd(0), route, window, 0, ::geteuid()), Verdict::kOther);
}

TEST(AllowedPeer, IsOurOwnUserAtARendezvousAndNobodyAtWhatIsNone) {
  int rendezvous[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, rendezvous), 0);
  uid_t uid = 1;
  EXPECT_TRUE(allowed_peer(rendezvous[0], &uid));
  EXPECT_EQ(uid, ::geteuid());
  EXPECT_FALSE(allowed_peer(-1, &uid));
  for (const int fd : rendezvous) ::close(fd);
}

}  // namespace
}  // namespace clan::preload
