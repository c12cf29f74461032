#include "tcp/aborted.h"

#include "preload/tcp_pair.h"
#include "state/face.h"
#include "stream/ending.h"

namespace clan::preload {
namespace {

struct Aborted : testing::Test {
  Aborted() { pair.migrate_and_greet(); }
  TcpPair pair;
  Socket& s = pair.socket(0);
};

TEST_F(Aborted, ByTheKernelItSaysWhatTheKernelHasSaid) {
  note_error(s, ETIMEDOUT);
  EXPECT_EQ(reset_of(s), ETIMEDOUT);
  EXPECT_EQ(pair.receive(0), "");
  EXPECT_EQ(errno, ETIMEDOUT);
  EXPECT_NE(state_of(s.theirs()) & socket_face::kReset, 0u) << "for processes that share the end";
}

TEST_F(Aborted, ByAResetOfTheKernelItIsAReset) {
  note_error(s, ECONNRESET);
  EXPECT_EQ(reset_of(s), ECONNRESET);
}

TEST_F(Aborted, ByTheLibraryItIsAResetHereToo) {
  break_off(pair.fd(0), s, "a test");
  EXPECT_EQ(pair.receive(0), "");
  EXPECT_EQ(errno, ECONNRESET);
}

}  // namespace
}  // namespace clan::preload
