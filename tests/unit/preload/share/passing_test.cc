// Descriptors that are passed on, before and after their connection has moved.
#include "share/passing.h"

#include <thread>

#include "os/sys.h"
#include "preload/tcp_pair.h"
#include "state/face.h"
#include "state/socket_pool.h"
#include "table/slot_table.h"

namespace clan::preload {
namespace {

struct PassingOn : testing::Test {
  PassingOn() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, through), 0); }
  ~PassingOn() override {
    for (const int fd : through) ::close(fd);
  }
  std::uint64_t on_its_way(int end) {
    return OpenFileState::on_its_way(pair.socket(end).open_file().held.load());
  }
  int through[2];
  TcpPair pair;
};

TEST_F(PassingOn, CountsADescriptorWhereItsReceiverFindsTheCount) {
  pass_on(pair.fd(0));
  EXPECT_EQ(on_its_way(0), 1u);
  EXPECT_TRUE(is_in_a_table(pair.socket(0).open_file()));
  SocketIdentity id;
  ASSERT_TRUE(identify(pair.fd(0), &id));
  EXPECT_EQ(find_slot(id, 0), &pair.socket(0).open_file());
}

TEST_F(PassingOn, KeepsTheConnectionOnTcpWhileItIsOnItsWay) {
  pass_on(pair.fd(1));
  pair.open_pipe();
  Route route;
  ASSERT_TRUE(route_of(pair.fd(1), &route));
  EXPECT_FALSE(enter_pipe(pair.fd(1), pair.socket(1), route));
  not_sent(pair.fd(1));
  EXPECT_EQ(on_its_way(1), 0u);
  EXPECT_TRUE(enter_pipe(pair.fd(1), pair.socket(1), route));
}

TEST_F(PassingOn, IsClaimedByTheReceiverWhichThenHasTheOpenFileToo) {
  pass_on(pair.fd(0));
  const OpenFileState* const slot = &pair.socket(0).open_file();
  // The receiver's descriptor: another number for the same open file.
  const int received = ::dup(pair.fd(0));
  ASSERT_GE(received, 0);
  adopt_passed(received, through[1], false);
  {
    const SocketRef s = acquire(received);
    ASSERT_TRUE(s);
    EXPECT_EQ(&s->open_file(), slot);
    EXPECT_TRUE(s->inherited.load());
    EXPECT_EQ(s->client, pair.socket(0).client);
  }
  EXPECT_EQ(on_its_way(0), 0u);
  EXPECT_EQ(OpenFileState::users(slot->held.load()), 2u);
  EXPECT_EQ(OpenFileState::holders(slot->held.load()), 2u);
  forget(received);
  ::close(received);
  EXPECT_EQ(OpenFileState::users(slot->held.load()), 1u);
}

TEST_F(PassingOn, ThatWasOnlyPeekedAtNeverMoves) {
  pass_on(pair.fd(0));
  const int received = ::dup(pair.fd(0));
  adopt_passed(received, through[1], true);
  EXPECT_NE(pair.socket(0).open_file().pinned.load(), 0);
  {
    const SocketRef s = acquire(received);
    ASSERT_TRUE(s);
    EXPECT_EQ(s->state.load(), Socket::State::kKernel);
  }
  forget(received);
  ::close(received);
}

TEST_F(PassingOn, OfAMovedConnectionTakesItBackToTcp) {
  pair.migrate();
  ASSERT_EQ(pair.send(0, "there"), 5);
  pass_on(pair.fd(0));
  EXPECT_NE(state_of(pair.socket(0).mine()) & socket_face::kLeaving, 0u);
  EXPECT_EQ(pair.receive(1), "there");
  EXPECT_EQ(on_its_way(0), 0u);
  not_sent(pair.fd(0));
  EXPECT_EQ(on_its_way(0), 0u);
}

// Which has counted the child in the slot that the receiver had before.
TEST_F(PassingOn, WaitsForAForkOfTheReceiver) {
  pass_on(pair.fd(0));
  const int received = ::dup(pair.fd(0));
  const auto fork_is_under_way = [](bool is) {
    lock_sockets();
    give_no_slots(is);
    unlock_sockets();
  };
  fork_is_under_way(true);
  std::thread receiver([&] { adopt_passed(received, through[1], false); });
  ::usleep(20'000);
  {
    const SocketRef s = acquire(received);
    EXPECT_TRUE(!s || &s->open_file() != &pair.socket(0).open_file());
  }
  fork_is_under_way(false);
  receiver.join();
  {
    const SocketRef s = acquire(received);
    ASSERT_TRUE(s);
    EXPECT_EQ(&s->open_file(), &pair.socket(0).open_file());
  }
  forget(received);
  ::close(received);
}

TEST_F(PassingOn, OfADescriptorThatIsNoSocketIsNothing) {
  pass_on(through[0]);
  not_sent(through[0]);
  EXPECT_FALSE(acquire(through[0]));
}

}  // namespace
}  // namespace clan::preload
