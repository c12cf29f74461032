#include "stream/far_wait.h"

#include <gtest/gtest.h>

#include "../tcp_pair.h"

namespace clan::preload {
namespace {

TEST(FarWait, OfASocketOfThisHostKnowsTheOtherEndsProcessor) {
  TcpPair pair;
  pair.migrate();
  const char byte = 'x';
  const iovec io{const_cast<char*>(&byte), 1};
  ASSERT_EQ(pair.socket(1).pipe.send(&io, 1).bytes, 1u);
  char to;
  const iovec into{&to, 1};
  ASSERT_EQ(pair.socket(0).pipe.receive(&into, 1, false).bytes, 1u);
  pair.socket(0).rang.store(true);
  const Awaited peer = awaited_of(pair.socket(0));
  EXPECT_EQ(peer.cpu, pair.socket(0).pipe.peer_cpu());
  EXPECT_TRUE(peer.slept);
  EXPECT_FALSE(is_carried(pair.socket(0)));
  EXPECT_FALSE(fetch_for(pair.socket(0)));
}

TEST(FarWait, OfACarriedOneKnowsNothingOfTheOtherEnd) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  s.rang.store(true);
  char no_carrier;  // is not asked
  s.far.store(reinterpret_cast<Carried*>(&no_carrier));
  const Awaited peer = awaited_of(s);
  EXPECT_EQ(peer.cpu, 0);
  EXPECT_FALSE(peer.slept);
  EXPECT_FALSE(fetch_for(s)) << "without a carrier nothing has come";
  PacketSleep sleep(is_carried(s), PacketSleep::May::kFetch);
  EXPECT_FALSE(sleep.has_come());
  EXPECT_FALSE(sleep.watches()) << "there is nothing to watch";
  s.far.store(nullptr);
}

}  // namespace
}  // namespace clan::preload
