#include "tcp/ring.h"

#include <sys/epoll.h>

#include "preload/tcp_pair.h"
#include "state/face.h"

namespace clan::preload {
namespace {

struct Ring : testing::Test {
  Ring() { pair.migrate(); }
  TcpPair pair;
};

TEST_F(Ring, IsAnEdgeOfTheOtherEndsBellThoughNobodyReadsThat) {
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, pair.socket(1).bell.get(), &event), 0);
  for (int k = 0; k < 10'000; ++k) {
    ASSERT_TRUE(ring_bell(pair.socket(0)));
    ASSERT_EQ(::epoll_wait(set, &event, 1, 0), 1) << k;
  }
  EXPECT_EQ(pair.rings(0), 10'000u);
  ::close(set);
}

TEST_F(Ring, OfAnEndThatIsGoneRaisesNoSignal) {
  pair.socket(1).Bells::reset();
  EXPECT_TRUE(ring_bell(pair.socket(0)));
  add_state(pair.socket(1).mine(), socket_face::kClosed);
  EXPECT_TRUE(ring_bell(pair.socket(0)));
  EXPECT_EQ(pair.rings(0), 1u) << "nobody is there";
}

TEST_F(Ring, ByADescriptorThatIsGoneFails) {
  ::close(pair.socket(0).others_bell.take());
  EXPECT_FALSE(ring_bell(pair.socket(0)));
}

TEST_F(Ring, IsOwedByACallBeforeOnlyWhereSeveralProcessesHaveTheEnd) {
  Socket& s = pair.socket(0);
  {
    const OwedRing first(s, OwedRing::kSends);
    EXPECT_FALSE(first.of_another());
    const OwedRing second(s, OwedRing::kSends);
    EXPECT_FALSE(second.of_another());
  }
  s.inherited = true;
  {
    const OwedRing killed(s, OwedRing::kSends);
    const OwedRing next(s, OwedRing::kSends);
    EXPECT_TRUE(next.of_another());
    const OwedRing other(s, OwedRing::kReceives);
    EXPECT_FALSE(other.of_another()) << "of the other direction";
  }
  const OwedRing last(s, OwedRing::kSends);
  EXPECT_FALSE(last.of_another());
  s.inherited = false;
}

}  // namespace
}  // namespace clan::preload
