#include "tcp/doorbell.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "preload/sharer.h"
#include "preload/tcp_pair.h"
#include "stream/bell.h"
#include "stream/poll_tcp.h"
#include "support/process.h"

namespace clan::preload {
namespace {

using socket_face::kDoorbells;
using socket_face::kDoorbellsRead;

struct Doorbell : testing::Test {
  Doorbell() { pair.migrate(); }
  TcpPair pair;
};

TEST_F(Doorbell, IsAByteOfTcpThatTheOtherEndCounts) {
  ring_doorbell(pair.fd(0), pair.socket(0));
  EXPECT_EQ(pair.socket(0).mine().words[kDoorbells].load(), 1u);
  EXPECT_TRUE(doorbells_waiting(pair.socket(1)));
  EXPECT_EQ(pair.receive(1), "");  // drains what TCP had before the switch: nothing
  EXPECT_TRUE(drain_doorbells(pair.fd(1), pair.socket(1)));
  EXPECT_FALSE(doorbells_waiting(pair.socket(1)));
  EXPECT_EQ(pair.socket(1).mine().words[kDoorbellsRead].load(), 1u);
}

TEST_F(Doorbell, IsReadNoFurtherThanAsked) {
  for (int k = 0; k < 3; ++k) ring_doorbell(pair.fd(0), pair.socket(0));
  EXPECT_TRUE(drain_doorbells(pair.fd(1), pair.socket(1), 2));
  EXPECT_EQ(pair.socket(1).mine().words[kDoorbellsRead].load(), 2u);
}

TEST_F(Doorbell, IsNotRungAnyMoreWhenItHasBeenSilenced) {
  Socket& s = pair.socket(0);
  {
    const Ringing ringing(pair.fd(0), s.mine(), s.open_file());
    EXPECT_TRUE(ringing);
  }
  silence(pair.fd(0), s);
  {
    const Ringing ringing(pair.fd(0), s.mine(), s.open_file());
    EXPECT_FALSE(ringing);
  }
  ring_doorbell(pair.fd(0), s);
  EXPECT_EQ(s.mine().words[kDoorbells].load(), 0u);
}

TEST_F(Doorbell, ThatAKilledProcessCountedAndDidNotSendIsCountedNoMore) {
  Socket& s = pair.socket(0);
  ring_doorbell(pair.fd(0), s);
  Sharer sharer([&] {
    const Ringing ringing(pair.fd(0), s.mine(), s.open_file());
    s.mine().words[kDoorbells].fetch_add(1);
    ::raise(SIGSTOP);
    return true;
  });
  sharer.has_stopped();
  sharer.is_killed();
  silence(pair.fd(0), s);
  EXPECT_EQ(s.mine().words[kDoorbells].load(), 1u);
}

TEST_F(Doorbell, OfAProcessThatIsStoppedIsWaitedForBeforeItsEndIsSilent) {
  Socket& s = pair.socket(0);
  test::Gate sends;
  Sharer sharer([&] {
    const Ringing ringing(pair.fd(0), s.mine(), s.open_file());
    sends.open();
    ::raise(SIGSTOP);
    s.mine().words[kDoorbells].fetch_add(1);
    return send_doorbell(pair.fd(0)) == 1;
  });
  EXPECT_TRUE(sends.wait());
  sharer.has_stopped();
  std::thread silencer([&] {
    silence(pair.fd(0), s);
    EXPECT_EQ(s.mine().words[kDoorbells].load(), 1u);
  });
  sharer.goes_on();
  sharer.ends_well();
  silencer.join();
}

TEST_F(Doorbell, IsOwedByACallBeforeOnlyWhereSeveralProcessesHaveTheEnd) {
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
