#include <sys/uio.h>

#include <atomic>
#include <csignal>
#include <string>
#include <thread>

#include "preload/sharer.h"
#include "preload/tcp_pair.h"
#include "stream/bell.h"
#include "table/open_file.h"
#include "tcp/doorbell.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using socket_face::kDoorbellsRead;

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
  void switch_over() const {
    EXPECT_EQ(pair.send(0, "pipe"), 4);
    EXPECT_EQ(pair.receive(1).substr(rung == 0 ? 3 : 0), "pipe");
    for (int k = 0; k < 2; ++k) ring_doorbell(pair.fd(0), pair.socket(0));
    rung = pair.socket(0).mine().words[socket_face::kDoorbells].load();
    ASSERT_GE(rung, 2u);
  }
  std::uint64_t swallowed() const { return s().mine().words[kDoorbellsRead].load(); }
  bool swallow() const { return drain_doorbells(pair.fd(1), s()); }
  std::string by_tcp() const {
    char some[100];
    const ssize_t n = ::recv(pair.fd(1), some, sizeof some, MSG_DONTWAIT);
    return std::string(some, n > 0 ? static_cast<std::size_t>(n) : 0);
  }
  void nothing_is_left() const { EXPECT_EQ(slot().receives.load(), 0u); }
  TcpPair pair;
  mutable std::uint64_t rung = 0;
};

TEST_F(DrainingOfSharers, WaitsForAProcessThatIsStopped) {
  switch_over();
  Sharer sharer([&] {
    const Draining draining(pair.fd(1), s());
    ::raise(SIGSTOP);
    return true;
  });
  sharer.has_stopped();
  std::atomic<bool> swallowed_all{false};
  std::thread reader([&] { swallowed_all = swallow(); });
  ::usleep(100'000);
  EXPECT_FALSE(swallowed_all);
  sharer.goes_on();
  sharer.ends_well();
  reader.join();
  EXPECT_TRUE(swallowed_all);
  EXPECT_EQ(swallowed(), rung);
  EXPECT_EQ(::send(pair.fd(0), "app", 3, 0), 3);
  EXPECT_EQ(by_tcp(), "app");
  nothing_is_left();
}

TEST_F(DrainingOfSharers, CountsWhatAKilledProcessHasRead) {
  for (const bool behind : {false, true}) {
    switch_over();
    const std::uint64_t before = swallowed();
    Sharer sharer([&] { return trace_me() && swallow(); });
    sharer.goes_to(SYS_recvfrom, 1, behind);
    EXPECT_EQ(swallowed(), before);
    sharer.is_killed();
    for (int k = 0; k < 500 && swallowed() < rung; ++k) (void)swallow();
    EXPECT_EQ(swallowed(), rung);
    nothing_is_left();
  }
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
