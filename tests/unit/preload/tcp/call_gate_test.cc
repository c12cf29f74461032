#include "tcp/call_gate.h"

#include <atomic>
#include <csignal>
#include <thread>

#include "preload/sharer.h"
#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

struct GateWait : testing::Test {
  OpenFileState::Counter& gate() { return pair.socket(0).open_file().receives; }
  /// Waits for as long as the counter is closed.
  void await() {
    for (std::uint32_t turn = 0; (gate().load() & OpenFileState::kClosed) != 0; ++turn)
      ASSERT_TRUE(await_gate(gate(), turn));
  }
  TcpPair pair;
};

TEST_F(GateWait, IsOverWhenTheThreadThatHasItOpensIt) {
  ASSERT_TRUE(OpenFileState::try_close(gate(), ::getppid()));
  std::thread opener([&] {
    ::usleep(50'000);
    OpenFileState::open(gate(), ::getppid());
  });
  await();
  opener.join();
  EXPECT_EQ(gate().load(), 0u);
}

TEST_F(GateWait, OpensWhatADeadProcessHasClosed) {
  Sharer sharer([&] {
    (void)OpenFileState::try_close(gate(), closer_id());
    ::raise(SIGSTOP);
    return true;
  });
  sharer.has_stopped();
  EXPECT_NE(gate().load(), 0u);
  sharer.is_killed();
  await();
  EXPECT_EQ(gate().load(), 0u);
}

TEST_F(GateWait, OpensWhatADeadThreadWithTheCallersIdHasClosed) {
  ASSERT_TRUE(OpenFileState::try_close(gate(), closer_id()));
  await();
  EXPECT_EQ(gate().load(), 0u);
}

TEST_F(GateWait, DoesNotWaitForAThreadThatSendsAgain) {
  ASSERT_TRUE(OpenFileState::try_close(gate(), OpenFileState::kSendsAgain | ::getppid()));
  EXPECT_FALSE(await_gate(gate(), 0));
  gate() = 0;
}

TEST_F(GateWait, ClosesOverCallsThatStepBack) {
  const OpenFileState::UnderWay call(gate());
  {
    const ClosedGate closed(gate());
    EXPECT_EQ(gate().load() & (OpenFileState::kClosed - 1), 1u);
    const OpenFileState::UnderWay later(gate());
    EXPECT_FALSE(later);
  }
  EXPECT_EQ(gate().load(), 1u);
}

TEST_F(GateWait, TakesAClosedGateFromADeadProcess) {
  Sharer sharer([&] {
    const ClosedGate closed(gate());
    ::raise(SIGSTOP);
    return true;
  });
  sharer.has_stopped();
  sharer.is_killed();
  const ClosedGate closed(gate());
  EXPECT_TRUE(OpenFileState::is_closed_by(gate().load(), closer_id()));
}

TEST_F(GateWait, WaitsForAClosedGateOfAProcessThatIsStopped) {
  Sharer sharer([&] {
    const ClosedGate closed(gate());
    ::raise(SIGSTOP);
    return true;
  });
  sharer.has_stopped();
  std::atomic<bool> has_it{false};
  std::thread waiter([&] {
    const ClosedGate closed(gate());
    has_it = true;
  });
  ::usleep(100'000);
  EXPECT_FALSE(has_it);
  sharer.goes_on();
  sharer.ends_well();
  waiter.join();
}

}  // namespace
}  // namespace clan::preload
