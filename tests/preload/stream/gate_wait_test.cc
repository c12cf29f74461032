#include "stream/gate_wait.h"

#include <chrono>

#include "clan/clock.h"
#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

struct GateWait : testing::Test {
  GateWait() {
    pair.migrate();
    Socket& s = pair.socket(0);
    s.waits.spend(monotonic_ns(), WaitBudget::kMostNs - 100'000'000);  // it has waited for long already
  }
  // Far from the ten seconds of one wait.
  void expect_soon() const {
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
  }
  TcpPair pair;
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
};

TEST_F(GateWait, ForWhoIsStoppedEndsWhenTheConnectionsBudgetIsUsed) {
  Socket& s = pair.socket(0);
  Slot::Counter& gate = s.open_file().receives;
  ASSERT_TRUE(Slot::try_close(gate, ::getpid()));  // which lives
  UntilOpen until(pair.fd(0), s);
  while ((gate.load() & Slot::kClosed) != 0 && until.wait(gate)) {
  }
  EXPECT_TRUE(s.kernel_error.load());
  expect_soon();
}

TEST_F(GateWait, ForWhatThePipeSaysEndsLikewise) {
  Patience patience(pair.fd(0), pair.socket(0));
  while (patience.wait()) {
  }
  EXPECT_TRUE(pair.socket(0).kernel_error.load());
  expect_soon();
}

}  // namespace
}  // namespace clan::preload
