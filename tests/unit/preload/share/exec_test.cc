// Connections over exec, without the exec: what is listed, and what the program makes of the list.
#include "share/exec.h"

#include <fcntl.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "preload/tcp_pair.h"
#include "state/face.h"
#include "table/open_file.h"

namespace clan::preload {
namespace {

constexpr char kThisProgram[] = "/proc/self/exe";  // the C library's loader starts it

struct OverExec : testing::Test {
  OverExec() { pair.migrate(); }
  ~OverExec() override { ::unsetenv("CLAN_INHERITED"); }
  static char* hand_on_to(const char* path, const char* preload) {
    char* environment[] = {const_cast<char*>(preload), nullptr};
    return hand_on_connections(path, environment);
  }
  static char* hand_on() { return hand_on_to(kThisProgram, "LD_PRELOAD=/lib/libclan-preload.so"); }
  void keep_over_exec(int fd) { ASSERT_EQ(::fcntl(fd, F_SETFD, 0), 0); }
  bool closes_at_exec(int fd) { return (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0; }
  bool goes_back(int end) {
    return (state_of(pair.socket(end).mine()) & socket_face::kLeaving) != 0;
  }
  TcpPair pair;
};

TEST_F(OverExec, ListsWhatStaysOpenAndKeepsItsPipeOpenToo) {
  keep_over_exec(pair.fd(0));
  ASSERT_EQ(::fcntl(pair.fd(1), F_SETFD, FD_CLOEXEC), 0);
  const int memfd = pair.socket(0).pipe.memfd();
  ASSERT_EQ(::fcntl(memfd, F_SETFD, FD_CLOEXEC), 0);
  const char* const list = hand_on();
  ASSERT_NE(list, nullptr);
  const int table = passing_memfd.load();
  EXPECT_EQ(list, "CLAN_INHERITED=" + std::to_string(table) + ";" + std::to_string(pair.fd(0)) +
                      ":" + std::to_string(memfd) + ":" +
                      std::to_string(pair.socket(0).pipe.end()) + ",");
  EXPECT_FALSE(closes_at_exec(table));
  EXPECT_FALSE(closes_at_exec(memfd));
  EXPECT_TRUE(closes_at_exec(pair.socket(1).pipe.memfd()));
  EXPECT_FALSE(goes_back(0));
  take_pipes_back();  // the exec has failed
  EXPECT_TRUE(closes_at_exec(memfd));
  EXPECT_TRUE(closes_at_exec(table));
  EXPECT_EQ(pair.send(0, "goes on"), 7);
  EXPECT_EQ(pair.receive(1), "goes on");
}

TEST_F(OverExec, LeavesTheSlotsOfWhatIsClosedUntilItHasFailed) {
  for (const int end : {0, 1}) ASSERT_EQ(::fcntl(pair.fd(end), F_SETFD, FD_CLOEXEC), 0);
  OpenFileState& slot = pair.socket(0).open_file();
  slot.held.fetch_add(1);  // its parent
  EXPECT_EQ(hand_on(), nullptr);
  EXPECT_EQ(OpenFileState::users(slot.held.load()), 1u);
  use_slots_again();
  EXPECT_EQ(OpenFileState::users(slot.held.load()), 2u);
  EXPECT_EQ(slot.to_follow.load(), 0);
  slot.held.fetch_sub(1);
}

TEST_F(OverExec, ListsNothingWhereAllIsClosed) {
  for (const int end : {0, 1}) ASSERT_EQ(::fcntl(pair.fd(end), F_SETFD, FD_CLOEXEC), 0);
  EXPECT_EQ(hand_on(), nullptr);
  EXPECT_FALSE(goes_back(0));
}

TEST_F(OverExec, GoesBackToTcpForAProgramThatDoesNotLoadUs) {
  for (const auto& [path, preload] :
       {std::pair{kThisProgram, "LD_PRELOAD=/lib/other.so"},
        std::pair{"/nowhere", "LD_PRELOAD=/lib/libclan-preload.so"}}) {
    TcpPair other;
    other.migrate();
    ASSERT_EQ(other.send(0, "there"), 5);
    keep_over_exec(other.fd(0));
    EXPECT_EQ(hand_on_to(path, preload), nullptr);
    EXPECT_NE(state_of(other.socket(0).mine()) & socket_face::kLeaving, 0u) << path;
    EXPECT_EQ(other.receive(1), "there");
  }
}

// The program would send in front of what this end still sends again.
TEST_F(OverExec, IsNotHandedOnWhileAnotherProcessSendsAgain) {
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
  EXPECT_EQ(hand_on(), nullptr);
  EXPECT_TRUE(is_over) << "it has not been waited for";
  resender.join();
}

TEST_F(OverExec, GoesBackToTcpForSomebodyWithoutTheLibrary) {
  ASSERT_EQ(::fcntl(pair.fd(0), F_SETFD, FD_CLOEXEC), 0);
  keep_over_exec(pair.fd(1));
  ASSERT_EQ(pair.send(1, "there"), 5);
  take_all_back();
  EXPECT_TRUE(goes_back(1));
  EXPECT_EQ(pair.receive(0), "there");
}

// As the program that is executed does it: this one has descriptors with other numbers.
TEST_F(OverExec, GoesOnInTheProgramUnderEachOfItsNames) {
  ASSERT_EQ(pair.send(1, "before"), 6);
  const int memfd = ::fcntl(pair.socket(0).pipe.memfd(), F_DUPFD_CLOEXEC, 0);
  const int end = pair.socket(0).pipe.end();
  const int moved = ::dup(pair.fd(0)), again = ::dup(pair.fd(0));
  ASSERT_GE(again, 0);
  const std::string pipe = ":" + std::to_string(memfd) + ":" + std::to_string(end) + ",";
  ::setenv("CLAN_INHERITED", (std::to_string(moved) + pipe + std::to_string(again) + pipe).c_str(),
           1);
  take_over_connections();
  EXPECT_EQ(::getenv("CLAN_INHERITED"), nullptr) << "what it executes has another list";
  {
    const SocketRef first = acquire(moved), second = acquire(again);
    ASSERT_TRUE(first);
    ASSERT_TRUE(second);
    EXPECT_TRUE(first->shared());
    EXPECT_EQ(&*first, &*second);
    char text[16];
    const iovec io{text, sizeof text};
    EXPECT_EQ(shared_receive(moved, *first, &io, 1, MSG_DONTWAIT), 6);
  }
  for (const int fd : {moved, again}) {
    forget(fd);
    ::close(fd);
  }
}

TEST_F(OverExec, ResetsWhatItCannotTakeOver) {
  TcpPair other;
  const int moved = ::dup(other.fd(0)), nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(nothing, 0);
  ::setenv("CLAN_INHERITED",
           (std::to_string(moved) + ":" + std::to_string(nothing) + ":0,").c_str(), 1);
  take_over_connections();
  char text[8];
  EXPECT_EQ(::recv(other.fd(1), text, sizeof text, 0), -1);
  EXPECT_EQ(errno, ECONNRESET) << "its peer learns that bytes are lost, and not of an end";
  forget(moved);
  ::close(moved);
}

TEST_F(OverExec, ReadsNothingBehindNonsense) {
  ::setenv("CLAN_INHERITED", "7:x:1,", 1);
  take_over_connections();
  EXPECT_EQ(::getenv("CLAN_INHERITED"), nullptr);
  EXPECT_TRUE(pair.socket(0).shared());
}

}  // namespace
}  // namespace clan::preload
