#include <clan/stream.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "clan/detail/clock.h"
#include "support/streams.h"

namespace clan {
namespace {

using namespace test;
using Mode = WaitOptions::Mode;

std::string mode_name(Mode mode) {
  return mode == Mode::kAdaptive ? "Adaptive" : mode == Mode::kPoll ? "Poll" : "Sleep";
}

// --- bytes, in every mode and with every size of ring
// ----------------------------------------------

struct Way {
  Mode mode;
  std::uint32_t ring_bytes;
};

class StreamBytes : public testing::TestWithParam<Way> {
 protected:
  // A polling thread keeps its core for milliseconds, and there may be fewer cores than threads.
  std::uint64_t total() const {
    const std::uint64_t most = GetParam().mode == Mode::kPoll ? 64u << 10 : 4u << 20;
    return std::min<std::uint64_t>(most, std::uint64_t{GetParam().ring_bytes} * 512);
  }
  StreamPair pair_{with_mode(GetParam().mode, GetParam().ring_bytes)};
};

INSTANTIATE_TEST_SUITE_P(Ways, StreamBytes,
                         testing::Values(Way{Mode::kAdaptive, 1024},
                                         Way{Mode::kAdaptive, 64 * 1024},
                                         Way{Mode::kAdaptive, 1 << 20}, Way{Mode::kPoll, 64 * 1024},
                                         Way{Mode::kSleep, 1024}, Way{Mode::kSleep, 256 * 1024}),
                         [](const auto& way) {
                           return mode_name(way.param.mode) + std::to_string(way.param.ring_bytes);
                         });

TEST_P(StreamBytes, ArriveExactlyAndInOrderWhateverTheSizesOfTheCalls) {
  std::thread sender([&] {
    EXPECT_EQ(send_pattern(pair_.client, 1, 0, total()), total());
    EXPECT_OK(pair_.client.shutdown_send());
  });
  Received r = receive_pattern(pair_.server, 1, 0, ~std::uint64_t{0});
  EXPECT_EQ(r.bytes, total());
  EXPECT_TRUE(r.right);
  EXPECT_TRUE(r.end_of_stream) << r.err;
  sender.join();
}

TEST_P(StreamBytes, FlowInBothDirectionsAtOnce) {
  auto one_side = [&](Stream& stream, std::uint64_t out, std::uint64_t in) {
    return std::thread([&stream, out, in, this] {
      std::thread sender(
          [&] { EXPECT_EQ(send_pattern(stream, out, 0, total() / 2), total() / 2); });
      Received r = receive_pattern(stream, in, 0, total() / 2);
      EXPECT_EQ(r.bytes, total() / 2) << r.err;
      EXPECT_TRUE(r.right);
      sender.join();
    });
  };
  std::thread client = one_side(pair_.client, 2, 3);
  std::thread server = one_side(pair_.server, 3, 2);
  client.join();
  server.join();
}

TEST_P(StreamBytes, GoBackAndForthAThousandTimes) {
  const int rounds = GetParam().mode == Mode::kPoll ? 50 : 1000;
  std::thread echo([&] {
    std::byte buffer[128];
    for (;;) {
      auto n = pair_.server.recv(buffer, 20'000);
      if (!n.ok() || *n == 0) break;
      if (!pair_.server.send({buffer, *n}, 20'000).ok()) break;
    }
  });
  for (int i = 0; i < rounds; ++i) {
    const std::size_t size = 1 + static_cast<std::size_t>(i) % 100;
    auto out = pattern(size, 4, static_cast<std::uint64_t>(i));
    ASSERT_OK(pair_.client.send(out, 20'000));
    Received r = receive_pattern(pair_.client, 4, static_cast<std::uint64_t>(i),
                                 static_cast<std::uint64_t>(i) + size);
    ASSERT_EQ(r.bytes, static_cast<std::uint64_t>(i) + size) << "round " << i << " errno " << r.err;
  }
  EXPECT_OK(pair_.client.shutdown_send());
  echo.join();
}

TEST(Stream, CarriesEverySizeFromOneByteToFourMegabytesInOneCall) {
  StreamPair pair;
  const std::vector<std::size_t> sizes = {
      1,   2,    7,    8,    55,   56,   57,    63,    64,    65,     119,       120,
      121, 4087, 4088, 4096, 8191, 8192, 16375, 16376, 16377, 65'537, 1'000'003, 4u << 20};
  std::thread sender([&] {
    for (std::size_t size : sizes) {
      auto sent = pair.client.send(pattern(size, size), 20'000);
      ASSERT_OK(sent);
      ASSERT_EQ(*sent, size);
    }
  });
  for (std::size_t size : sizes) {
    Received r = receive_pattern(pair.server, size, 0, size, 1u << 20);
    ASSERT_EQ(r.bytes, size) << r.err;
  }
  sender.join();
}

TEST(Stream, CarriesAMegabyteThroughARingOfOneKilobyte) {
  StreamPair pair(with_mode(Mode::kAdaptive, 1024));
  std::thread sender([&] {
    auto sent = pair.client.send(pattern(1u << 20, 5), 60'000);
    EXPECT_OK(sent);
    EXPECT_EQ(sent.ok() ? *sent : 0, 1u << 20);
  });
  Received r = receive_pattern(pair.server, 5, 0, 1u << 20);
  EXPECT_EQ(r.bytes, 1u << 20) << r.err;
  EXPECT_TRUE(r.right);
  sender.join();
}

TEST(Stream, JoinsContextsWithRingsOfDifferentSizes) {
  StreamPair pair(with_mode(Mode::kAdaptive, 1024), with_mode(Mode::kAdaptive, 1 << 20));
  EXPECT_EQ(pair.client.max_reserve(), (1u << 18) - 8);
  EXPECT_EQ(pair.server.max_reserve(), 248u);
  std::thread sender([&] {
    send_pattern(pair.client, 6, 0, 500'000);
    send_pattern(pair.server, 7, 0, 100'000);
  });
  EXPECT_EQ(receive_pattern(pair.server, 6, 0, 500'000).bytes, 500'000u);
  EXPECT_EQ(receive_pattern(pair.client, 7, 0, 100'000).bytes, 100'000u);
  sender.join();
}

TEST(Stream, BetweenThreadsOnOneCoreMakesProgress) {
  cpu_set_t all, one;
  CPU_ZERO(&all);
  if (::sched_getaffinity(0, sizeof all, &all) != 0) GTEST_SKIP() << "sched_getaffinity";
  for (Mode mode : {Mode::kAdaptive, Mode::kSleep, Mode::kPoll}) {
    StreamPair pair(with_mode(mode, 4096));
    int core = 0;
    while (!CPU_ISSET(core, &all)) ++core;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    const int rounds = mode == Mode::kPoll ? 3 : 300;
    std::thread echo([&] {
      ::sched_setaffinity(0, sizeof one, &one);
      for (int i = 0; i < rounds; ++i) {
        std::byte b;
        ASSERT_OK(pair.server.recv({&b, 1}, 20'000));
        ASSERT_OK(pair.server.send({&b, 1}, 20'000));
      }
    });
    std::thread client([&] {
      ::sched_setaffinity(0, sizeof one, &one);
      for (int i = 0; i < rounds; ++i) {
        std::byte b = static_cast<std::byte>(i);
        ASSERT_OK(pair.client.send({&b, 1}, 20'000));
        ASSERT_OK(pair.client.recv({&b, 1}, 20'000));
        ASSERT_EQ(b, static_cast<std::byte>(i));
      }
    });
    client.join();
    echo.join();
  }
}

// --- calls that do not wait, and zero-copy
// ---------------------------------------------------------

TEST(Stream, TrySendTakesWhatFitsAndTryRecvWhatIsThere) {
  StreamPair pair(with_mode(Mode::kAdaptive, 8192));
  std::byte buffer[100'000];
  EXPECT_ERR(pair.server.try_recv(buffer), EAGAIN);
  auto data = pattern(sizeof buffer, 8);
  std::uint64_t sent = 0, received = 0;
  while (received < data.size()) {
    while (sent < data.size()) {
      auto n = pair.client.try_send(std::span(data).subspan(sent));
      if (!n.ok()) {
        ASSERT_EQ(n.error().err, EAGAIN);
        break;
      }
      ASSERT_GT(*n, 0u);
      sent += *n;
    }
    ASSERT_LE(sent - received, 8192u) << "never more under way than the ring holds";
    auto n = pair.server.try_recv(buffer);
    ASSERT_OK(n);
    ASSERT_TRUE(is_pattern({buffer, *n}, 8, received));
    received += *n;
  }
  EXPECT_EQ(sent, received);
  EXPECT_ERR(pair.server.try_recv(buffer), EAGAIN);
}

TEST(Stream, AppendsTwoPartsAsOneRecordOrNothing) {
  StreamPair pair(with_mode(Mode::kAdaptive, 4096));
  EXPECT_ERR(pair.client.append(pattern(1000, 1), pattern(17, 1)), EMSGSIZE);
  ASSERT_OK(pair.client.append(text("head"), text("and body")));
  auto front = pair.server.peek();
  ASSERT_OK(front);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(front->data()), front->size()),
            "headand body");
  pair.server.consume(front->size());
  std::size_t appended = 0, received = 0;
  while (pair.client.append(pattern(500, 1), pattern(500, 2)).ok()) ++appended;
  EXPECT_ERR(pair.client.append(pattern(500, 1), pattern(500, 2)), EAGAIN);
  for (; (front = pair.server.peek()).ok(); ++received) {
    EXPECT_TRUE(is_pattern(front->first(500), 1, 0) && is_pattern(front->subspan(500), 2, 0));
    pair.server.consume(front->size());
  }
  EXPECT_EQ(received, appended);
  pair.server.close();
  EXPECT_TRUE(eventually([&] { return !pair.client.append(text("x")).ok(); }));
}

TEST(Stream, SendsInPlaceWhatWasReservedAndCommitted) {
  StreamPair pair(with_mode(Mode::kAdaptive, 4096));
  EXPECT_EQ(pair.client.max_reserve(), 1016u);
  EXPECT_ERR(pair.client.reserve(1017), EMSGSIZE);
  Random random(9);
  std::uint64_t sent = 0, received = 0;
  while (received < 200'000) {
    const std::size_t want = 1 + random.below(1016);
    auto room = pair.client.reserve(want);
    if (room.ok()) {
      ASSERT_EQ(room->size(), want);
      const std::size_t used = random.below(4) == 0 ? random.below(want + 1) : want;
      fill_pattern(room->first(used), 9, sent);
      pair.client.commit(used);  // as much as was reserved, less, or nothing
      sent += used;
    } else {
      ASSERT_EQ(room.error().err, EAGAIN);
      auto front = pair.server.peek();
      ASSERT_OK(front);
      ASSERT_FALSE(front->empty());
    }
    if (random.below(3) == 0) {
      auto front = pair.server.peek();
      while (front.ok()) {
        ASSERT_FALSE(front->empty());
        ASSERT_TRUE(is_pattern(*front, 9, received));
        const std::size_t part = 1 + random.below(front->size());
        pair.server.consume(part);
        received += part;
        front = pair.server.peek();
      }
      ASSERT_EQ(front.error().err, EAGAIN);
      ASSERT_EQ(received, sent);
    }
  }
}

TEST(Stream, ReservationThatIsNotCommittedSendsNothing) {
  StreamPair pair;
  auto room = pair.client.reserve(100);
  ASSERT_OK(room);
  fill_pattern(*room, 1, 0);
  std::byte buffer[8];
  EXPECT_ERR(pair.server.recv(buffer, 5), ETIMEDOUT);
  ASSERT_OK(pair.client.send(text("real"), 1000));
  EXPECT_EQ(receive_text(pair.server), "real");
}

TEST(Stream, PeekedBytesStayUntilTheyAreConsumed) {
  StreamPair pair;
  ASSERT_OK(pair.client.send(text("abcdef")));
  ASSERT_OK(pair.server.wait_readable(1000));
  for (int i = 0; i < 3; ++i) {
    auto front = pair.server.peek();
    ASSERT_OK(front);
    ASSERT_EQ(front->size(), 6u);
  }
  pair.server.consume(2);
  EXPECT_EQ(receive_text(pair.server, 3), "cde") << "peek and recv mix";
  auto front = pair.server.peek();
  ASSERT_OK(front);
  EXPECT_EQ(front->size(), 1u);
  pair.server.consume(1);
  EXPECT_ERR(pair.server.peek(), EAGAIN);
  EXPECT_ERR(pair.server.wait_readable(5), ETIMEDOUT);
  pair.client.close();
  ASSERT_OK(pair.server.wait_readable(1000));
  front = pair.server.peek();
  ASSERT_OK(front);
  EXPECT_TRUE(front->empty()) << "empty = the peer has closed";
}

TEST(Stream, AGlanceSeesWhatPeekWouldAndTheEnd) {
  StreamPair pair;
  EXPECT_FALSE(pair.server.glance());
  ASSERT_OK(pair.client.send(text("ab")));
  EXPECT_TRUE(pair.server.glance());
  ASSERT_OK(pair.server.peek());
  pair.server.consume(1);
  EXPECT_TRUE(pair.server.glance()) << "a part of what was peeked at is left";
  pair.server.consume(1);
  EXPECT_FALSE(pair.server.glance());
  EXPECT_FALSE(pair.server.ended());
  pair.client.close();
  while (!pair.server.ended()) std::this_thread::yield();
  EXPECT_TRUE(pair.server.glance());
}

TEST(Stream, RecvIntoAnEmptyBufferAndSendOfNothingDoNothing) {
  StreamPair pair;
  auto sent = pair.client.send({}, 1000);
  ASSERT_OK(sent);
  EXPECT_EQ(*sent, 0u);
  EXPECT_OK(pair.client.try_send({}));
  auto got = pair.server.recv({}, 1000);
  ASSERT_OK(got);
  EXPECT_EQ(*got, 0u);
  std::byte b;
  EXPECT_ERR(pair.server.try_recv({&b, 1}), EAGAIN);
}

// --- back-pressure, time-outs, signals
// -------------------------------------------------------------

TEST(Stream, BlocksTheSenderOfAFullRingAndResumesWhenTheReceiverReads) {
  for (Mode mode : {Mode::kAdaptive, Mode::kSleep}) {
    StreamPair pair(with_mode(mode, 16 * 1024));
    std::atomic<std::uint64_t> sent{0};
    std::thread sender([&] {
      for (std::uint64_t at = 0; at < 200'000; at += 1000) {
        ASSERT_OK(pair.client.send(pattern(1000, 10, at), 20'000));
        sent = at + 1000;
      }
    });
    EXPECT_TRUE(eventually([&] { return sent >= 10'000; }));
    ::usleep(20'000);
    EXPECT_LE(sent, 16'384u);
    EXPECT_EQ(receive_pattern(pair.server, 10, 0, 200'000).bytes, 200'000u);
    sender.join();
  }
}

TEST(Stream, RecvThatTimesOutLosesNothing) {
  for (Mode mode : {Mode::kAdaptive, Mode::kSleep, Mode::kPoll}) {
    StreamPair pair(with_mode(mode));
    std::thread sender([&] {
      for (std::uint64_t at = 0; at < 2000; at += 100) {
        ::usleep(2000);
        ASSERT_OK(pair.client.send(pattern(100, 11, at), 10'000));
      }
    });
    std::uint64_t at = 0;
    int timeouts = 0;
    std::byte buffer[300];
    while (at < 2000 && timeouts < 10'000) {
      auto n = pair.server.recv(buffer, timeouts % 3);
      if (!n.ok()) {
        ASSERT_EQ(n.error().err, ETIMEDOUT);
        ++timeouts;
        continue;
      }
      ASSERT_TRUE(is_pattern({buffer, *n}, 11, at));
      at += *n;
    }
    EXPECT_EQ(at, 2000u);
    EXPECT_GT(timeouts, 0);
    sender.join();
  }
}

TEST(Stream, SendThatTimesOutSaysHowMuchWentAndTheRestCanFollow) {
  StreamPair pair(with_mode(Mode::kAdaptive, 4096));
  auto data = pattern(20'000, 12);
  auto first = pair.client.send(data, 20);
  ASSERT_OK(first);
  EXPECT_GT(*first, 0u);
  EXPECT_LT(*first, 4096u);
  EXPECT_ERR(pair.client.send(std::span(data).subspan(*first), 5), ETIMEDOUT);
  std::thread sender([&] {
    auto rest = pair.client.send(std::span(data).subspan(*first), 20'000);
    ASSERT_OK(rest);
    EXPECT_EQ(*rest, data.size() - *first);
  });
  EXPECT_EQ(receive_pattern(pair.server, 12, 0, data.size()).bytes, data.size());
  sender.join();
}

TEST(Stream, TimesOutNeitherEarlyNorMuchTooLate) {
  for (Mode mode : {Mode::kAdaptive, Mode::kSleep, Mode::kPoll}) {
    StreamPair pair(with_mode(mode));
    std::byte b;
    const std::uint64_t start = monotonic_ns();
    EXPECT_ERR(pair.server.recv({&b, 1}, 50), ETIMEDOUT);
    const std::uint64_t took = monotonic_ns() - start;
    EXPECT_GE(took, 49'000'000u);
    EXPECT_LT(took, 3'000'000'000u);
  }
}

TEST(Stream, TellsASleeperThatASignalArrived) {
  struct sigaction action {
  }, old{};
  action.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &old), 0);
  StreamPair pair(with_mode(Mode::kSleep, 1024));
  auto interrupted = [](auto call) {
    std::atomic<int> err{-1};
    std::thread sleeper([&] {
      auto r = call();
      err = r.ok() ? 0 : r.error().err;
    });
    EXPECT_TRUE(eventually([&] {
      ::pthread_kill(sleeper.native_handle(), SIGUSR1);
      return err.load() != -1;
    }));
    sleeper.join();
    return err.load();
  };
  std::byte buffer[4096];
  EXPECT_EQ(interrupted([&] { return pair.server.recv(buffer, -1); }), EINTR);
  EXPECT_EQ(interrupted([&] { return pair.server.wait_readable(10'000); }), EINTR);
  // A full ring, so that the sender sleeps before anything goes.
  auto data = pattern(sizeof buffer, 13);
  std::uint64_t sent = 0;
  while (auto n = pair.client.try_send(std::span(data).subspan(sent))) sent += *n;
  EXPECT_EQ(interrupted([&] { return pair.client.send(std::span(data).subspan(sent), -1); }),
            EINTR);
  // And all goes on as if nothing had happened.
  EXPECT_EQ(receive_pattern(pair.server, 13, 0, sent).bytes, sent);
  ASSERT_OK(pair.client.send(text("on"), 1000));
  EXPECT_EQ(receive_text(pair.server), "on");
  ::sigaction(SIGUSR1, &old, nullptr);
}

// --- ends
// ------------------------------------------------------------------------------------------

TEST(Stream, HalfClosedIsReadToItsEndAndStillReceives) {
  StreamPair pair;
  ASSERT_OK(pair.client.send(text("last words")));
  ASSERT_OK(pair.client.shutdown_send());
  ASSERT_OK(pair.client.shutdown_send()) << "twice is as good as once";
  EXPECT_ERR(pair.client.send(text("x")), EPIPE);
  EXPECT_ERR(pair.client.try_send(text("x")), EPIPE);
  EXPECT_ERR(pair.client.reserve(1), EPIPE);
  EXPECT_EQ(receive_text(pair.server), "last words");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(receive_text(pair.server), "") << "the end stays the end";
  auto front = pair.server.peek();
  ASSERT_OK(front);
  EXPECT_TRUE(front->empty());
  std::thread answer([&] {
    send_pattern(pair.server, 14, 0, 1'000'000);
    pair.server.close();
  });
  Received r = receive_pattern(pair.client, 14, 0, ~std::uint64_t{0});
  EXPECT_EQ(r.bytes, 1'000'000u);
  EXPECT_TRUE(r.end_of_stream);
  answer.join();
}

TEST(Stream, ClosedWithAFullRingIsStillReadToItsEnd) {
  for (std::uint32_t ring : {1024u, 65536u}) {
    StreamPair pair(with_mode(Mode::kAdaptive, ring));
    auto data = pattern(2 * ring, 15);
    std::uint64_t sent = 0;
    while (auto n = pair.client.try_send(std::span(data).subspan(sent))) sent += *n;
    pair.client.close();
    Received r = receive_pattern(pair.server, 15, 0, ~std::uint64_t{0});
    EXPECT_EQ(r.bytes, sent);
    EXPECT_TRUE(r.right);
    EXPECT_TRUE(r.end_of_stream) << r.err;
  }
}

TEST(Stream, ClosedByThePeerAnswersSendersWithEpipe) {
  StreamPair pair;
  pair.server.close();
  Result<std::size_t> sent = std::size_t{0};
  EXPECT_TRUE(eventually([&] {
    sent = pair.client.send(text("x"), 1000);
    return !sent.ok();
  }));
  EXPECT_ERR(sent, EPIPE);
  EXPECT_ERR(pair.client.try_send(text("x")), EPIPE);
  EXPECT_EQ(receive_text(pair.client), "");
}

TEST(Stream, CloseWakesAPeerThatWaits) {
  for (Mode mode : {Mode::kAdaptive, Mode::kSleep}) {
    StreamPair pair(with_mode(mode, 1024));
    std::thread receiver([&] { EXPECT_EQ(receive_text(pair.server), ""); });
    std::thread sender([&] {
      auto sent = pair.server.send(pattern(10'000, 16), 10'000);
      ASSERT_OK(sent);
      EXPECT_LT(*sent, 10'000u) << "a part went before the peer closed";
      EXPECT_ERR(pair.server.send(text("x"), 10'000), EPIPE);
    });
    ::usleep(20'000);
    pair.client.close();
    receiver.join();
    sender.join();
  }
}

TEST(Stream, IsOfNoUseAfterItsOwnClose) {
  StreamPair pair(with_mode(Mode::kAdaptive, 1024));
  ASSERT_OK(pair.server.send(text("not read")));
  auto data = pattern(4096, 17);
  std::uint64_t sent = 0;
  while (auto n = pair.client.try_send(std::span(data).subspan(sent))) sent += *n;
  ASSERT_OK(pair.client.peek());
  pair.client.close();
  pair.client.close();
  std::byte buffer[64];
  EXPECT_ERR(pair.client.send(text("x"), 10), EPIPE);
  EXPECT_ERR(pair.client.try_send(text("x")), EPIPE);
  EXPECT_ERR(pair.client.reserve(1), EPIPE);
  EXPECT_ERR(pair.client.recv(buffer, 10), EBADF);
  EXPECT_ERR(pair.client.try_recv(buffer), EBADF);
  EXPECT_ERR(pair.client.peek(), EBADF);
  pair.client.consume(3);
  Received r = receive_pattern(pair.server, 17, 0, ~std::uint64_t{0});
  EXPECT_EQ(r.bytes, sent) << "nothing was written after close";
  EXPECT_TRUE(r.end_of_stream);
}

TEST(Stream, AbortedResetsThePeerAfterItHasReadEverything) {
  StreamPair pair;
  ASSERT_OK(pair.client.send(text("heard")));
  pair.client.abort();
  pair.client.abort();
  EXPECT_TRUE(eventually([&] { return !pair.server.try_send(text("x")).ok(); }));
  EXPECT_EQ(receive_text(pair.server), "heard");
  std::byte b;
  EXPECT_ERR(pair.server.recv({&b, 1}, 5000), ECONNRESET);
  EXPECT_FALSE(pair.client.try_send(text("x")).ok());
  while (pair.client.try_recv({&b, 1}).ok()) {  // what had come before
  }
  EXPECT_ERR(pair.client.recv({&b, 1}, 5000), ECONNABORTED);
  pair.client.close();
  pair.server.close();
  EXPECT_TRUE(eventually([&] {
    return pair.client_context.counters().apertures == 0 &&
           pair.server_context.counters().apertures == 0;
  }));
}

TEST(Stream, MovedIntoAnotherClosesWhatThatOneHeld) {
  StreamPair a, b;
  ASSERT_OK(a.client.send(text("from a")));
  b.client = std::move(a.client);
  EXPECT_EQ(receive_text(b.server), "") << "b's old client is closed";
  ASSERT_OK(b.client.send(text(" and still")));
  std::string all = receive_text(a.server);
  if (all.size() == 6) all += receive_text(a.server);
  EXPECT_EQ(all, "from a and still");
}

TEST(Stream, KnowsWhoIsAtTheOtherEnd) {
  StreamPair pair;
  EXPECT_EQ(pair.client.peer().node, pair.server_context.node());
  EXPECT_EQ(pair.server.peer().node, pair.client_context.node());
  EXPECT_EQ(pair.client.peer().pid, ::getpid());
  EXPECT_EQ(pair.client.peer().uid, ::geteuid());
  EXPECT_STREQ(pair.client.peer().path, "shm");
}

// --- listeners
// -------------------------------------------------------------------------------------

TEST(Listener, RefusesConnectionsWhenNobodyOffersTheService) {
  auto context = must(Context::create());
  EXPECT_ERR(Stream::connect(context, unique_name("nobody"), 5000), ECONNREFUSED);
  EXPECT_ERR(Stream::connect(context, "", 5000), ECONNREFUSED);
  EXPECT_FALSE(Stream::connect(context, std::string(200, 'x'), 5000).ok());
}

TEST(Listener, RefusesConnectionsBeyondItsBacklogUntilSomeAreAccepted) {
  ContextOptions options;
  options.backlog = 2;
  options.ring_bytes = 1024;
  auto server = must(Context::create(options));
  auto client = must(Context::create(options));
  const std::string name = unique_name("backlog");
  auto listener = must(Listener::create(server, name));
  auto one = must(Stream::connect(client, name, 5000));
  auto two = must(Stream::connect(client, name, 5000));
  EXPECT_ERR(Stream::connect(client, name, 5000), ECONNREFUSED);
  EXPECT_ERR(Stream::connect(client, name, 5000), ECONNREFUSED);
  auto accepted = must(listener.accept(5000));
  auto three = must(Stream::connect(client, name, 5000));
  ASSERT_OK(one.send(text("one")));
  EXPECT_EQ(receive_text(accepted), "one") << "first come, first served";
}

TEST(Listener, HoldsItsNameAsLongAsItLives) {
  auto a = must(Context::create());
  auto b = must(Context::create());
  const std::string name = unique_name("name");
  {
    auto listener = must(Listener::create(a, name));
    EXPECT_ERR(Listener::create(a, name), EADDRINUSE);
    EXPECT_ERR(Listener::create(b, name), EADDRINUSE);
    // The failed attempts have not taken it away from its owner.
    auto stream = Stream::connect(b, name, 5000);
    EXPECT_OK(stream);
  }
  EXPECT_TRUE(Listener::create(b, name).ok());
}

TEST(Listener, ThatIsReplacedIsFoundByClientsOfTheOldOne) {
  auto server = must(Context::create());
  auto other = must(Context::create());
  auto client = must(Context::create());
  const std::string name = unique_name("again");
  for (int round = 0; round < 3; ++round) {
    auto listener = must(Listener::create(round == 2 ? other : server, name));
    const std::uint64_t start = monotonic_ns();
    auto stream = Stream::connect(client, name, 5000);
    ASSERT_OK(stream);
    EXPECT_LT(monotonic_ns() - start, 3'000'000'000u);
    auto accepted = must(listener.accept(5000));
    ASSERT_OK(stream->send(text("hello")));
    EXPECT_EQ(receive_text(accepted), "hello");
  }
  const std::uint64_t start = monotonic_ns();
  EXPECT_ERR(Stream::connect(client, name, 5000), ECONNREFUSED);
  EXPECT_LT(monotonic_ns() - start, 3'000'000'000u);
}

TEST(Listener, IsReachedByItsAddressWithAndWithoutAName) {
  auto server = must(Context::create());
  auto client = must(Context::create());
  auto named = must(Listener::create(server, unique_name("named")));
  auto nameless = must(Listener::create(server, ""));
  EXPECT_EQ(named.address().node, server.node());
  EXPECT_NE(named.address().endpoint, nameless.address().endpoint);
  for (Listener* listener : {&named, &nameless}) {
    auto stream = Stream::connect(client, listener->address(), 5000);
    ASSERT_OK(stream);
    auto accepted = listener->accept(5000);
    ASSERT_OK(accepted);
    ASSERT_OK(stream->send(text("by address")));
    EXPECT_EQ(receive_text(*accepted), "by address");
  }
}

TEST(Listener, GoneOrNeverThereRefusesItsAddressAtOnce) {
  auto server = must(Context::create());
  auto client = must(Context::create());
  auto keeps_node = must(Listener::create(server, ""));
  Address gone;
  {
    auto listener = must(Listener::create(server, ""));
    gone = listener.address();
  }
  const std::uint64_t start = monotonic_ns();
  EXPECT_ERR(Stream::connect(client, gone, 5000), ECONNREFUSED);
  Address nobody = gone;
  nobody.node.value ^= 1;
  EXPECT_ERR(Stream::connect(client, nobody, 5000), ECONNREFUSED);
  EXPECT_LT(monotonic_ns() - start, 3'000'000'000u);
}

TEST(Listener, DestroyedWithConnectionsWaitingClosesThem) {
  auto server = must(Context::create());
  auto client = must(Context::create());
  const std::string name = unique_name("waiting");
  std::vector<Stream> streams;
  {
    auto listener = must(Listener::create(server, name));
    for (int i = 0; i < 3; ++i) streams.push_back(must(Stream::connect(client, name, 5000)));
  }
  for (auto& stream : streams) EXPECT_EQ(receive_text(stream), "");
}

TEST(Listener, AcceptWaitsAsLongAsItIsToldTo) {
  auto context = must(Context::create());
  auto listener = must(Listener::create(context, ""));
  EXPECT_ERR(listener.try_accept(), EAGAIN);
  const std::uint64_t start = monotonic_ns();
  EXPECT_ERR(listener.accept(30), ETIMEDOUT);
  EXPECT_GE(monotonic_ns() - start, 29'000'000u);
  EXPECT_FALSE(listener.accept(0).ok());
}

TEST(Listener, AcceptsOnSeveralThreadsEachConnectionOnce) {
  auto server = must(Context::create(with_mode(Mode::kAdaptive, 1024)));
  auto client = must(Context::create(with_mode(Mode::kAdaptive, 1024)));
  const std::string name = unique_name("many");
  auto listener = must(Listener::create(server, name));
  std::atomic<int> accepted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (accepted < 60) {
        auto stream = listener.accept(50);
        if (!stream.ok()) continue;
        ++accepted;
        std::byte b{1};
        EXPECT_OK(stream->send({&b, 1}, 5000));
      }
    });
  }
  for (int i = 0; i < 60; ++i) {
    auto stream = must(Stream::connect(client, name, 5000));
    std::byte b[2];
    auto n = stream.recv(b, 10'000);
    ASSERT_OK(n);
    EXPECT_EQ(*n, 1u);
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(accepted, 60);
}

TEST(Connections, OpenedAndClosedOverAndOverUseNoMoreMemory) {
  // The ring memory of a closed connection is used again, whichever end closes first.
  StreamPair pair(with_mode(Mode::kAdaptive, 256 * 1024));
  const std::string name = unique_name("cycle");
  auto listener = must(Listener::create(pair.server_context, name));
  std::uint64_t mapped = 0, resident = 0;
  std::size_t mappings = 0, descriptors = 0;
  for (int i = 0; i < 600; ++i) {
    auto client = must(Stream::connect(pair.client_context, name, 10'000));
    auto server = must(listener.accept(10'000));
    ASSERT_OK(client.send(pattern(5000, 1), 10'000));
    ASSERT_OK(server.send(pattern(5000, 2), 10'000));
    if (i % 3 == 0) {
      client.close();
      server.close();
    } else if (i % 3 == 1) {
      server.close();
      client.close();
    } else {
      std::thread other([&] { client.close(); });
      server.close();
      other.join();
    }
    if (i == 99) {
      mapped = mapped_bytes();
      mappings = mapping_count();
      descriptors = open_descriptors();
      resident = resident_shared_bytes();
    }
  }
  EXPECT_LE(mapped_bytes(), mapped + (33u << 20)) << "at most one arena more";
  EXPECT_LE(mapping_count(), mappings + 8);
  EXPECT_LE(open_descriptors(), descriptors + 2);
  EXPECT_LE(resident_shared_bytes(), resident + (8u << 20));
  EXPECT_TRUE(eventually([&] {
    // What remains is the pair's own connection.
    return pair.client_context.counters().apertures == 1 &&
           pair.server_context.counters().apertures == 1;
  }));
  EXPECT_EQ(pair.client_context.counters().tripwires, 2u);
  EXPECT_EQ(pair.server_context.counters().tripwires, 2u);
  EXPECT_EQ(pair.client_context.counters().links, 1u);
  ASSERT_OK(pair.client.send(text("still here")));
  EXPECT_EQ(receive_text(pair.server), "still here");
}

}  // namespace
}  // namespace clan
