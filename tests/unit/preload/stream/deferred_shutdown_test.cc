#include <chrono>

#include "preload/tcp_pair.h"
#include "stream/close.h"
#include "stream/ending.h"

namespace clan::preload {
namespace {

// A send by TCP that has not ended, or a process that was stopped in the middle of the switch.
TEST(OwedEndOfTcp, IsToldWhenItsBytesGoByThePipe) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  ASSERT_TRUE(OpenFileState::try_close(s.open_file().sends, ::getppid()));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(shared_shutdown(pair.fd(0), s, SHUT_WR), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
  EXPECT_TRUE(owes_end(s));
  OpenFileState::open(s.open_file().sends, ::getppid());
  poll_tcp_socket(pair.fd(0), s);
  EXPECT_EQ(pair.receive(1), "");
  EXPECT_EQ(errno, 0);
}

}  // namespace
}  // namespace clan::preload
