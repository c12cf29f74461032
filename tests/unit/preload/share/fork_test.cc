#include "share/fork.h"

#include <sys/wait.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "demote/resend.h"
#include "os/signal_handlers.h"
#include "preload/tcp_pair.h"
#include "state/face.h"

namespace clan::preload {
namespace {

std::uint64_t holders_of(const Socket& s) { return OpenFileState::holders(s.slot->held.load()); }

TEST(Fork, CountsTheChildAmongTheHoldersOfAConnection) {
  TcpPair pair;
  pair.migrate();
  const long child = forked_by([] { return static_cast<long>(::fork()); });
  if (child == 0) {
    const bool both = holders_of(pair.socket(0)) == 2;
    const bool sent = pair.send(0, "from the child") == 14;
    ::_exit(both && sent ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  EXPECT_TRUE(pair.socket(0).inherited);
  int status = 0;
  ::waitpid(static_cast<pid_t>(child), &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(pair.receive(1), "from the child");
}

TEST(Fork, ThatFailsCountsNobody) {
  TcpPair pair;
  pair.migrate();
  EXPECT_LT(forked_by([] { return -1L; }), 0);
  EXPECT_EQ(holders_of(pair.socket(0)), 1u);
  EXPECT_EQ(OpenFileState::users(pair.socket(0).slot->held.load()), 1u);
}

TEST(Fork, WaitsForAThreadThatMovesASocket) {
  TcpPair pair;
  OpenFileState& slot = pair.socket(0).open_file();
  ASSERT_TRUE(OpenFileState::try_close(slot.receives, closer_id()));
  std::atomic<bool> has_forked{false};
  std::thread other([&] {
    EXPECT_LT(forked_by([] { return -1L; }), 0);
    has_forked = true;
  });
  while (OpenFileState::is_alone(slot.held.load())) ::usleep(100);
  ::usleep(20'000);
  EXPECT_FALSE(has_forked);
  OpenFileState::open(slot.receives, closer_id());
  other.join();
  EXPECT_TRUE(OpenFileState::is_alone(slot.held.load()));
}

TEST(Fork, WaitsForTheLastStepsOfAThreadThatMovesASocket) {
  TcpPair pair;
  std::atomic<bool> has_forked{false};
  pair.socket(0).moving.lock();
  std::thread other([&] {
    EXPECT_LT(forked_by([] { return -1L; }), 0);
    has_forked = true;
  });
  while (OpenFileState::is_alone(pair.socket(0).slot->held.load())) ::usleep(100);
  ::usleep(20'000);
  EXPECT_FALSE(has_forked);
  pair.socket(0).moving.unlock();
  other.join();
}

TEST(Fork, TheChildIsNoUserOfASocketThatItHasClosedThoughAThreadOfTheParentWaitsOnIt) {
  TcpPair pair;
  OpenFileState& slot = pair.socket(0).open_file();
  const SocketRef of_a_thread = pair.held(0);
  const long child = forked_by([] { return static_cast<long>(::fork()); });
  if (child == 0) {
    pair.close(0);
    ::_exit(OpenFileState::users(slot.held.load()) == 1 ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  int status = 0;
  ::waitpid(static_cast<pid_t>(child), &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(OpenFileState::is_alone(slot.held.load()));
}

// Threads that take connections back to TCP may have to wait for the other ends.
TEST(Fork, DoesNotWaitLongForConnectionsThatGoBack) {
  std::array<TcpPair, 5> pairs;
  for (TcpPair& pair : pairs) {
    pair.migrate();
    pair.socket(0).moving.lock();
    add_state(pair.socket(0).mine(), socket_face::kLeaving);
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_LT(forked_by([] { return -1L; }), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3))
      << "not one for each of them";
  for (TcpPair& pair : pairs) pair.socket(0).moving.unlock();
}

// A child would find the lock taken that such a thread has.
TEST(Fork, DoesNotComeBetweenTheStepsOfAThreadThatChangesAHandler) {
  struct sigaction none {};
  struct sigaction old {};
  std::atomic<bool> done{false};
  std::thread other;
  EXPECT_LT(forked_by([&] {
              other = std::thread([&] {
                EXPECT_EQ(set_action(SIGBUS, nullptr, &none), 0);
                EXPECT_EQ(set_action(SIGBUS, &none, &old), 0);
                done.store(true);
              });
              ::usleep(50'000);
              EXPECT_FALSE(done.load());
              return -1L;
            }),
            0);
  other.join();
  EXPECT_TRUE(done.load());
}

}  // namespace
}  // namespace clan::preload
