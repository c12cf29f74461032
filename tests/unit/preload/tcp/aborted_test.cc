#include "tcp/aborted.h"

#include <sys/wait.h>

#include "preload/tcp_pair.h"
#include "state/face.h"
#include "stream/ending.h"

namespace clan::preload {
namespace {

struct Aborted : testing::Test {
  Aborted() { pair.migrate_and_greet(); }
  /// The process that has moved the other end.
  void is_other_process(pid_t pid) const {
    s.theirs().words[socket_face::kProcess].store(static_cast<std::uint64_t>(pid) << 32);
  }
  TcpPair pair;
  Socket& s = pair.socket(0);
};

pid_t dead_process() {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  ::waitpid(pid, nullptr, 0);
  return pid;
}

TEST_F(Aborted, ByTheKernelItSaysWhatTheKernelHasSaid) {
  note_error(s, ETIMEDOUT);
  EXPECT_EQ(reset_of(s), ETIMEDOUT);
  EXPECT_EQ(pair.receive(0), "");
  EXPECT_EQ(errno, ETIMEDOUT);
  EXPECT_NE(state_of(s.theirs()) & socket_face::kReset, 0u) << "for processes that share the end";
}

TEST_F(Aborted, WhileItsOtherEndLivesItIsAReset) {
  s.mine().words[socket_face::kDoorbells].fetch_add(1);
  is_other_process(::getpid());
  note_error(s, ECONNRESET);
  EXPECT_EQ(reset_of(s), ECONNRESET);
}

TEST_F(Aborted, AsDoorbellsWereLeftUnreadByAProcessThatHasEndedItIsAnEnd) {
  s.mine().words[socket_face::kDoorbells].fetch_add(1);
  is_other_process(dead_process());
  note_error(s, ECONNRESET);
  EXPECT_EQ(reset_of(s), 0);
  EXPECT_EQ(pair.receive(0), "");
  EXPECT_EQ(errno, 0);
}

TEST_F(Aborted, ByAProcessThatHadReadAllDoorbellsItIsAReset) {
  s.theirs().words[socket_face::kDoorbellsRead].store(
      s.mine().words[socket_face::kDoorbells].load());
  is_other_process(dead_process());
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
