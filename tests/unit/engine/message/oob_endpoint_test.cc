#include <clan/endpoint.h>
#include <gtest/gtest.h>

#include <thread>

#include "clan/detail/clock.h"
#include "engine/context/context_core.h"
#include "support/plain_link.h"
#include "support/streams.h"

namespace clan {
namespace {

using namespace test;

std::string words(const OobArrival& m) {
  return {reinterpret_cast<const char*>(m.payload.data()), m.length};
}

TEST(OobEndpoint, CarriesMessagesAndTheAddressForTheAnswer) {
  auto a = must(Context::create());
  auto b = must(Context::create());
  auto ea = must(OobEndpoint::create(a));
  auto eb = must(OobEndpoint::create(b));
  EXPECT_ERR(ea.try_recv(), EAGAIN);
  ASSERT_OK(eb.send(ea.address(), 7, text("hello")));
  auto m = ea.recv(5000);
  ASSERT_OK(m);
  EXPECT_EQ(m->type, 7u);
  EXPECT_EQ(words(*m), "hello");
  EXPECT_EQ(m->from.node, b.node());
  EXPECT_EQ(m->from.endpoint, eb.address().endpoint);
  ASSERT_OK(ea.send(m->from, 8, {}));
  auto answer = eb.recv(5000);
  ASSERT_OK(answer);
  EXPECT_EQ(answer->type, 8u);
  EXPECT_EQ(answer->length, 0u);
  EXPECT_EQ(answer->from.node, a.node());
}

TEST(OobEndpoint, IsFoundByName) {
  auto a = must(Context::create());
  auto b = must(Context::create());
  const std::string name = unique_name("oob");
  auto ea = must(OobEndpoint::create(a, name));
  EXPECT_ERR(OobEndpoint::create(b, name), EADDRINUSE);
  auto eb = must(OobEndpoint::create(b));
  EXPECT_ERR(eb.look_up(unique_name("nobody"), 1000), ECONNREFUSED);
  auto address = eb.look_up(name, 5000);
  ASSERT_OK(address);
  EXPECT_EQ(address->node, a.node());
  EXPECT_EQ(address->endpoint, ea.address().endpoint);
  ASSERT_OK(eb.send(*address, 1, text("by name")));
  EXPECT_EQ(words(must(ea.recv(5000))), "by name");
}

TEST(OobEndpoint, RefusesWhatIsNotAUsersMessage) {
  auto a = must(Context::create());
  auto b = must(Context::create());
  auto ea = must(OobEndpoint::create(a));
  auto eb = must(OobEndpoint::create(b));
  EXPECT_ERR(eb.send(ea.address(), kOobInternal | 1, text("x")), EINVAL);
  EXPECT_ERR(eb.send(ea.address(), 1, pattern(kOobPayload + 1, 1)), EMSGSIZE);
  Address nowhere = ea.address();
  nowhere.node.value ^= 1;
  EXPECT_ERR(eb.send(nowhere, 1, text("x"), 1000), ECONNREFUSED);
  ASSERT_OK(eb.send(ea.address(), 1, pattern(kOobPayload, 5)));
  auto m = ea.recv(5000);
  ASSERT_OK(m);
  EXPECT_TRUE(is_pattern(m->bytes(), 5, 0));
  EXPECT_EQ(m->length, kOobPayload);
}

TEST(OobEndpoint, IgnoresInternalTypesOfAPeer) {
  auto a = must(Context::create());
  auto b = must(Context::create());
  auto ea = must(OobEndpoint::create(a));
  auto eb = must(OobEndpoint::create(b));
  ASSERT_OK(eb.send(ea.address(), 1, text("before")));
  auto link = must(b.core()->link_to_node(a.node(), ea.address().uid, kNoDeadline));
  OobMessage message;
  message.to = ea.address().endpoint;
  for (std::uint32_t type : {1u, 2u, 3u, 4u, 0x7fffffffu}) {
    message.type = kOobInternal | type;
    ASSERT_OK(link->send_oob(message));
  }
  message.type = 2;
  message.length = 0xffffffff;  // input: bounded by the receiver
  ASSERT_OK(link->send_oob(message));
  EXPECT_EQ(words(must(ea.recv(5000))), "before");
  auto m = ea.recv(5000);
  ASSERT_OK(m);
  EXPECT_EQ(m->type, 2u);
  EXPECT_EQ(m->length, kOobPayload);
  EXPECT_ERR(ea.recv(50), ETIMEDOUT);
}

TEST(OobEndpoint, DiscardsAndCountsWhatItsRingHasNoRoomFor) {
  ContextOptions options;
  options.oob_queue = 5;
  auto a = must(Context::create(options));
  auto b = must(Context::create());
  auto ea = must(OobEndpoint::create(a));
  auto eb = must(OobEndpoint::create(b));
  for (std::uint32_t i = 0; i < 12; ++i) ASSERT_OK(eb.send(ea.address(), i, text("x")));
  ASSERT_TRUE(eventually([&] { return a.counters().oob_discarded == 7; }));
  for (std::uint32_t i = 0; i < 5; ++i) EXPECT_EQ(must(ea.try_recv()).type, i);
  EXPECT_ERR(ea.try_recv(), EAGAIN);
  ASSERT_OK(eb.send(ea.address(), 99, text("x")));
  EXPECT_EQ(must(ea.recv(5000)).type, 99u);
}

TEST(OobEndpoint, CountsMessagesForNobody) {
  auto a = must(Context::create());
  auto b = must(Context::create());
  auto eb = must(OobEndpoint::create(b));
  Address gone;
  {
    auto ea = must(OobEndpoint::create(a));
    gone = ea.address();
  }
  ASSERT_OK(eb.send(gone, 1, text("x"), 1000));
  EXPECT_TRUE(eventually([&] { return a.counters().oob_discarded == 1; }));
}

TEST(OobEndpoint, KeepsTheOrderOfEachOfManySenders) {
  ContextOptions options;
  options.oob_queue = 4096;
  auto a = must(Context::create(options));
  auto ea = must(OobEndpoint::create(a));
  constexpr std::uint32_t kSenders = 4, kMessages = 500;
  std::vector<std::thread> senders;
  for (std::uint32_t s = 0; s < kSenders; ++s) {
    senders.emplace_back([&, s] {
      auto context = must(Context::create());
      auto endpoint = must(OobEndpoint::create(context));
      for (std::uint32_t i = 0; i < kMessages; ++i) {
        Status sent;
        do {
          sent = endpoint.send(ea.address(), s << 16 | i, {});
          if (!sent) std::this_thread::yield();
        } while (!sent && sent.error().err == ENOBUFS);
        ASSERT_OK(sent);
      }
      // The peer reads what it has been sent before the link ends.
      ASSERT_TRUE(endpoint.recv(20'000).ok());
    });
  }
  std::vector<std::uint32_t> next(kSenders);
  std::vector<Address> from(kSenders);
  for (std::uint32_t i = 0; i < kSenders * kMessages; ++i) {
    auto m = ea.recv(20'000);
    ASSERT_OK(m);
    const std::uint32_t s = m->type >> 16;
    ASSERT_LT(s, kSenders);
    ASSERT_EQ(m->type & 0xffff, next[s]++);
    from[s] = m->from;
  }
  for (const Address& to : from) ASSERT_OK(ea.send(to, 1, {}));
  for (auto& t : senders) t.join();
  EXPECT_EQ(a.counters().oob_discarded, 0u);
}

TEST(OobEndpoint, PostsAnEvent) {
  auto a = must(Context::create());
  auto b = must(Context::create());
  auto ea = must(OobEndpoint::create(a));
  auto eb = must(OobEndpoint::create(b));
  ASSERT_OK(eb.send(ea.address(), 1, {}));
  ASSERT_TRUE(eventually([&] { return a.counters().links == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  auto queue = must(EventQueue::create(a));
  ASSERT_OK(ea.register_with(queue, 42));
  Event e[2];
  ASSERT_OK(queue.wait(e, 5000));  // for what was there before
  ASSERT_OK(ea.try_recv());
  ASSERT_OK(eb.send(ea.address(), 2, {}));
  ASSERT_OK(queue.wait(e, 5000));
  EXPECT_EQ(e[0].tag, 42u);
  EXPECT_EQ(e[0].kind, EventKind::kOob);
  ASSERT_OK(ea.try_recv());
}

TEST(OobEndpoint, WakesASleepingReceiverOfAnotherProcess) {
  const std::string name = unique_name("oob");
  auto child = Process::start([&] {
    auto context = must(Context::create(with_mode(WaitOptions::Mode::kSleep)));
    auto endpoint = must(OobEndpoint::create(context, name));
    for (int i = 0; i < 20; ++i) {
      auto m = endpoint.recv(20'000);
      CHILD_OK(m);
      auto s = endpoint.send(m->from, m->type + 1, m->bytes());
      CHILD_OK(s);
    }
    auto last = endpoint.recv(20'000);
    CHILD_OK(last);
    return 0;
  });
  auto context = must(Context::create());
  auto endpoint = must(OobEndpoint::create(context));
  Result<Address> to = Error{};
  ASSERT_TRUE(eventually([&] {
    to = endpoint.look_up(name, 1000);
    return to.ok();
  }));
  for (std::uint32_t i = 0; i < 20; ++i) {
    if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ASSERT_OK(endpoint.send(*to, i * 2, text("ping")));
    auto m = endpoint.recv(10'000);
    ASSERT_OK(m);
    EXPECT_EQ(m->type, i * 2 + 1);
  }
  ASSERT_OK(endpoint.send(*to, 0, {}));
  EXPECT_TRUE(child.wait().clean());
  EXPECT_TRUE(eventually([&] {
    auto s = endpoint.send(*to, 1, {}, 1000);
    return !s && (s.error().err == ECONNREFUSED || s.error().err == ECONNRESET);
  }));
}

TEST(OobEndpoint, EndsItsReceiverWithTheContext) {
  std::optional<Context> a = must(Context::create(with_mode(WaitOptions::Mode::kSleep)));
  auto endpoint = must(OobEndpoint::create(*a));
  std::thread ender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    a.reset();
  });
  EXPECT_ERR(endpoint.recv(10'000), ESHUTDOWN);
  ender.join();
  EXPECT_ERR(endpoint.send(endpoint.address(), 1, {}), ESHUTDOWN);
}

TEST(OobEndpoint, WorksOverALinkOfPackets) {
  PlainNetwork network;
  auto a = must(Context::create());
  auto b = must(Context::create());
  network.join(*a.core(), *b.core());
  auto ea = must(OobEndpoint::create(a));
  auto eb = must(OobEndpoint::create(b));
  for (std::uint32_t i = 0; i < 50; ++i) {
    ASSERT_OK(eb.send(ea.address(), i, text("packet")));
    EXPECT_EQ(must(ea.recv(5000)).type, i);
  }
}

}  // namespace
}  // namespace clan
