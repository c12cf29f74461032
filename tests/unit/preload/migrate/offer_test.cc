// Offers between the ends of one network namespace.
#include "migrate/offer.h"

#include "preload/tcp_pair.h"
#include "state/withdraw.h"

namespace clan::preload {
namespace {

TEST(Offer, IsTakenUpByTheOtherEndAndBothAreInOnePipe) {
  TcpPair pair;
  offer(pair.fd(0), pair.socket(0));
  ASSERT_EQ(pair.socket(0).state.load(), Socket::State::kOffered);
  EXPECT_GE(pair.socket(0).offer_fd.get(), 0);
  look_for_offer(pair.fd(1), pair.socket(1));
  ASSERT_TRUE(pair.socket(1).shared());
  look_for_taker(pair.fd(0), pair.socket(0));
  ASSERT_TRUE(pair.socket(0).shared());
  EXPECT_EQ(pair.socket(0).pipe.inode(), pair.socket(1).pipe.inode());
  ASSERT_EQ(pair.send(0, "by memory"), 9);
  EXPECT_EQ(pair.receive(1), "by memory");
}

TEST(Offer, ThatNobodyTakesUpLeavesTheConnectionAsItIs) {
  TcpPair pair;
  offer(pair.fd(0), pair.socket(0));
  look_for_taker(pair.fd(0), pair.socket(0));
  EXPECT_EQ(pair.socket(0).state.load(), Socket::State::kOffered);
  ASSERT_EQ(::send(pair.fd(0), "by TCP", 6, 0), 6);
  char text[8];
  EXPECT_EQ(::recv(pair.fd(1), text, sizeof text, 0), 6);
}

TEST(Offer, OfBothEndsSaysThatNoneHasAccepted) {
  TcpPair pair;
  for (const int end : {0, 1}) offer(pair.fd(end), pair.socket(end));
  pair.socket(0).sends = pair.socket(0).receives = 1000;  // it gives up
  look_for_taker(pair.fd(0), pair.socket(0));
  EXPECT_EQ(pair.socket(0).said.load(), reasons::Why::kBothConnected);
}

TEST(Offer, IsNotFoundWhereThereIsNone) {
  TcpPair pair;
  look_for_offer(pair.fd(1), pair.socket(1));
  EXPECT_EQ(pair.socket(1).state.load(), Socket::State::kTcp);
}

TEST(Offer, ThatWasWithdrawnIsNotFound) {
  TcpPair pair;
  offer(pair.fd(0), pair.socket(0));
  withdraw_offer(pair.socket(0));
  look_for_offer(pair.fd(1), pair.socket(1));
  EXPECT_FALSE(pair.socket(1).shared());
}

// Another process that took the name first hands out a memfd that is not CLAN's.
TEST(Offer, ThatIsAnsweredByNonsenseStaysOnTcp) {
  TcpPair pair;
  offer(pair.fd(0), pair.socket(0));
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  ASSERT_EQ(::getsockname(pair.socket(0).offer_fd.get(), reinterpret_cast<sockaddr*>(&name), &size),
            0);
  const int taker = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  ASSERT_EQ(::connect(taker, reinterpret_cast<sockaddr*>(&name), size), 0);
  ASSERT_EQ(::send(taker, "nonsense", 8, 0), 8);
  look_for_taker(pair.fd(0), pair.socket(0));
  EXPECT_EQ(pair.socket(0).state.load(), Socket::State::kKernel);
  ::close(taker);
}

TEST(Offer, OfASocketThatIsNotConnectedIsNone) {
  TcpPair pair;
  const int lone = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  offer(lone, pair.socket(0));
  EXPECT_EQ(pair.socket(0).state.load(), Socket::State::kTcp);
  ::close(lone);
}

TEST(Offer, SaysWhyAPipeOfTheOtherEndCannotBeOpened) {
  TcpPair pair;
  stay_unopened(pair.fd(0), pair.socket(0), Error{EPROTO, ""});
  EXPECT_EQ(pair.socket(0).said.load(), reasons::Why::kVersion);
  stay_unopened(pair.fd(1), pair.socket(1), Error{ENOMEM, ""});
  EXPECT_EQ(pair.socket(1).said.load(), reasons::Why::kNoMemory);
}

}  // namespace
}  // namespace clan::preload
