#include <clan/context.h>
#include <clan/message.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <thread>

#include "clan/detail/clock.h"
#include "engine/context/context_core.h"
#include "support/streams.h"

namespace clan {
namespace {

using namespace test;
using Mode = WaitOptions::Mode;

TEST(Context, RefusesOptionsThatMakeNoSense) {
  for (std::uint32_t bytes : {0u, 512u, 1000u, 3000u, 128u << 20}) {
    ContextOptions options;
    options.ring_bytes = bytes;
    EXPECT_ERR(Context::create(options), EINVAL);
  }
  ContextOptions options;
  options.backlog = 0;
  EXPECT_ERR(Context::create(options), EINVAL);
  options = {};
  options.oob_queue = 0;
  EXPECT_ERR(Context::create(options), EINVAL);
}

TEST(Context, IsANodeOfItsOwn) {
  auto a = must(Context::create());
  auto b = must(Context::create());
  EXPECT_NE(a.node().value, 0u);
  EXPECT_FALSE(a.node() == b.node());
  EXPECT_EQ(a.counters().links, 0u);
}

TEST(Context, ConnectsToItself) {
  for (int round = 0; round < 20; ++round) {
    auto context = must(Context::create(with_mode(Mode::kAdaptive, 4096)));
    const std::string name = unique_name("self");
    auto listener = must(Listener::create(context, name));
    for (int i = 0; i < 3; ++i) {
      auto client = i == 1 ? Stream::connect(context, listener.address(), 5000)
                           : Stream::connect(context, name, 5000);
      ASSERT_OK(client);
      auto server = listener.accept(5000);
      ASSERT_OK(server);
      EXPECT_EQ(client->peer().node, context.node());
      std::thread sender([&] { EXPECT_EQ(send_pattern(*client, 1, 0, 50'000), 50'000u); });
      EXPECT_EQ(receive_pattern(*server, 1, 0, 50'000).bytes, 50'000u);
      sender.join();
      ASSERT_OK(server->send(text("back")));
      EXPECT_EQ(receive_text(*client), "back");
    }
  }
}

TEST(Context, OfOneProcessAreStrangersThatConnectLikeOthers) {
  constexpr int kContexts = 6;
  std::vector<Context> contexts;
  std::vector<Listener> listeners;
  for (int i = 0; i < kContexts; ++i) {
    contexts.push_back(must(Context::create(with_mode(Mode::kAdaptive, 4096))));
    listeners.push_back(must(Listener::create(contexts.back(), "")));
  }
  for (int from = 0; from < kContexts; ++from) {
    for (int to = 0; to < kContexts; ++to) {
      auto client = Stream::connect(contexts[static_cast<std::size_t>(from)],
                                    listeners[static_cast<std::size_t>(to)].address(), 5000);
      ASSERT_OK(client);
      auto server = listeners[static_cast<std::size_t>(to)].accept(5000);
      ASSERT_OK(server);
      EXPECT_EQ(server->peer().node, contexts[static_cast<std::size_t>(from)].node());
      const std::string words = std::to_string(from) + " to " + std::to_string(to);
      ASSERT_OK(client->send(text(words.c_str())));
      EXPECT_EQ(receive_text(*server), words);
    }
  }
}

TEST(Context, AndAnotherThatConnectToEachOtherAtTheSameMomentBothSucceed) {
  for (int round = 0; round < 60; ++round) {
    auto a = must(Context::create(with_mode(Mode::kAdaptive, 1024)));
    auto b = must(Context::create(with_mode(Mode::kAdaptive, 1024)));
    auto at_a = must(Listener::create(a, "")), at_b = must(Listener::create(b, ""));
    std::atomic<int> ready{0};
    auto side = [&](Context& own, Listener& mine, Listener& other) {
      return std::thread([&, round] {
        ++ready;
        while (ready < 2) {
        }
        auto out = Stream::connect(own, other.address(), 10'000);
        ASSERT_OK(out) << "round " << round;
        auto in = mine.accept(10'000);
        ASSERT_OK(in) << "round " << round;
        ASSERT_OK(out->send(text("crossing"), 5000));
        EXPECT_EQ(receive_text(*in), "crossing") << "round " << round;
        ++ready;
        EXPECT_TRUE(eventually([&] { return ready == 4; }));
      });
    };
    auto one = side(a, at_a, at_b), two = side(b, at_b, at_a);
    one.join();
    two.join();
  }
}

TEST(Context, ConnectsToOneServiceFromManyThreadsAtOnce) {
  auto server = must(Context::create(with_mode(Mode::kAdaptive, 1024)));
  auto client = must(Context::create(with_mode(Mode::kAdaptive, 1024)));
  const std::string name = unique_name("crowd");
  auto listener = must(Listener::create(server, name));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 15; ++i) {
        auto stream = Stream::connect(client, name, 10'000);
        ASSERT_OK(stream);
        const std::string word = std::to_string(t * 100 + i);
        ASSERT_OK(stream->send(text(word.c_str()), 5000));
        EXPECT_EQ(receive_text(*stream), word);
      }
    });
  }
  for (int i = 0; i < 60; ++i) {
    auto stream = listener.accept(10'000);
    ASSERT_OK(stream);
    const std::string word = receive_text(*stream);
    ASSERT_OK(stream->send(text(word.c_str()), 5000));
    EXPECT_EQ(receive_text(*stream), "");
  }
  for (auto& t : threads) t.join();
}

TEST(Context, EndedResetsItsPeersAfterTheyHaveReadEverything) {
  StreamPair pair;
  ASSERT_OK(pair.client.send(pattern(10'000, 3), 1000));
  { Context gone = std::move(pair.client_context); }
  EXPECT_TRUE(eventually([&] { return !pair.server.try_send(text("x")).ok(); }));
  Received r = receive_pattern(pair.server, 3, 0, ~std::uint64_t{0});
  EXPECT_EQ(r.bytes, 10'000u);
  EXPECT_EQ(r.err, ECONNRESET);
  EXPECT_ERR(pair.server.send(text("x")), ECONNRESET);
  EXPECT_TRUE(eventually([&] { return pair.server_context.counters().links == 0; }));
  EXPECT_EQ(pair.server_context.counters().connections_reset, 1u);
}

TEST(Context, EndedMakesItsObjectsAnswerEshutdown) {
  StreamPair pair;
  auto queue = must(EventQueue::create(pair.client_context));
  auto listener = must(Listener::create(pair.client_context, unique_name("ends")));
  ASSERT_OK(pair.server.send(text("unread"), 1000));
  Address address = listener.address();
  { Context gone = std::move(pair.client_context); }
  std::byte buffer[8];
  Event events[1];
  EXPECT_ERR(pair.client.send(text("x"), 1000), ESHUTDOWN);
  EXPECT_ERR(pair.client.try_send(text("x")), ESHUTDOWN);
  EXPECT_ERR(pair.client.reserve(1), ESHUTDOWN);
  EXPECT_ERR(pair.client.recv(buffer, 1000), ESHUTDOWN);
  EXPECT_ERR(pair.client.try_recv(buffer), ESHUTDOWN);
  EXPECT_ERR(pair.client.peek(), ESHUTDOWN);
  EXPECT_ERR(pair.client.wait_readable(1000), ESHUTDOWN);
  EXPECT_ERR(pair.client.shutdown_send(1000), ESHUTDOWN);
  EXPECT_ERR(pair.client.register_with(queue, 1), ESHUTDOWN);
  EXPECT_ERR(queue.wait(events, 1000), ESHUTDOWN);
  EXPECT_EQ(queue.poll(events), 0u);
  EXPECT_ERR(listener.accept(1000), ESHUTDOWN);
  EXPECT_FALSE(Stream::connect(pair.server_context, address, 1000).ok());
}

TEST(Context, EndedFreesItsServiceNamesEvenWhileListenersLive) {
  const std::string name = unique_name("left");
  std::optional<Listener> orphan;
  {
    auto context = must(Context::create());
    orphan.emplace(must(Listener::create(context, name)));
  }
  auto other = must(Context::create());
  EXPECT_OK(Listener::create(other, name));
}

TEST(Context, EndedWakesThreadsThatWaitInIt) {
  for (Mode mode : {Mode::kAdaptive, Mode::kSleep}) {
    auto pair = std::make_unique<StreamPair>(with_mode(mode, 1024));
    auto lonely = must(Context::create(with_mode(mode)));
    auto queue = must(EventQueue::create(pair->client_context));
    auto lonely_queue = must(EventQueue::create(lonely));
    auto listener = must(Listener::create(lonely, ""));
    std::atomic<int> woken{0};
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
      std::byte b;
      EXPECT_ERR(pair->client.recv({&b, 1}, -1), ESHUTDOWN);
      ++woken;
    });
    threads.emplace_back([&] {
      auto sent = pair->client.send(pattern(10'000, 1), -1);
      EXPECT_TRUE(!sent.ok() || *sent < 10'000u);
      ++woken;
    });
    threads.emplace_back([&] {
      Event e[1];
      EXPECT_ERR(queue.wait(e, -1), ESHUTDOWN);
      ++woken;
    });
    threads.emplace_back([&] {
      Event e[1];
      EXPECT_ERR(lonely_queue.wait(e, -1), ESHUTDOWN);
      ++woken;
    });
    threads.emplace_back([&] {
      EXPECT_ERR(listener.accept(-1), ESHUTDOWN);
      ++woken;
    });
    ::usleep(30'000);
    EXPECT_EQ(woken, 0);
    { Context a = std::move(pair->client_context), b = std::move(lonely); }
    EXPECT_TRUE(eventually([&] { return woken == 5; })) << woken << " of 5";
    if (woken != 5) std::abort();  // the threads would never end
    for (auto& t : threads) t.join();
  }
}

TEST(Context, CreatedAndDestroyedOverAndOverLeavesNothingBehind) {
  auto round = [] {
    StreamPair pair(with_mode(Mode::kAdaptive, 4096));
    auto queue = must(EventQueue::create(pair.server_context));
    (void)must(queue.fd());
    ASSERT_OK(pair.server.register_with(queue, 1));
    ASSERT_OK(pair.client.send(text("x")));
    EXPECT_EQ(receive_text(pair.server), "x");
  };
  const std::size_t files = files_in_dev_shm();
  for (int i = 0; i < 5; ++i) round();
  const std::size_t descriptors = open_descriptors();
  const std::size_t mappings = mapping_count();
  for (int i = 0; i < 50; ++i) round();
  EXPECT_LE(open_descriptors(), descriptors);
  EXPECT_LE(mapping_count(), mappings + 8);
  EXPECT_LE(files_in_dev_shm(), files);
}

// A thread that waits is woken by the lanes that its event queue knows.
TEST(Context, HasNoMoreLanesThanAnEventQueueListensTo) {
  ContextOptions options;
  for (uid_t uid = 100'000; uid < 100'100; ++uid) options.allow_uids.push_back(uid);
  auto core = must(engine::ContextCore::create(options));
  std::size_t lanes = 1;  // its own user's
  Error why{0, ""};
  for (const uid_t uid : options.allow_uids) lanes += core->lane(uid, &why) != nullptr ? 1 : 0;
  EXPECT_EQ(lanes, 64u);
  EXPECT_EQ(why.err, ENOSPC);
  EXPECT_NE(core->lane(options.allow_uids[0]), nullptr) << "which is there";
  core->shut_down();
}

/// Has a link for longer than the table of links, as a connection that is closed while its context
/// ends; and checks whether that one's NIC is there when it goes itself.
class LinkKeeper final : public engine::OobSink {
 public:
  LinkKeeper(std::shared_ptr<nic::Link> link, nic::Nic& nic, bool* nic_was_there)
      : link_(std::move(link)),
        tables_(const_cast<shm::NicTables*>(nic.image().tables)),
        nic_was_there_(nic_was_there) {}
  ~LinkKeeper() override { *nic_was_there_ = ::msync(tables_, kPageSize, MS_ASYNC) == 0; }
  void on_oob(const std::shared_ptr<nic::Link>&, const OobMessage&) override {}
  void on_link_down(const std::shared_ptr<nic::Link>&) override {}

 private:
  std::shared_ptr<nic::Link> link_;
  shm::NicTables* tables_;
  bool* nic_was_there_;
};

TEST(Context, KeepsItsNicsUntilTheLastLinkIsGone) {
  bool nic_was_there = false;
  {
    auto a = must(engine::ContextCore::create({})), b = must(engine::ContextCore::create({}));
    ASSERT_OK(b->listen_as_node());
    auto link = must(a->link_to_node(b->node(), ::geteuid(), deadline_after_ms(5000)));
    const std::uint32_t endpoint = must(a->add_endpoint({}));
    a->endpoints().keep(
        endpoint, std::make_shared<LinkKeeper>(std::move(link), a->own_lane(), &nic_was_there));
    for (const auto& context : {a, b}) context->shut_down();
  }
  EXPECT_TRUE(nic_was_there);
}

TEST(Context, SaysWhatToDoAboutAServiceThatIsMissingOrTaken) {
  auto context = must(Context::create());
  const std::string name = unique_name("nobodys");
  const auto says = [](const Error& error, const char* words) {
    EXPECT_NE(error.message().find(words), std::string::npos) << error.message();
  };
  for (int i = 0; i < 2; ++i) {
    auto endpoint = must(MessageEndpoint::create(context));
    auto stream = Stream::connect(context, name, 5000);
    auto peer = endpoint.connect(name, 5000);
    EXPECT_ERR(stream, ECONNREFUSED);
    EXPECT_ERR(peer, ECONNREFUSED);
    says(stream.error(), "nobody offers this service: start its server first");
    says(peer.error(), "nobody offers this service: start its server first");
  }
  auto listener = must(Listener::create(context, name));
  auto second = Listener::create(context, name);
  auto endpoint = MessageEndpoint::create(context, name);
  EXPECT_ERR(second, EADDRINUSE);
  EXPECT_ERR(endpoint, EADDRINUSE);
  says(second.error(), "offers this service already");
  says(endpoint.error(), "offers this service already");
  auto client = must(MessageEndpoint::create(context));
  auto mixed = client.connect(name, 5000);
  EXPECT_ERR(mixed, EPROTOTYPE);
  says(mixed.error(), "a stream and a message endpoint do not connect");
  auto lengthy = Listener::create(context, std::string(110, 'x'));
  EXPECT_ERR(lengthy, ENAMETOOLONG);
  says(lengthy.error(), "service name is too long");
  EXPECT_OK(Listener::create(context, std::string(91, 'x')));
}

TEST(Context, OffersAServiceInADirectoryAndTakesItsFileAway) {
  const std::string file = ::testing::TempDir() + unique_name("service");
  auto a = must(Context::create()), b = must(Context::create());
  {
    auto server = must(MessageEndpoint::create(a, file));
    auto client = must(MessageEndpoint::create(b));
    const auto to = must(client.connect(file, 5000));
    const std::byte sent[3] = {};
    ASSERT_OK(client.send(to, sent, 5000));
    std::byte taken[8];
    EXPECT_EQ(must(server.recv(taken, 5000)).size, 3u);
    EXPECT_EQ(::access(file.c_str(), F_OK), 0);
  }
  EXPECT_NE(::access(file.c_str(), F_OK), 0);
}

TEST(Context, LeavesTheFileOfAServiceThatAnotherProcessOffersByNow) {
  const std::string file = ::testing::TempDir() + unique_name("service");
  auto a = must(Context::create()), b = must(Context::create());
  std::optional<MessageEndpoint> first = must(MessageEndpoint::create(a, file));
  ASSERT_EQ(::unlink(file.c_str()), 0);
  auto second = must(MessageEndpoint::create(b, file));
  first.reset();
  EXPECT_OK(must(MessageEndpoint::create(a)).connect(file, 5000));
}

// Meets a peer that dies, and asks for a service that nobody offers.
[[noreturn]] void meet_and_lose_a_peer() {
  const std::string name = unique_name("meet-and-lose");
  Gate listening;
  // Before there are threads: a sanitizer does not let a child of several start its own.
  auto child = Process::start([&] {
    if (!listening.wait()) return 1;
    auto own = must(Context::create());
    auto stream = must(Stream::connect(own, name, 10'000));
    ::pause();
    return 0;
  });
  auto context = must(Context::create());
  auto listener = must(Listener::create(context, name));
  listening.open();
  auto stream = must(listener.accept(10'000));
  (void)child.kill();
  std::byte b;
  EXPECT_ERR(stream.recv({&b, 1}, 10'000), ECONNRESET);
  EXPECT_TRUE(eventually([&] { return context.counters().links == 0; }));
  EXPECT_ERR(Stream::connect(context, "nobodys", 1000), ECONNREFUSED);
  std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
}

TEST(ContextDeathTest, TellsWhomItMeetsAndLosesWhenAsked) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fresh process: the level is read once
  ::setenv("CLAN_LOG", "info", 1);
  EXPECT_EXIT(meet_and_lose_a_peer(), ::testing::ExitedWithCode(0),
              "info: linked with process [0-9]+ of user .*"
              "info: process [0-9]+ died or gave up a connection with us.*"
              "info: no link to service \"nobodys\" of user");
  ::setenv("CLAN_LOG", "warn", 1);
  EXPECT_EXIT(meet_and_lose_a_peer(), ::testing::ExitedWithCode(0), "^$");
  ::unsetenv("CLAN_LOG");
}

TEST(Context, CountsWhatHappens) {
  StreamPair pair(with_mode(Mode::kSleep));
  EXPECT_EQ(pair.client_context.counters().connections_opened, 1u);
  EXPECT_EQ(pair.server_context.counters().connections_opened, 1u);
  EXPECT_EQ(pair.client_context.counters().links, 1u);
  EXPECT_EQ(pair.client_context.counters().apertures, 1u);
  EXPECT_EQ(pair.client_context.counters().tripwires, 2u);
  std::thread late([&] {
    ::usleep(10'000);
    ASSERT_OK(pair.client.send(text("wake up")));
  });
  EXPECT_EQ(receive_text(pair.server), "wake up");
  late.join();
  EXPECT_GE(pair.server_context.counters().sleeps, 1u);
  EXPECT_GE(pair.server_context.counters().wakeups, 1u);
  EXPECT_EQ(pair.server_context.counters().hostile_peers, 0u);
  EXPECT_EQ(pair.server_context.counters().connections_reset, 0u);
}

}  // namespace
}  // namespace clan
