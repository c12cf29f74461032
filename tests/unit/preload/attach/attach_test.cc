#include "attach/attach.h"

#include "preload/tcp_pair.h"
#include "table/slot_table.h"

namespace clan::preload {
namespace {

struct Attach : testing::Test {
  void make_pipe(int end) {
    auto made = Pipe::create(socket_face::kMemfdName, ring_bytes(), end);
    ASSERT_TRUE(made);
    pair.socket(end).pipe = std::move(*made);
    ASSERT_TRUE(route_of(pair.fd(end), &route));
  }
  TcpPair pair;
  Route route;
};

TEST_F(Attach, ShowsThePeerWhoseEndItIs) {
  make_pipe(1);
  ASSERT_TRUE(enter_pipe(pair.fd(1), pair.socket(1), route));
  const PipePage::Face& face = pair.socket(1).mine();
  EXPECT_EQ(face.words[socket_face::kProcess].load() >> 32, static_cast<std::uint64_t>(::getpid()));
  EXPECT_NE(face.words[socket_face::kState].load() & socket_face::kAttached, 0u);
  EXPECT_TRUE(pair.socket(1).shared());
}

TEST_F(Attach, WaitsForACallInTheKernel) {
  make_pipe(1);
  Socket& s = pair.socket(1);
  {
    const OpenFileState::UnderWay call(s.slot->receives);
    EXPECT_FALSE(enter_pipe(pair.fd(1), s, route));
  }
  EXPECT_EQ(s.slot->sends.load(), 0u);
  EXPECT_TRUE(enter_pipe(pair.fd(1), s, route));
}

TEST_F(Attach, DoesNotHappenWhileAnotherProcessHasTheSocket) {
  make_pipe(1);
  Socket& s = pair.socket(1);
  s.share();
  s.slot->held.fetch_add(OpenFileState::kProcess);
  EXPECT_FALSE(enter_pipe(pair.fd(1), s, route));
  EXPECT_EQ(s.slot->sends.load() | s.slot->receives.load(), 0u);
  s.slot->held.fetch_sub(OpenFileState::kHolder);  // it has closed it, and is in a call there
  EXPECT_FALSE(enter_pipe(pair.fd(1), s, route));
  s.slot->held.fetch_sub(OpenFileState::kUser);
  EXPECT_TRUE(enter_pipe(pair.fd(1), s, route));
  EXPECT_FALSE(s.inherited) << "it has it alone";
}

TEST_F(Attach, NamesTheSlotForTheOtherEnd) {
  make_pipe(1);
  ASSERT_TRUE(enter_pipe(pair.fd(1), pair.socket(1), route));
  SocketIdentity id;
  ASSERT_TRUE(identify(pair.fd(1), &id));
  EXPECT_EQ(find_slot(id, 0), pair.socket(1).slot);
  EXPECT_NE(pair.socket(1).slot->moved.load(), 0u);
}

TEST_F(Attach, DoesNotHappenToASocketThatIsPinnedOrOnItsWayToAnotherProcess) {
  make_pipe(1);
  Socket& s = pair.socket(1);
  s.slot->held.fetch_add(OpenFileState::kOnItsWay);
  EXPECT_FALSE(enter_pipe(pair.fd(1), s, route));
  s.slot->held.fetch_sub(OpenFileState::kOnItsWay);
  s.slot->pinned = 1;
  EXPECT_FALSE(enter_pipe(pair.fd(1), s, route));
}

// By a system call of the program's own, or redirected by a BPF program: the end would not know
// where TCP ends.
TEST_F(Attach, DoesNotHappenWhereBytesHaveBeenSentPastTheLibrary) {
  make_pipe(1);
  ASSERT_EQ(::send(pair.fd(1), "x", 1, 0), 1);
  EXPECT_FALSE(enter_pipe(pair.fd(1), pair.socket(1), route));
  EXPECT_EQ(pair.socket(1).state_now(), Socket::State::kKernel);
}

TEST_F(Attach, DoesNotHappenWhereBytesHaveBeenReceivedPastTheLibrary) {
  make_pipe(1);
  char byte;
  ASSERT_EQ(::send(pair.fd(0), "x", 1, 0), 1);
  ASSERT_EQ(::recv(pair.fd(1), &byte, 1, 0), 1);
  EXPECT_FALSE(enter_pipe(pair.fd(1), pair.socket(1), route));
  EXPECT_EQ(pair.socket(1).state_now(), Socket::State::kKernel);
}

TEST_F(Attach, HappensWhileBytesAreStillToBeReadByTcp) {
  make_pipe(1);
  ASSERT_EQ(::send(pair.fd(0), "x", 1, 0), 1);
  EXPECT_TRUE(enter_pipe(pair.fd(1), pair.socket(1), route));
}

TEST_F(Attach, IsDoneByOneThreadAtATime) {
  Socket& s = pair.socket(0);
  {
    const TryLockGuard first(s);
    EXPECT_TRUE(first);
    const TryLockGuard second(s);
    EXPECT_FALSE(second);
  }
  const TryLockGuard third(s);
  EXPECT_TRUE(third);
}

TEST_F(Attach, IsWaitedForThroughManyCallsButNotForever) {
  Socket& s = pair.socket(0);
  s.offered_ns = ~std::uint64_t{0} / 2;  // not long ago, whatever the clock says
  int calls = 1;
  while (!has_waited_for_peer(s) && calls < 10'000) ++calls;
  EXPECT_GE(calls, 16);
  EXPECT_LE(calls, 4096);
}

}  // namespace
}  // namespace clan::preload
