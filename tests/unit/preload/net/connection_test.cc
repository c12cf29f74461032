// What two carriers make of what both programs do with their pipes.
#include "net/connection.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>

#include "clan/detail/clock.h"
#include "preload/net/connection_fixture.h"

namespace clan::preload {
namespace {

using namespace socket_face;

TEST_F(CarrierConnection, TellsTheOtherHostOfASwitchAndHearsThatItIsKnown) {
  join();
  EXPECT_EQ(other_state(ends_[0]) & kAttached, kAttached);
  EXPECT_GT(ends_[0].calls.switches, 0);
  EXPECT_EQ(ends_[0].calls.known, 0);
  switch_both();
  for (auto& end : ends_) {
    EXPECT_EQ(other_state(end) & kSending, kSending);
    EXPECT_EQ(end.pipe.peer_face().words[kSwitchAt].load(), 77u);
    EXPECT_EQ(end.calls.known, 1);
  }
}

TEST_F(CarrierConnection, TakesNothingOutOfThePipeBeforeTheSwitchIsTold) {
  join();
  send(ends_[0], "early");
  turn();
  EXPECT_EQ(receive(ends_[1]), "");
  switch_both();
  EXPECT_EQ(receive(ends_[1]), "early");
}

TEST_F(CarrierConnection, CarriesBytesBothWaysAndAnEndBehindThem) {
  join();
  switch_both();
  send(ends_[0], "question");
  send(ends_[1], "answer");
  (void)ends_[0].pipe.end_sending();
  turn();
  EXPECT_EQ(receive(ends_[1]), "question");
  EXPECT_EQ(ends_[1].pipe.front(), PipeFront::kEnd);
  EXPECT_EQ(receive(ends_[0]), "answer");
  EXPECT_EQ(ends_[0].pipe.front(), PipeFront::kNothing);
}

TEST_F(CarrierConnection, IsMovedAndRungByAThreadOfTheProgram) {
  join();
  switch_both();
  ASSERT_TRUE(ends_[1].pipe.want_data());
  const int rings = ends_[1].calls.rings;
  send(ends_[0], "question");
  ends_[0].carried->pump();
  ends_[1].carried->pump();
  EXPECT_EQ(ends_[1].calls.rings, rings + 1);
  EXPECT_EQ(receive(ends_[1]), "question");
}

TEST_F(CarrierConnection, LeavesToTheCarriersThreadWhatIsNoBytes) {
  join();
  switch_both();
  std::array<Event, 8> events;
  while (queue_.poll(events) > 0) {
  }
  (void)ends_[0].pipe.end_sending();
  ends_[0].carried->pump();
  ends_[1].carried->pump();
  EXPECT_EQ(ends_[1].pipe.front(), PipeFront::kNothing);
  const std::size_t n = queue_.poll(events);
  EXPECT_TRUE(std::any_of(events.begin(), events.begin() + n, [](const Event& one) {
    return one.kind == EventKind::kUser && one.tag == 2;
  }));
  turn();
  EXPECT_EQ(ends_[1].pipe.front(), PipeFront::kEnd);
}

TEST_F(CarrierConnection, StopsTheSenderWhenNobodyReads) {
  join();
  switch_both();
  const std::string block(4096, 'x');
  std::size_t sent = 0;
  for (int quiet = 0; quiet < 3;) {
    const std::size_t n = send(ends_[0], block);
    sent += n;
    quiet = n == 0 ? quiet + 1 : 0;
    turn();
    ASSERT_LT(sent, 8u << 20);
  }
  std::size_t got = 0;
  for (std::string part; !(part = receive(ends_[1])).empty(); turn()) {
    ASSERT_EQ(part, std::string(part.size(), 'x'));
    got += part.size();
  }
  EXPECT_EQ(got, sent);
}

// As one that has written much and closed: TCP reports that at once.
TEST_F(CarrierConnection, WhatThePipeHasNoRoomForIsNotLostWhileTheProgramDoesNotRead) {
  join();
  switch_both();
  const std::string block(4096, 'x');
  std::size_t sent = 0;
  for (int quiet = 0; quiet < 3; turn()) {
    const std::size_t n = send(ends_[0], block);
    sent += n;
    quiet = n == 0 ? quiet + 1 : 0;
    ASSERT_LT(sent, 8u << 20);
  }
  add(ends_[0], kClosed);
  ends_[1].carried->tcp_ended();
  turn();
  const std::uint64_t asks_at = ends_[1].carried->serve();
  while (monotonic_ns() < asks_at) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::uint64_t lost_at = ends_[1].carried->serve();
  EXPECT_GT(lost_at, monotonic_ns());
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GT(ends_[1].carried->serve(), lost_at) << "its time begins anew with each look";
  EXPECT_EQ(ends_[1].calls.losses, 0);
  std::size_t got = 0;
  for (std::string part; !(part = receive(ends_[1])).empty(); turn()) got += part.size();
  EXPECT_EQ(got, sent);
  EXPECT_EQ(ends_[1].carried->stage(), CarrierStage::kOver);
  EXPECT_EQ(ends_[1].calls.losses, 0);
}

// The other end has written, closed and gone, and all that lies there when this one half-closes, or
// writes what nobody takes.
TEST_F(CarrierConnection, WhatTheOtherEndHadSentBeforeItClosedIsNotLostByWhatIsSaidTooLate) {
  join();
  switch_both();
  const std::string block(4096, 'x');
  std::size_t sent = 0;
  for (int i = 0; i < 40; ++i) {  // more than the pipe takes
    sent += send(ends_[0], block);
    turn();
  }
  ASSERT_GT(sent, 80u << 10);
  add(ends_[0], kClosed);
  ends_[0].carried->release();
  turn_first();
  ASSERT_TRUE(ends_[0].carried->is_done());
  ends_[0].carried.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // its stream's end is reported
  EXPECT_EQ(send(ends_[1], "too late"), 8u);
  (void)ends_[1].pipe.end_sending();
  std::size_t got = 0;
  for (int quiet = 0; quiet < 3;) {
    (void)ends_[1].carried->serve();
    const std::size_t n = receive(ends_[1]).size();
    got += n;
    quiet = n == 0 ? quiet + 1 : 0;
  }
  EXPECT_EQ(got, sent);
  EXPECT_EQ(ends_[1].pipe.front(), PipeFront::kEnd);
  EXPECT_EQ(other_state(ends_[1]) & (kClosed | kReset), kClosed);
  EXPECT_EQ(ends_[1].calls.losses, 0);
  EXPECT_EQ(ends_[1].carried->stage(), CarrierStage::kOver);
}

TEST_F(CarrierConnection, AnEndWhoseTcpHasEndedIsAskedOnceAndNothingChangesByThat) {
  join();
  switch_both();
  ends_[1].carried->tcp_ended();
  turn();
  const std::uint64_t ask_at = ends_[1].carried->serve();
  while (monotonic_ns() < ask_at) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GT(ends_[1].carried->serve(), ask_at) << "not asked";
  turn();
  for (End& end : ends_) EXPECT_EQ(end.carried->stage(), CarrierStage::kCarried);
  EXPECT_EQ(send(ends_[0], "last"), 4u);
  turn();
  EXPECT_EQ(receive(ends_[1]), "last");
  EXPECT_EQ(ends_[0].calls.losses + ends_[1].calls.losses, 0);
}

TEST_F(CarrierConnection, AnEndThatLeavesIsAnsweredAndThenAllIsOver) {
  join();
  switch_both();
  send(ends_[0], "last");
  (void)ends_[0].pipe.leave();
  add(ends_[0], kLeaving | kGone);
  turn();
  EXPECT_EQ(receive(ends_[1]), "last");
  EXPECT_EQ(ends_[1].pipe.front(), PipeFront::kLeave);
  EXPECT_EQ(other_state(ends_[1]) & (kLeaving | kGone), kLeaving | kGone);
  EXPECT_EQ(ends_[1].calls.answers, 1);
  EXPECT_EQ(ends_[0].carried->stage(), CarrierStage::kCarried);
  (void)ends_[1].pipe.leave();
  add(ends_[1], kGone);
  turn();
  EXPECT_EQ(ends_[0].carried->stage(), CarrierStage::kOver);
  EXPECT_EQ(ends_[1].carried->stage(), CarrierStage::kOver);
  EXPECT_EQ(ends_[0].calls.losses + ends_[1].calls.losses, 0);
}

TEST_F(CarrierConnection, AResetIsToldBehindWhatWasSent) {
  join();
  switch_both();
  send(ends_[0], "last");
  add(ends_[0], kReset | kClosed);
  turn();
  EXPECT_EQ(receive(ends_[1]), "last");
  EXPECT_EQ(other_state(ends_[1]) & (kClosed | kReset), kClosed | kReset);
  EXPECT_EQ(ends_[1].carried->stage(), CarrierStage::kOver);
}

TEST_F(CarrierConnection, ThatIsLostAfterTheSwitchIsReset) {
  join();
  switch_both();
  ends_[0].carried.reset();  // its stream goes with it, and no word of an end has come
  (void)ends_[1].carried->serve();
  (void)ends_[1].carried->serve();
  EXPECT_EQ(ends_[1].calls.losses, 1);
  EXPECT_EQ(ends_[1].carried->stage(), CarrierStage::kOver);
}

TEST_F(CarrierConnection, ThatIsLostWhenTheOtherEndMayHaveSwitchedIsReset) {
  join();
  ends_[0].carried.reset();
  (void)ends_[1].carried->serve();
  (void)ends_[1].carried->serve();
  EXPECT_EQ(ends_[1].calls.losses, 1);
}

TEST_F(CarrierConnection, WhereOneProgramNeverComesTheOtherGoesBackToTcp) {
  ends_[1].carried->meet(std::move(*stream_));
  turn();
  auto pipe = Pipe::create(kMemfdName, 64 * 1024, 0);
  ASSERT_TRUE(pipe);
  auto other = pipe->at_other_end();
  ASSERT_TRUE(other);
  ends_[0].pipe = std::move(*pipe);
  ASSERT_TRUE(ends_[0].carried->attach(std::move(*other)));
  add(ends_[0], kAttached);
  turn();
  EXPECT_FALSE(ends_[1].carried->is_done());
  auto unused = Pipe::create(kMemfdName, 64 * 1024, 0);  // there, and never entered
  ASSERT_TRUE(unused);
  auto its_other = unused->at_other_end();
  ASSERT_TRUE(its_other);
  ASSERT_TRUE(ends_[1].carried->attach(std::move(*its_other)));
  turn();
  EXPECT_FALSE(ends_[1].carried->is_done());
  ends_[1].carried->release();
  turn();
  EXPECT_TRUE(ends_[1].carried->is_done());
  EXPECT_EQ(ends_[0].calls.losses, 0);
  EXPECT_EQ(other_state(ends_[0]) & (kLeaving | kGone), kLeaving | kGone);
  ends_[1].carried.reset();
  turn_first();
  EXPECT_EQ(ends_[0].calls.losses, 0);
}

}  // namespace
}  // namespace clan::preload
