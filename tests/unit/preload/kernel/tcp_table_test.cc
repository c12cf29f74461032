#include <sys/stat.h>

#include "kernel/sock_diag.h"
#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

TEST(TcpTable, FindsAConnectionByItsAddresses) {
  if (::access("/proc/self/net/tcp", R_OK) != 0) GTEST_SKIP() << "no /proc/self/net/tcp here";
  TcpPair pair;
  Route route;
  ASSERT_TRUE(route_of(pair.fd(0), &route));
  SockDiag::Found found;
  ASSERT_TRUE(find_in_tcp_tables(route.remote, route.local, &found));
  struct stat other {};
  ::fstat(pair.fd(1), &other);
  EXPECT_EQ(found.inode, other.st_ino);
  EXPECT_EQ(found.uid, ::getuid());
  route.local.port ^= 1;
  EXPECT_FALSE(find_in_tcp_tables(route.remote, route.local, &found));
}

}  // namespace
}  // namespace clan::preload
