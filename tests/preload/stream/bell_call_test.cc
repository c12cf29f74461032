#include "stream/bell_call.h"

#include <sys/mman.h>
#include <sys/socket.h>

#include <csignal>
#include <memory>
#include <new>
#include <vector>

#include "migrate/demote.h"
#include "migrate/demote_end.h"
#include "preload/sharer.h"
#include "preload/tcp_pair.h"
#include "state/face.h"
#include "stream/doorbell.h"
#include "stream/poll_tcp.h"
#include "stream/ring.h"
#include "stream/tcp_prefix.h"
#include "support/process.h"

namespace clan::preload {
namespace {

using namespace socket_face;

/// Several processes are to have end 0, and ring.
struct BellCallOfSharers : testing::Test {
  BellCallOfSharers() {
    pair.migrate_and_greet();
    void* memory =
        ::mmap(nullptr, sizeof(Slot), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    s().share();
    EXPECT_TRUE(share_slot(s(), new (memory) Slot));
    look();
    before = rung();
  }
  ~BellCallOfSharers() override { s().inherited = false; }
  Socket& s() const { return pair.socket(0); }
  Slot& slot() const { return s().open_file(); }
  std::atomic<std::uint64_t>& bells() const { return s().mine().words[kBells]; }
  std::uint64_t rung() const { return doorbells_of(s().mine(), std::memory_order_relaxed); }
  void ring() const { ring_doorbell(pair.fd(0), s()); }
  void look() const { (void)look_at_kernel(pair.fd(1), pair.socket(1)); }
  bool rings() const {
    ring();
    return true;
  }
  void go_back() const { leave_pipe(pair.fd(0), false, reasons::Why::kUrgent); }
  /// It has, and bytes of the application's come behind as many doorbells as are counted.
  void expect_back(std::uint64_t doorbells) const {
    EXPECT_TRUE(sends_tcp(s()));
    EXPECT_EQ(rung(), doorbells);
    EXPECT_EQ(pair.send(0, "by TCP"), 6);
    EXPECT_EQ(pair.receive(1), "by TCP");
    EXPECT_EQ(pair.receive(1), "");
  }
  void nothing_is_left() const {
    for (const auto& ringer : slot().ringers) EXPECT_EQ(ringer.owner.load(), 0u);
    EXPECT_EQ(bells().load() & ~(kBellsClosed | kRingerIrrevocable), 0u);
  }
  TcpPair pair;
  std::uint64_t before = 0;
};

TEST_F(BellCallOfSharers, LeavesToAStoppedProcessNoByteToSendWhenTheGateIsClosed) {
  Sharer sharer([&] { return trace_me() && rings(); });
  sharer.goes_to(SYS_sendmsg, 1, false);
  EXPECT_EQ(rung(), before + 1) << "it has not counted";
  EXPECT_FALSE(another_rings(s()));
  go_back();
  const std::uint64_t doorbells = rung();
  sharer.is_let_go();
  sharer.ends_well();
  expect_back(doorbells);
  nothing_is_left();
}

// The kernel still knows what this side has sent.
TEST_F(BellCallOfSharers, ThatIsTakenBackIsNotCountedWhereTheOtherEndHasSaidItsLast) {
  Sharer sharer([&] { return trace_me() && rings(); });
  sharer.goes_to(SYS_sendmsg, 1, false);
  leave_pipe(pair.fd(1), false, reasons::Why::kUrgent);
  ASSERT_EQ(::shutdown(pair.fd(1), SHUT_WR), 0);
  go_back();
  sharer.is_let_go();
  sharer.ends_well();
  EXPECT_TRUE(sends_tcp(s()));
  EXPECT_EQ(pair.send(0, "by TCP"), 6);
  EXPECT_EQ(pair.receive(1), "by TCP");
  nothing_is_left();
}

TEST_F(BellCallOfSharers, KeepsTheByteThatAStoppedProcessHasSent) {
  Sharer sharer([&] { return trace_me() && rings(); });
  sharer.goes_to(SYS_sendmsg, 1, true);
  go_back();
  const std::uint64_t doorbells = rung();
  EXPECT_GT(doorbells, before);
  sharer.is_let_go();
  sharer.ends_well();
  expect_back(doorbells);
  nothing_is_left();
}

TEST_F(BellCallOfSharers, OfAProcessThatWasKilledThereIsNoneOfTheApplications) {
  for (const bool behind : {false, true}) {
    Sharer sharer([&] { return trace_me() && rings(); });
    sharer.goes_to(SYS_sendmsg, 1, behind);
    sharer.is_killed();
  }
  EXPECT_EQ(rung(), before + 2);
  go_back();
  expect_back(rung());
}

struct Leaver {
  long call;  ///< at which it stands
  bool behind, is_killed;
  bool answers = false;  ///< the other end, which goes back
};
struct BellCallOfLeavers : BellCallOfSharers, testing::WithParamInterface<Leaver> {
  bool leaves() const {
    GetParam().answers ? (void)look_at_kernel(pair.fd(0), s()) : go_back();
    return true;
  }
};

// Another process has been stopped, or killed, in the middle of going back.
TEST_P(BellCallOfLeavers, IsLeftToTheOneThatGoesBackToo) {
  const Leaver leaver = GetParam();
  ASSERT_EQ(pair.send(0, "by the pipe "), 12);
  if (leaver.answers) leave_pipe(pair.fd(1), false, reasons::Why::kUrgent);
  Sharer sharer([&] { return trace_me() && leaves(); });
  sharer.goes_to(leaver.call, 1, leaver.behind);
  EXPECT_FALSE(sends_tcp(s()));
  if (leaver.is_killed) sharer.is_killed();
  leaves();
  EXPECT_TRUE(sends_tcp(s()));
  const std::uint64_t doorbells = rung();
  EXPECT_EQ(pair.send(0, "and "), 4);
  if (!leaver.is_killed) {
    sharer.is_let_go();
    sharer.ends_well();
  }
  EXPECT_EQ(rung(), doorbells);
  EXPECT_EQ(pair.send(0, "by TCP"), 6);
  EXPECT_EQ(pair.receive(1, 12), "by the pipe ");
  EXPECT_EQ(pair.receive(1), "and by TCP");
  EXPECT_EQ(slot().sends.load(), 0u);
  EXPECT_EQ(pair.send(1, "back"), 4);
  EXPECT_EQ(pair.receive(0), "back");
}

INSTANTIATE_TEST_SUITE_P(
    AtACall, BellCallOfLeavers,
    testing::Values(Leaver{SYS_sendmsg, false, false}, Leaver{SYS_sendmsg, true, false},
                    Leaver{SYS_getsockopt, false, false}, Leaver{SYS_getsockopt, true, false},
                    Leaver{SYS_sendmsg, false, true}, Leaver{SYS_sendmsg, true, true},
                    Leaver{SYS_getsockopt, false, true}, Leaver{SYS_getsockopt, true, true},
                    Leaver{SYS_getsockopt, false, false, true},
                    Leaver{SYS_getsockopt, true, false, true},
                    Leaver{SYS_getsockopt, false, true, true},
                    Leaver{SYS_getsockopt, true, true, true}));

TEST_F(BellCallOfSharers, TakesThePlaceOfAProcessThatWasKilled) {
  for (std::uint32_t k = 0; k < Slot::kRingers; ++k) {
    Sharer sharer([&] { return trace_me() && rings(); });
    sharer.goes_to(SYS_sendmsg, 1, false);
    sharer.is_killed();
  }
  bells() = 0;
  const BellCall call(s());
  EXPECT_TRUE(call);
  EXPECT_EQ(bells().load(), 0u) << "it has no place";
}

// One more than there are places: it is in nobody's hand, and is waited for.
TEST_F(BellCallOfSharers, ThatFindsNoPlaceIsWaitedFor) {
  std::vector<std::unique_ptr<Sharer>> sharers;
  for (std::uint32_t k = 0; k <= Slot::kRingers; ++k) {
    sharers.push_back(std::make_unique<Sharer>([&] {
      const BellCall call(s());
      ::raise(SIGSTOP);
      return static_cast<bool>(call);
    }));
    sharers.back()->has_stopped();
    EXPECT_EQ(another_rings(s()), k == Slot::kRingers);
  }
  EXPECT_FALSE(silence(s()));
  for (auto& sharer : sharers) {
    sharer->goes_on();
    sharer->ends_well();
  }
  EXPECT_TRUE(silence(s()));
  nothing_is_left();
}

// By the one that is named there, whatever else rings.
TEST_F(BellCallOfSharers, ThatIsWaitedForStaysNamedWhileItLasts) {
  s().inherited = false;
  const std::uint64_t first =
      static_cast<std::uint64_t>(::getppid()) << kRinger | kRingerIrrevocable | kIrrevocable | 1;
  TcpPair alone;
  alone.migrate();
  auto& word = alone.socket(0).mine().words[kBells];
  word = first;
  {
    const BellCall call(alone.socket(0));
    EXPECT_TRUE(call);
    EXPECT_EQ(word.load(), first + kIrrevocable);
  }
  EXPECT_EQ(word.load(), first);
  EXPECT_FALSE(silence(alone.socket(0)));
  word = 0;
  {
    const BellCall call(alone.socket(0));
    EXPECT_TRUE(call);
    EXPECT_NE(word.load() & kRingerIrrevocable, 0u);
    EXPECT_EQ(word.load() >> kRinger, static_cast<std::uint64_t>(thread_id()));
  }
  EXPECT_EQ(word.load(), 0u);
}

TEST_F(BellCallOfSharers, OfAProcessThatRunsIsWaitedFor) {
  test::Gate is_in_it, has_looked;
  Sharer sharer([&] {
    BellCall call(s());
    is_in_it.open();
    return has_looked.wait() && call.send(pair.fd(0)) == 0;
  });
  EXPECT_TRUE(is_in_it.wait());
  EXPECT_TRUE(another_rings(s()));
  EXPECT_FALSE(silence(s()));
  has_looked.open();
  sharer.ends_well();
  EXPECT_TRUE(silence(s()));
  nothing_is_left();
}

TEST_F(BellCallOfSharers, IsNotBegunBehindAClosedGate) {
  EXPECT_TRUE(silence(s()));
  const BellCall call(s());
  EXPECT_FALSE(call);
  ring();
  EXPECT_EQ(rung(), before);
}

}  // namespace
}  // namespace clan::preload
