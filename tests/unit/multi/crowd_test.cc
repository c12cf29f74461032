// Many connections, many processes, and processes that are stopped.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "clan/detail/clock.h"
#include "support/streams.h"

namespace clan {
namespace {

using namespace test;
using Mode = WaitOptions::Mode;

TEST(Crowd, OfAThousandConnectionsSharesOneLinkBetweenTwoProcesses) {
  constexpr std::size_t kStreams = 1000;
  auto context = must(Context::create(with_mode(Mode::kAdaptive, 1024)));
  const std::string name = unique_name("thousand");
  auto listener = must(Listener::create(context, name));
  auto queue = must(EventQueue::create(context));
  auto child = Process::start([&] {
    auto own = Context::create(with_mode(Mode::kAdaptive, 1024));
    CHILD_OK(own);
    std::vector<Stream> streams;
    for (std::size_t i = 0; i < kStreams; ++i) {
      auto stream = Stream::connect(*own, name, 10'000);
      CHILD_OK(stream);
      CHILD_OK(stream->send(std::as_bytes(std::span(&i, 1)), 10'000));
      streams.push_back(std::move(*stream));
    }
    CHILD_CHECK(own->counters().links == 1);
    for (int round = 0; round < 3; ++round) {
      for (std::size_t i = 0; i < kStreams; ++i) {
        CHILD_OK(streams[i].send(pattern(100, i, static_cast<std::uint64_t>(round) * 100), 10'000));
      }
      for (std::size_t i = 0; i < kStreams; ++i) {
        Received r = receive_pattern(streams[i], i, static_cast<std::uint64_t>(round) * 100,
                                     static_cast<std::uint64_t>(round) * 100 + 100);
        CHILD_CHECK(r.bytes == static_cast<std::uint64_t>(round) * 100 + 100);
      }
    }
    return 0;
  });
  std::vector<Stream> streams;
  std::vector<std::size_t> number;
  while (streams.size() < kStreams) {
    auto stream = listener.accept(20'000);
    ASSERT_OK(stream);
    std::size_t i = kStreams;
    ASSERT_OK(stream->recv(std::as_writable_bytes(std::span(&i, 1)), 10'000));
    ASSERT_LT(i, kStreams);
    ASSERT_OK(stream->register_with(queue, streams.size()));
    streams.push_back(std::move(*stream));
    number.push_back(i);
  }
  EXPECT_EQ(context.counters().links, 1u);
  std::uint64_t echoed = 0;
  std::byte buffer[512];
  Event events[64];
  while (echoed < kStreams * 300) {
    auto n = queue.wait(events, 20'000);
    ASSERT_OK(n);
    for (std::size_t e = 0; e < *n; ++e) {
      Stream& stream = streams[events[e].tag];
      while (auto got = stream.try_recv(buffer)) {
        if (*got == 0) break;
        ASSERT_OK(stream.send({buffer, *got}, 10'000));
        echoed += *got;
      }
    }
  }
  EXPECT_TRUE(child.wait(20'000).clean());
  EXPECT_TRUE(eventually([&] { return context.counters().links == 0; }));
  for (auto& stream : streams) {
    auto end = stream.recv(buffer, 5000);
    ASSERT_OK(end);
    ASSERT_EQ(*end, 0u);
  }
}

TEST(Crowd, OfProcessesIsServedByOneLoop) {
  constexpr int kProcesses = 6;
  constexpr std::uint64_t kBytes = 200'000;
  auto context = must(Context::create(with_mode(Mode::kAdaptive, 8192)));
  const std::string name = unique_name("processes");
  auto listener = must(Listener::create(context, name));
  auto queue = must(EventQueue::create(context));
  ASSERT_OK(listener.register_with(queue, 1000));
  std::vector<Process> children;
  for (int p = 0; p < kProcesses; ++p) {
    children.push_back(Process::start([&, p] {
      auto own = Context::create(with_mode(Mode::kAdaptive, 8192));
      CHILD_OK(own);
      auto stream = Stream::connect(*own, name, 20'000);
      CHILD_OK(stream);
      const auto seed = static_cast<std::uint64_t>(p);
      int failed = 0;
      std::thread sender(
          [&] { failed = send_pattern(*stream, seed, 0, kBytes) == kBytes ? 0 : 1; });
      Received r = receive_pattern(*stream, seed, 0, kBytes);
      sender.join();
      CHILD_CHECK(failed == 0 && r.bytes == kBytes);
      return 0;
    }));
  }
  std::vector<Stream> streams;
  std::vector<std::vector<std::byte>> backlog;  // what could not be sent back yet
  std::uint64_t echoed = 0;
  std::vector<std::byte> buffer(16 * 1024);
  Event events[16];
  auto work = [&](std::size_t i) {
    for (;;) {
      auto& waiting = backlog[i];
      if (!waiting.empty()) {
        auto n = streams[i].try_send(waiting);
        if (!n.ok()) return;
        echoed += *n;
        waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(*n));
        continue;
      }
      auto got = streams[i].try_recv(buffer);
      if (!got.ok() || *got == 0) return;
      waiting.assign(buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(*got));
    }
  };
  while (echoed < kBytes * kProcesses) {
    auto n = queue.wait(events, 20'000);
    ASSERT_OK(n);
    for (std::size_t e = 0; e < *n; ++e) {
      if (events[e].kind == EventKind::kConnection) {
        while (auto stream = listener.try_accept()) {
          streams.push_back(std::move(*stream));
          backlog.emplace_back();
          ASSERT_OK(streams.back().register_with(queue, streams.size() - 1));
        }
      } else {
        work(events[e].tag);
      }
    }
  }
  for (auto& child : children) EXPECT_TRUE(child.wait(20'000).clean());
}

TEST(StandingStill, PeerCostsOnlyTimeOuts) {
  auto context = must(Context::create(with_mode(Mode::kAdaptive, 4096)));
  auto listener = must(Listener::create(context, ""));
  auto child = Process::start([&] {
    auto own = Context::create(with_mode(Mode::kAdaptive, 4096));
    CHILD_OK(own);
    auto stream = Stream::connect(*own, listener.address(), 10'000);
    CHILD_OK(stream);
    Received r = receive_pattern(*stream, 1, 0, ~std::uint64_t{0});
    CHILD_CHECK(r.end_of_stream && r.right);
    CHILD_OK(stream->send(std::as_bytes(std::span(&r.bytes, 1)), 10'000));
    CHILD_OK(stream->shutdown_send());
    std::byte b;
    (void)stream->recv({&b, 1}, 10'000);
    return 0;
  });
  auto stream = must(listener.accept(10'000));
  std::uint64_t sent = 0;
  for (int round = 0; round < 5; ++round) {
    child.stop();
    for (;;) {
      auto n = stream.send(pattern(1000, 1, sent), 10);
      if (!n.ok()) {
        EXPECT_EQ(n.error().err, ETIMEDOUT);
        break;
      }
      sent += *n;
    }
    std::byte b;
    EXPECT_ERR(stream.recv({&b, 1}, 10), ETIMEDOUT);
    child.resume();
    sent = send_pattern(stream, 1, sent, sent + 10'000);
  }
  ASSERT_OK(stream.shutdown_send(10'000));
  std::uint64_t arrived = 0;
  ASSERT_OK(stream.recv(std::as_writable_bytes(std::span(&arrived, 1)), 10'000));
  EXPECT_EQ(arrived, sent);
  stream.close();
  EXPECT_TRUE(child.wait(10'000).clean());
}

TEST(StandingStill, PeerHearsOfEveryCloseWhenItGoesOn) {
  // More closes than its control socket has room for, with full rings that have no room for an end
  // mark.
  constexpr std::size_t kStreams = 600;
  ContextOptions options = with_mode(Mode::kAdaptive, 1024);
  options.backlog = 2000;
  auto context = must(Context::create(options));
  auto listener = must(Listener::create(context, ""));
  Gate connected, stopped;
  auto child = Process::start([&] {
    auto own = Context::create(options);
    CHILD_OK(own);
    std::vector<Stream> streams;
    for (std::size_t i = 0; i < kStreams; ++i) {
      streams.push_back(must(Stream::connect(*own, listener.address(), 10'000)));
    }
    connected.open();
    CHILD_CHECK(stopped.wait());
    for (auto& stream : streams) {
      Received r = receive_pattern(stream, 1, 0, ~std::uint64_t{0}, 1024, 10'000);
      CHILD_CHECK(r.right && r.bytes > 0);
      CHILD_CHECK(r.end_of_stream);
    }
    return 0;
  });
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < kStreams; ++i) {
    streams.push_back(must(listener.accept(20'000)));
    auto data = pattern(2000, 1);
    std::uint64_t sent = 0;
    while (auto n = streams.back().try_send(std::span(data).subspan(sent))) sent += *n;
    while (auto n = streams.back().try_send(std::span(data).subspan(sent, 1))) sent += *n;
  }
  ASSERT_TRUE(connected.wait());
  child.stop();
  const std::uint64_t start = monotonic_ns();
  while (!streams.empty()) streams.pop_back();
  EXPECT_LT(monotonic_ns() - start, 5'000'000'000u) << "close does not wait for the peer";
  child.resume();
  stopped.open();
  EXPECT_TRUE(child.wait(30'000).clean());
  EXPECT_TRUE(eventually([&] { return context.counters().apertures == 0; }));
}

TEST(StandingStill, ServerDoesNotHoldAClientBeyondItsTimeOut) {
  const std::string name = unique_name("frozen");
  Gate ready;
  auto child = Process::start([&] {
    auto own = Context::create();
    CHILD_OK(own);
    auto listener = Listener::create(*own, name);
    CHILD_OK(listener);
    ready.open();
    auto late = listener->accept(20'000);
    CHILD_OK(late);
    std::byte b;
    auto end = late->recv({&b, 1}, 10'000);
    if (end.ok() && *end == 0) {  // the client that gave up; the next one has not
      late = listener->accept(20'000);
      CHILD_OK(late);
      end = late->recv({&b, 1}, 10'000);
    }
    CHILD_CHECK(end.ok() && *end == 1);
    return 0;
  });
  ASSERT_TRUE(ready.wait());
  auto context = must(Context::create());
  {
    auto linked = must(Stream::connect(context, name, 10'000));
    ASSERT_OK(linked.send(text("x")));
  }
  EXPECT_TRUE(child.wait(20'000).clean());

  // Again, and this time it is stopped: before the handshake, and then with a link that exists.
  child = Process::start([&] {
    auto own = Context::create();
    CHILD_OK(own);
    auto listener = Listener::create(*own, name);
    CHILD_OK(listener);
    ready.open();
    int words = 0;
    for (int i = 0; i < 3; ++i) {
      auto stream = listener->accept(20'000);
      CHILD_OK(stream);
      const std::string s = receive_text(*stream);
      if (s == "words") ++words;
      if (s == "last") break;
    }
    CHILD_CHECK(words == 1);
    return 0;
  });
  ASSERT_TRUE(ready.wait());
  child.stop();
  auto fresh = must(Context::create());
  std::uint64_t start = monotonic_ns();
  EXPECT_ERR(Stream::connect(fresh, name, 50), ETIMEDOUT);
  EXPECT_LT(monotonic_ns() - start, 3'000'000'000u);
  child.resume();
  auto stream = must(Stream::connect(fresh, name, 10'000));
  ASSERT_OK(stream.send(text("words")));
  child.stop();
  start = monotonic_ns();
  EXPECT_ERR(Stream::connect(fresh, name, 50), ETIMEDOUT);
  EXPECT_LT(monotonic_ns() - start, 3'000'000'000u);
  child.resume();
  auto last = must(Stream::connect(fresh, name, 10'000));
  ASSERT_OK(last.send(text("last")));
  EXPECT_TRUE(child.wait(20'000).clean());
  EXPECT_TRUE(eventually([&] { return fresh.counters().links == 0; }));
}

}  // namespace
}  // namespace clan
