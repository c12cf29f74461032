// Which thread polls the network: one of the program, or the carrier's.
#include <poll.h>
#include <unistd.h>

#include <thread>

#include "preload/net/carrier_nodes.h"

namespace clan::preload {
namespace {

// The carriers' threads may take most round trips: on a busy machine a thread that looks is off its
// processor now and then.
TEST_F(CarrierNodes, AThreadThatLooksTakesWhatHasComeItself) {
  int taken = 0;
  const auto look_until = [&](End& end) {
    const std::uint64_t until = monotonic_ns() + kPatienceNs;
    while (end.pipe.seems_empty() && monotonic_ns() < until) taken += end.node->look();
  };
  const std::uint64_t give_up_at = monotonic_ns() + kPatienceNs;
  for (int i = 0; i < 200 || (taken == 0 && monotonic_ns() < give_up_at); ++i) {
    send(ends_[0], "question");
    look_until(ends_[1]);
    ASSERT_EQ(receive(ends_[1]), "question");
    send(ends_[1], "answer");
    look_until(ends_[0]);
    ASSERT_EQ(receive(ends_[0]), "answer");
  }
  EXPECT_GT(taken, 0);
}

TEST_F(CarrierNodes, WhenAThreadThatHasLookedSleepsItIsRung) {
  for (int i = 0; i < 20; ++i) {
    for (int k = 0; k < 50; ++k) (void)ends_[1].node->look();
    const int rings = ends_[1].rings;
    ASSERT_TRUE(ends_[1].pipe.want_data());
    PacketFds none;
    EXPECT_TRUE(ends_[1].node->begin_sleep(::gettid(), false, &none));
    EXPECT_EQ(none.count, 0u);
    send(ends_[0], "question");
    ASSERT_TRUE(becomes([&] { return ends_[1].rings > rings; }));
    (void)ends_[1].node->end_sleep(::gettid(), false);
    ASSERT_EQ(receive(ends_[1]), "question");
  }
}

TEST_F(CarrierNodes, AThreadThatHasLookedAndDoesSomethingElseMissesNothing) {
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(ends_[1].pipe.want_data());
    for (int k = 0; k < 50; ++k) (void)ends_[1].node->look();
    send(ends_[0], "question");
    ASSERT_TRUE(becomes([&] { return !ends_[1].pipe.seems_empty(); }));
    ASSERT_EQ(receive(ends_[1]), "question");
  }
}

// A program that sleeps in poll(), on the descriptors it is given.
class CarrierSleeps : public CarrierNodes {
 protected:
  /// Until there is something in the pipe, or it has been rung. True: it has fetched that itself.
  bool sleep_once(End& end) {
    PacketFds watched;
    const int rings = end.rings;
    if (!end.node->begin_sleep(::gettid(), true, &watched)) return false;
    if (!end.pipe.want_data()) return end.node->end_sleep(::gettid(), false), false;
    pollfd fds[PacketFds::kMost];
    for (unsigned i = 0; i < watched.count; ++i) fds[i] = {watched.fd[i], POLLIN, 0};
    bool ready = false;
    const std::uint64_t until = monotonic_ns() + kPatienceNs;
    while (!ready && end.rings == rings && monotonic_ns() < until)
      ready = ::poll(fds, watched.count, 1) > 0;
    end.pipe.unwant_data();
    return end.node->end_sleep(::gettid(), ready) && ready && end.rings == rings;
  }
  /// The number of messages that the thread has fetched itself, of those it has heard.
  int hear(End& end, std::string_view what) {
    int fetched = 0;
    const std::uint64_t until = monotonic_ns() + kPatienceNs;
    while (end.pipe.seems_empty() && monotonic_ns() < until) fetched += sleep_once(end);
    EXPECT_EQ(receive(end), what);
    return fetched;
  }
};

TEST_F(CarrierSleeps, AThreadThatSleepsOftenFetchesItsPacketsAndIsNotRung) {
  constexpr int kTimes = 500;
  int asked = 0, answered = 0;
  std::thread client([&] {
    for (int i = 0; i < kTimes; ++i) {
      send(ends_[0], "question");
      asked += hear(ends_[0], "answer");
    }
  });
  for (int i = 0; i < kTimes; ++i) {
    answered += hear(ends_[1], "question");
    send(ends_[1], "answer");
  }
  client.join();
  EXPECT_GT(asked, 0);
  EXPECT_GT(answered, 0);
}

TEST_F(CarrierSleeps, OneOfSeveralThatSleepIsRung) {
  PacketFds none;
  // Another thread, of which we say that it sleeps.
  EXPECT_TRUE(ends_[1].node->begin_sleep(1, false, &none));
  for (int i = 0; i < 100; ++i) {
    send(ends_[0], "question");
    EXPECT_EQ(hear(ends_[1], "question"), 0);
  }
  (void)ends_[1].node->end_sleep(1, false);
}

TEST_F(CarrierSleeps, WhatComesForAThreadThatSleepsIsBroughtWhenTheOneThatFetchesHasLeft) {
  for (int i = 0; i < 50; ++i) {
    for (int k = 0; k < 5; ++k) {
      send(ends_[0], "question");
      (void)hear(ends_[1], "question");
    }
    // It goes to sleep as before, and jumps away. Another thread falls asleep.
    PacketFds watched, none;
    (void)ends_[1].node->begin_sleep(::gettid(), true, &watched);
    EXPECT_TRUE(ends_[1].node->begin_sleep(1, true, &none));
    const int rings = ends_[1].rings;
    if (ends_[1].pipe.want_data()) {
      send(ends_[0], "question");
      ASSERT_TRUE(becomes([&] { return ends_[1].rings > rings; }));
    }
    ASSERT_EQ(receive(ends_[1]), "question");
    (void)ends_[1].node->end_sleep(1, false);
  }
}

TEST_F(CarrierSleeps, AThreadThatHasWokenAndDoesSomethingElseMissesNothing) {
  for (int i = 0; i < 20; ++i) {
    for (int k = 0; k < 5; ++k) {
      send(ends_[0], "question");
      (void)hear(ends_[1], "question");
    }
    PacketFds watched;
    (void)ends_[1].node->begin_sleep(::gettid(), true, &watched);
    (void)ends_[1].node->end_sleep(::gettid(), true);
    send(ends_[0], "question");
    ASSERT_TRUE(becomes([&] { return !ends_[1].pipe.seems_empty(); }));
    ASSERT_EQ(receive(ends_[1]), "question");
  }
}

}  // namespace
}  // namespace clan::preload
