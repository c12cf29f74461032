#include "state/socket_transfer.h"

#include <gtest/gtest.h>

#include "support/hand_over.h"

namespace clan::preload {
namespace {

// As tcp/tcp_backlog.cc stores it.
TEST(SocketTransfer, OneThatFindsTcpDrainedComesBehindWhatWasReadOfIt) {
  Transfer transfer;
  int read = 0;
  test::hand_over([&] { read = 9, transfer.drained.store(true, std::memory_order_release); },
                  [&] {
                    EXPECT_TRUE(transfer.has_drained());
                    EXPECT_EQ(read, 9);
                  });
}

}  // namespace
}  // namespace clan::preload
