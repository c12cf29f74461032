// A forked child does not inherit the network: it gets errors, it touches nothing, and it does not
// keep its parent's death from being seen.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "support/streams.h"

namespace clan {
namespace {

using namespace test;
using Mode = WaitOptions::Mode;

template <typename R>
bool fails_with(const R& result, int err) {
  if (!result.ok() && result.error().err == err) return true;
  std::fprintf(stderr, "expected errno %d, got %s\n", err,
               result.ok() ? "success" : result.error().message().c_str());
  return false;
}

TEST(Fork, ChildGetsErrorsFromEverythingInherited) {
  StreamPair pair;
  auto queue = must(EventQueue::create(pair.server_context));
  ASSERT_OK(pair.server.register_with(queue, 1));
  ASSERT_OK(pair.client.send(text("before")));
  auto child = Process::start([&] {
    std::byte b[16];
    Event e[1];
    CHILD_CHECK(fails_with(pair.server.recv(b, 1000), ESHUTDOWN));
    CHILD_CHECK(fails_with(pair.server.try_recv(b), ESHUTDOWN));
    CHILD_CHECK(fails_with(pair.server.peek(), ESHUTDOWN));
    CHILD_CHECK(fails_with(pair.server.wait_readable(1000), ESHUTDOWN));
    CHILD_CHECK(fails_with(pair.client.send(text("x"), 1000), ESHUTDOWN));
    CHILD_CHECK(fails_with(pair.client.try_send(text("x")), ESHUTDOWN));
    CHILD_CHECK(fails_with(pair.client.reserve(1), ESHUTDOWN));
    CHILD_CHECK(fails_with(pair.client.shutdown_send(1000), ESHUTDOWN));
    CHILD_CHECK(fails_with(pair.client.register_with(queue, 2), ESHUTDOWN));
    CHILD_CHECK(fails_with(queue.wait(e, 1000), ESHUTDOWN));
    CHILD_CHECK(queue.poll(e) == 0);
    CHILD_CHECK(fails_with(pair.listener.accept(1000), ESHUTDOWN));
    CHILD_CHECK(fails_with(Stream::connect(pair.client_context, "x", 1000), ESHUTDOWN));
    CHILD_CHECK(fails_with(Listener::create(pair.client_context, "x"), ESHUTDOWN));
    CHILD_CHECK(fails_with(EventQueue::create(pair.client_context), ESHUTDOWN));
    return 0;
  });
  EXPECT_TRUE(child.wait(20'000).clean());
  // The event and the bytes are still the parent's.
  Event e[2];
  ASSERT_EQ(queue.poll(e), 1u);
  EXPECT_EQ(receive_text(pair.server), "before");
  EXPECT_EQ(pair.server_context.counters().links, 1u);
}

TEST(Fork, ChildThatDestroysWhatItInheritedDisturbsNothing) {
  auto pair = std::make_unique<StreamPair>(with_mode(Mode::kAdaptive, 1024));
  auto queue = std::make_unique<EventQueue>(must(EventQueue::create(pair->server_context)));
  ASSERT_OK(pair->server.register_with(*queue, 1));
  ASSERT_OK(pair->client.send(text("partly read")));
  EXPECT_EQ(receive_text(pair->server, 3), "par");
  auto room = pair->client.reserve(5);
  ASSERT_OK(room);
  auto child = Process::start([&] {
    pair->client.commit(5);
    pair->server.consume(3);
    pair->server.unregister();
    pair->server.close();
    pair->client.close();
    pair.reset();
    queue.reset();
    return 0;
  });
  EXPECT_TRUE(child.wait(20'000).clean());
  ::usleep(20'000);
  EXPECT_EQ(receive_text(pair->server), "tly read");
  std::memcpy(room->data(), "after", 5);
  pair->client.commit(5);
  EXPECT_EQ(receive_text(pair->server), "after");
  std::thread sender([&] { EXPECT_EQ(send_pattern(pair->server, 1, 0, 100'000), 100'000u); });
  EXPECT_EQ(receive_pattern(pair->client, 1, 0, 100'000).bytes, 100'000u);
  sender.join();
  Event e[1];
  ASSERT_OK(pair->client.send(text("event")));
  ASSERT_OK(queue->wait(e, 5000));
  auto third = must(Context::create());
  auto other = Stream::connect(third, pair->listener.address(), 5000);
  EXPECT_OK(other) << "the listener still listens";
}

TEST(Fork, ChildMakesAContextOfItsOwnAndConnectsToItsParent) {
  StreamPair pair;
  for (int round = 0; round < 3; ++round) {
    auto child = Process::start([&] {
      auto context = Context::create();
      CHILD_OK(context);
      CHILD_CHECK(!(context->node() == pair.server_context.node()));
      auto stream = Stream::connect(*context, pair.listener.address(), 10'000);
      CHILD_OK(stream);
      CHILD_CHECK(send_pattern(*stream, 7, 0, 300'000) == 300'000);
      CHILD_CHECK(receive_text(*stream) == "thanks");
      return 0;
    });
    auto stream = pair.listener.accept(10'000);
    ASSERT_OK(stream);
    EXPECT_EQ(stream->peer().pid, child.pid());
    EXPECT_EQ(receive_pattern(*stream, 7, 0, 300'000).bytes, 300'000u);
    ASSERT_OK(stream->send(text("thanks")));
    EXPECT_TRUE(child.wait(20'000).clean());
    Received r = receive_pattern(*stream, 7, 300'000, ~std::uint64_t{0});
    EXPECT_TRUE(r.end_of_stream) << r.err;
  }
  ASSERT_OK(pair.client.send(text("ours")));
  EXPECT_EQ(receive_text(pair.server), "ours");
}

TEST(Fork, ParentsDeathIsSeenAlthoughAChildLivesOn) {
  auto context = must(Context::create());
  auto listener = must(Listener::create(context, unique_name("watcher")));
  const std::string service = unique_name("offered");
  Gate offered, release, gone;
  auto parent = Process::start([&] {
    auto own = Context::create();
    CHILD_OK(own);
    auto offer = Listener::create(*own, service);
    CHILD_OK(offer);
    auto stream = Stream::connect(*own, listener.address(), 10'000);
    CHILD_OK(stream);
    if (::fork() == 0) {  // lives on when its parent is killed
      ::alarm(30);
      offered.open();
      release.wait(20'000);
      gone.open();
      ::_exit(0);
    }
    ::pause();
    return 0;
  });
  auto stream = must(listener.accept(10'000));
  ASSERT_TRUE(offered.wait());
  EXPECT_OK(Stream::connect(context, service, 5000));
  (void)parent.kill();
  std::byte b;
  EXPECT_ERR(stream.recv({&b, 1}, 2000), ECONNRESET);
  EXPECT_TRUE(eventually([&] { return context.counters().links == 0; }));
  EXPECT_ERR(Stream::connect(context, service, 2000), ECONNREFUSED);
  EXPECT_OK(Listener::create(context, service)) << "its name is free";
  release.open();
  EXPECT_TRUE(gone.wait(5000));
}

TEST(Fork, WhileOtherThreadsAreBusyLeavesBothSidesWorking) {
  StreamPair pair(with_mode(Mode::kAdaptive, 4096));
  const std::string name = unique_name("busy");
  auto listener = must(Listener::create(pair.server_context, name));
  std::atomic<bool> over{false};
  std::thread churn([&] {
    while (!over) {
      auto stream = Stream::connect(pair.client_context, name, 10'000);
      ASSERT_OK(stream);
      auto accepted = listener.accept(10'000);
      ASSERT_OK(accepted);
    }
  });
  std::uint64_t sent = 0;
  std::thread sender([&] {
    while (!over) sent = send_pattern(pair.client, 3, sent, sent + 10'000);
    EXPECT_OK(pair.client.shutdown_send(10'000));
  });
  Received r;
  std::thread receiver([&] { r = receive_pattern(pair.server, 3, 0, ~std::uint64_t{0}); });
  for (int i = 0; i < 25; ++i) {
    auto child = Process::start([&] {
      auto own = Context::create();
      CHILD_OK(own);
      auto self = Listener::create(*own, "");
      CHILD_OK(self);
      auto stream = Stream::connect(*own, self->address(), 10'000);
      CHILD_OK(stream);
      auto accepted = self->accept(10'000);
      CHILD_OK(accepted);
      CHILD_OK(stream->send(text("child"), 5000));
      CHILD_CHECK(receive_text(*accepted) == "child");
      pair.client.close();
      return 0;
    });
    ASSERT_TRUE(child.wait(20'000).clean()) << "round " << i;
  }
  over = true;
  churn.join();
  sender.join();
  receiver.join();
  EXPECT_EQ(r.bytes, sent);
  EXPECT_TRUE(r.end_of_stream) << r.err;
}

}  // namespace
}  // namespace clan
