// Connections over exec, without the exec.
#include "share/exec.h"

#include <fcntl.h>

#include <atomic>
#include <thread>

#include "preload/tcp_pair.h"
#include "state/face.h"
#include "table/open_file.h"

namespace clan::preload {
namespace {

struct OverExec : testing::Test {
  OverExec() {
    pair.migrate();
    for (const int end : {0, 1}) EXPECT_EQ(::fcntl(pair.fd(end), F_SETFD, FD_CLOEXEC), 0);
  }
  void keep_over_exec(int fd) { ASSERT_EQ(::fcntl(fd, F_SETFD, 0), 0); }
  bool goes_back(int end) {
    return (state_of(pair.socket(end).mine()) & socket_face::kLeaving) != 0;
  }
  TcpPair pair;
};

TEST_F(OverExec, GoesBackToTcpIfItStaysOpen) {
  ASSERT_EQ(pair.send(0, "there"), 5);
  keep_over_exec(pair.fd(0));
  before_exec();
  EXPECT_TRUE(goes_back(0));
  EXPECT_EQ(pair.receive(1), "there");
  use_slots_again();
}

TEST_F(OverExec, GoesOnIfItIsClosedAndTheExecFails) {
  before_exec();
  use_slots_again();
  EXPECT_FALSE(goes_back(0));
  EXPECT_EQ(pair.send(0, "goes on"), 7);
  EXPECT_EQ(pair.receive(1), "goes on");
}

TEST_F(OverExec, LeavesTheSlotsOfWhatIsClosedUntilItHasFailed) {
  OpenFileState& slot = pair.socket(0).open_file();
  slot.held.fetch_add(OpenFileState::kProcess);  // its parent
  before_exec();
  EXPECT_EQ(slot.held.load() << (64 - OpenFileState::kLife),
            OpenFileState::kProcess << (64 - OpenFileState::kLife));
  use_slots_again();
  EXPECT_EQ(OpenFileState::users(slot.held.load()), 2u);
  EXPECT_EQ(OpenFileState::holders(slot.held.load()), 2u);
  slot.held.fetch_sub(OpenFileState::kProcess);
}

// The program would send in front of what this end still sends again.
TEST_F(OverExec, WaitsForAnotherProcessThatSendsAgain) {
  keep_over_exec(pair.fd(0));
  Socket& s = pair.socket(0);
  s.open_file().sends = OpenFileState::closed_by(OpenFileState::kSendsAgain | ::getppid());
  add_state(s.mine(), socket_face::kLeaving | socket_face::kGone);
  add_state(pair.socket(1).mine(), socket_face::kGone);
  ASSERT_FALSE(s.is_resending()) << "this process has not looked";
  std::atomic<bool> is_over{false};
  std::thread resender([&] {
    ::usleep(50'000);
    is_over = true;
    s.open_file().sends = 0;
  });
  before_exec();
  EXPECT_TRUE(is_over) << "it has not been waited for";
  resender.join();
}

TEST_F(OverExec, GoesBackToTcpForAProgramBesideThisOne) {
  keep_over_exec(pair.fd(1));
  ASSERT_EQ(pair.send(1, "there"), 5);
  take_all_back();
  EXPECT_TRUE(goes_back(1));
  EXPECT_EQ(pair.receive(0), "there");
}

}  // namespace
}  // namespace clan::preload
