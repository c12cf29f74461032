#include "stream/draining.h"

#include <sys/mman.h>
#include <sys/uio.h>

#include <csignal>
#include <memory>
#include <new>
#include <vector>

#include "preload/sharer.h"
#include "preload/tcp_pair.h"
#include "state/open_file.h"
#include "stream/doorbell.h"
#include "stream/held_up.h"
#include "stream/ring.h"
#include "support/process.h"

namespace clan::preload {
namespace {

using socket_face::kSwallowed;

struct DrainingOfSharers : testing::Test {
  DrainingOfSharers() { begin(pair); }
  ~DrainingOfSharers() override { s().inherited = false; }
  /// Bytes from before the switch lie at its end 1, which several processes are to have.
  static void begin(TcpPair& p) {
    EXPECT_EQ(::send(p.fd(0), "tcp", 3, 0), 3);
    p.migrate();
    void* memory =
        ::mmap(nullptr, sizeof(Slot), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    p.socket(1).share();
    EXPECT_TRUE(share_slot(p.socket(1), new (memory) Slot));
  }
  Socket& s() const { return pair.socket(1); }
  Slot& slot() const { return s().open_file(); }
  void switch_over() const {
    EXPECT_EQ(pair.send(0, "pipe"), 4);
    EXPECT_EQ(pair.receive(1), "tcppipe");
    for (int k = 0; k < 2; ++k) ring_doorbell(pair.fd(0), pair.socket(0));
    rung = pair.socket(0).mine().words[socket_face::kDoorbells].load();
    ASSERT_GE(rung, 2u);
  }
  std::uint64_t swallowed() const { return s().mine().words[kSwallowed].load(); }
  bool swallow() const { return swallow_doorbells(pair.fd(1), s()); }
  std::string by_tcp() const {
    char some[100];
    const ssize_t n = ::recv(pair.fd(1), some, sizeof some, MSG_DONTWAIT);
    return std::string(some, n > 0 ? static_cast<std::size_t>(n) : 0);
  }
  void nothing_is_left() const {
    EXPECT_EQ(slot().receives.load(), 0u);
    for (const auto& reader : slot().readers) EXPECT_EQ(reader.owner.load(), 0u);
  }
  TcpPair pair;
  mutable std::uint64_t rung = 0;
};

TEST_F(DrainingOfSharers, IsTakenOverFromAProcessThatIsStopped) {
  switch_over();
  Sharer sharer([&] {
    Draining draining(pair.fd(1), s());
    ::raise(SIGSTOP);
    return draining && !draining.is_ours() && draining.discard(1) == -1 && errno == EBUSY;
  });
  sharer.has_stopped();
  EXPECT_TRUE(swallow());
  EXPECT_EQ(swallowed(), rung);
  EXPECT_EQ(::send(pair.fd(0), "app", 3, 0), 3);
  sharer.goes_on();
  sharer.ends_well();
  EXPECT_EQ(by_tcp(), "app");
  nothing_is_left();
}

// It has looked whether the lock is its own, and is about to make the call.
TEST_F(DrainingOfSharers, LeavesToAStoppedProcessNoneOfTheBytesThatItWasAboutToRead) {
  switch_over();
  Sharer sharer([&] { return trace_me() && swallow(); });
  sharer.goes_to(SYS_recvmsg, 1, false);
  EXPECT_TRUE(swallow());
  EXPECT_EQ(swallowed(), rung);
  EXPECT_EQ(::send(pair.fd(0), "app", 3, 0), 3);
  sharer.is_let_go();
  sharer.ends_well();
  EXPECT_EQ(by_tcp(), "app");
  EXPECT_EQ(swallowed(), rung);
  nothing_is_left();
}

TEST_F(DrainingOfSharers, CountsWhatAStoppedProcessHasReadOnce) {
  switch_over();
  Sharer sharer([&] { return trace_me() && swallow(); });
  sharer.goes_to(SYS_recvmsg, 1, true);
  EXPECT_LT(swallowed(), rung) << "it has counted before";
  EXPECT_TRUE(swallow());
  EXPECT_EQ(swallowed(), rung);
  sharer.is_let_go();
  sharer.ends_well();
  EXPECT_EQ(swallowed(), rung);
  nothing_is_left();
}

TEST_F(DrainingOfSharers, CountsWhatAKilledProcessHasReadAndFreesItsPlace) {
  switch_over();
  Sharer sharer([&] { return trace_me() && swallow(); });
  sharer.goes_to(SYS_recvmsg, 1, true);
  sharer.is_killed();
  EXPECT_TRUE(swallow());
  EXPECT_EQ(swallowed(), rung);
  nothing_is_left();
}

// Of bytes from before the switch: the next one reads them.
TEST_F(DrainingOfSharers, GivesTheBytesToOneProcessWhereverAnotherIsStopped) {
  for (const bool behind : {false, true}) {
    TcpPair two;
    begin(two);
    Sharer sharer([&] { return trace_me() && two.receive(1) == (behind ? "tcp" : ""); });
    sharer.goes_to(SYS_recvmsg, 2, behind);  // the first one copies
    EXPECT_EQ(two.receive(1), behind ? "" : "tcp");
    sharer.is_let_go();
    sharer.ends_well();
    EXPECT_EQ(two.receive(1), "");
    two.socket(1).inherited = false;
  }
}

TEST_F(DrainingOfSharers, IsHeldUpWhenAllPlacesAreOfStoppedProcesses) {
  switch_over();
  auto stops_there = [&] {
    const Draining draining(pair.fd(1), s());
    ::raise(SIGSTOP);
    return true;
  };
  std::vector<std::unique_ptr<Sharer>> sharers;
  for (std::uint32_t k = 0; k < Slot::kReaders; ++k) {
    sharers.push_back(std::make_unique<Sharer>(stops_there));
    sharers.back()->has_stopped();
  }
  EXPECT_FALSE(swallow());
  EXPECT_TRUE(tcp_is_held_up(s()));
  for (auto& sharer : sharers) {
    sharer->goes_on();
    sharer->ends_well();
  }
  EXPECT_TRUE(swallow());
  EXPECT_FALSE(tcp_is_held_up(s()));
  EXPECT_EQ(swallowed(), rung);
  nothing_is_left();
}

TEST_F(DrainingOfSharers, IsNotTakenOverFromAProcessThatRuns) {
  switch_over();
  test::Gate has_it, has_looked;
  Sharer sharer([&] {
    const Draining draining(pair.fd(1), s());
    has_it.open();
    return has_looked.wait() && draining.is_ours();
  });
  EXPECT_TRUE(has_it.wait());
  EXPECT_FALSE(swallow());
  has_looked.open();
  sharer.ends_well();
  EXPECT_TRUE(swallow());
}

}  // namespace
}  // namespace clan::preload
