#include <sys/uio.h>

#include <atomic>
#include <csignal>
#include <string>
#include <thread>

#include "preload/sharer.h"
#include "preload/tcp_pair.h"
#include "table/open_file.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

struct DrainingOfSharers : testing::Test {
  DrainingOfSharers() { begin(pair); }
  ~DrainingOfSharers() override { s().inherited = false; }
  /// Bytes from before the switch lie at its end 1, which several processes are to have.
  static void begin(TcpPair& p) {
    EXPECT_EQ(::send(p.fd(0), "tcp", 3, 0), 3);
    p.migrate();
    p.socket(1).share();
  }
  Socket& s() const { return pair.socket(1); }
  OpenFileState& slot() const { return s().open_file(); }
  void switch_over() const { EXPECT_EQ(pair.send(0, "pipe"), 4); }
  TcpPair pair;
};

TEST_F(DrainingOfSharers, WaitsForAProcessThatIsStopped) {
  switch_over();
  Sharer sharer([&] {
    const Draining draining(s());
    ::raise(SIGSTOP);
    return true;
  });
  sharer.has_stopped();
  std::atomic<bool> read_all{false};
  std::thread reader([&] {
    EXPECT_EQ(pair.receive(1), "tcppipe");
    read_all = true;
  });
  ::usleep(100'000);
  EXPECT_FALSE(read_all);
  sharer.goes_on();
  sharer.ends_well();
  reader.join();
  EXPECT_TRUE(read_all);
  EXPECT_EQ(slot().receives.load(), 0u);
}

// They are as good as read by the one that was killed, or come to the next one.
TEST_F(DrainingOfSharers, GivesBytesOnceWhereverAProcessIsKilled) {
  for (const bool behind : {false, true}) {
    TcpPair two;
    begin(two);
    Sharer sharer([&] { return trace_me() && !two.receive(1).empty(); });
    sharer.goes_to(SYS_recvmsg, 1, behind);
    sharer.is_killed();
    std::string got;
    for (int k = 0; k < 500 && got.empty() && !two.socket(1).has_drained(); ++k)
      got += two.receive(1);
    EXPECT_EQ(got, behind ? "" : "tcp");
    EXPECT_EQ(two.send(0, "pipe"), 4);
    EXPECT_EQ(two.receive(1), "pipe");
    two.socket(1).inherited = false;
  }
}

}  // namespace
}  // namespace clan::preload
