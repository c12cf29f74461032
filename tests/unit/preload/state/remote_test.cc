#include "state/remote.h"

#include <gtest/gtest.h>

#include "demote/demote.h"
#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

TEST(Remote, OfASocketOfThisHostNobodyIsAsked) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  EXPECT_FALSE(remote_is_loaded());
  EXPECT_FALSE(is_remote(s));
  EXPECT_TRUE(is_all_there(s));
  EXPECT_FALSE(fetch_for(s));
  wake_remote(pair.fd(0), s);
  let_go_of_remote(s);
  end_remote();
}

TEST(Remote, ASocketOfThisHostDoesNotLeaveBeforeAFork) {
  TcpPair pair;
  pair.migrate();
  leave_all_remote();
  EXPECT_TRUE(pair.socket(0).shared());
}

TEST(Remote, WithoutTheLibraryAConnectionStaysOnTcp) {
  TcpPair pair;
  Socket& s = pair.socket(0);
  Route route;
  ASSERT_TRUE(route_of(pair.fd(0), &route));
  move_to_other_host(pair.fd(0), s, &route);
  EXPECT_EQ(s.state.load(), Socket::State::kKernel);
  EXPECT_FALSE(remote_is_loaded());
}

TEST(Remote, OfASocketOfThisHostTheOtherEndsProcessorIsKnown) {
  TcpPair pair;
  pair.migrate();
  const char byte = 'x';
  const iovec io{const_cast<char*>(&byte), 1};
  ASSERT_EQ(pair.socket(1).pipe.send(&io, 1).bytes, 1u);
  char to;
  const iovec into{&to, 1};
  ASSERT_EQ(pair.socket(0).pipe.receive(&into, 1, false).bytes, 1u);
  pair.socket(0).rang.store(true);
  const PeerHint peer = awaited_of(pair.socket(0));
  EXPECT_EQ(peer.cpu, pair.socket(0).pipe.peer_cpu());
  EXPECT_TRUE(peer.slept);
}

TEST(Remote, OfARemoteOneNothingIsKnownOfTheOtherEnd) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  s.rang.store(true);
  char nothing;  // is not asked
  s.remote.store(reinterpret_cast<RemoteConnection*>(&nothing));
  const PeerHint peer = awaited_of(s);
  EXPECT_EQ(peer.cpu, 0);
  EXPECT_FALSE(peer.slept);
  EXPECT_FALSE(fetch_for(s)) << "without the component nothing has come";
  s.remote.store(nullptr);
}

TEST(Remote, ADescriptorIsFoundForAsLongAsTheSocketHasOne) {
  TcpPair pair;
  Socket& s = pair.socket(0);
  static int found;
  found = -1;
  const auto note = [](int fd, Socket&) { return found = fd, false; };
  EXPECT_FALSE(with_descriptor(s, note));
  EXPECT_EQ(found, pair.fd(0));
  const int copy = ::dup(found);
  ASSERT_TRUE(duplicate_entry(found, copy));
  pair.close(0);
  EXPECT_FALSE(with_descriptor(s, note));
  EXPECT_EQ(found, copy);
  forget(copy);
  ::close(copy);
}

}  // namespace
}  // namespace clan::preload
