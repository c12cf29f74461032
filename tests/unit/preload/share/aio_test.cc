#include <linux/aio_abi.h>

#include "preload/tcp_pair.h"
#include "share/uring.h"

namespace clan::preload {
namespace {

TEST(AioRooms, OfASocketKeepsItOnTcp) {
  TcpPair pair;
  leave_for_aio(pair.fd(0));
  EXPECT_EQ(pair.socket(0).state_now(), Socket::State::kKernel);
  EXPECT_EQ(pair.socket(1).state_now(), Socket::State::kTcp);
  leave_for_aio(-1);
  leave_for_aio(0);
}

TEST(AioRooms, OfTheKernelTakesBackWhatIsNamed) {
  TcpPair named, other;
  for (TcpPair* pair : {&named, &other}) pair->migrate_and_greet();
  iocb one{};
  one.aio_fildes = static_cast<unsigned>(named.fd(1));
  const iocb* const list[] = {nullptr, &one};
  leave_for_aio(list, 2);
  leave_for_aio(nullptr, 2);
  EXPECT_TRUE(named.socket(1).reads_kernel());
  EXPECT_TRUE(other.socket(1).shared());
}

}  // namespace
}  // namespace clan::preload
