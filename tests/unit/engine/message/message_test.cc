#include <clan/message.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <map>
#include <optional>
#include <thread>

#include "clan/detail/clock.h"
#include "engine/context/context_core.h"
#include "support/plain_link.h"
#include "support/streams.h"

namespace clan {
namespace {

using namespace test;
using Mode = WaitOptions::Mode;

// How large messages travel: copied from the sender's memory, or in fragments.
enum class Way { kOffers, kFragments, kPackets };

std::string name_of(const testing::TestParamInfo<Way>& info) {
  const char* names[] = {"Offers", "Fragments", "Packets"};
  return names[static_cast<int>(info.param)];
}

ContextOptions options_for(Way way, Mode mode = Mode::kAdaptive) {
  ContextOptions options = with_mode(mode);
  options.direct_copy = way == Way::kOffers;
  return options;
}

// Endpoint b knows a; a learns of b with the first message.
struct EndpointPair {
  std::optional<PlainNetwork> network;
  Context context_a, context_b;
  std::optional<MessageEndpoint> a, b;
  PeerIndex to_a = 0;

  explicit EndpointPair(Way way, Mode mode = Mode::kAdaptive, const MessageOptions& options = {})
      : context_a(must(Context::create(options_for(way, mode)))),
        context_b(must(Context::create(options_for(way, mode)))) {
    if (way == Way::kPackets) {
      network.emplace();
      network->join(*context_a.core(), *context_b.core());
    }
    a = must(MessageEndpoint::create(context_a, {}, options));
    b = must(MessageEndpoint::create(context_b, {}, options));
    to_a = must(b->connect(a->address(), 10'000));
  }
};

class Messages : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, Messages,
                         testing::Values(Way::kOffers, Way::kFragments, Way::kPackets), name_of);

TEST_P(Messages, OfAnySizeArriveWhole) {
  EndpointPair p(GetParam());
  const std::size_t sizes[] = {0,      1,       55,      56,      57,        120,
                               4096,   8191,    8192,    8193,    16'368,    16'384,
                               65'536, 100'001, 262'144, 1 << 20, 5'000'003, 16 << 20};
  std::thread sender([&] {
    for (std::size_t n : sizes) ASSERT_OK(p.b->send(p.to_a, pattern(n, n), 30'000));
  });
  std::vector<std::byte> buffer(16 << 20);
  for (std::size_t n : sizes) {
    auto m = p.a->recv(buffer, 30'000);
    ASSERT_OK(m);
    ASSERT_EQ(m->size, n);
    EXPECT_FALSE(m->truncated);
    ASSERT_TRUE(is_pattern({buffer.data(), n}, n, 0)) << n;
  }
  sender.join();
  EXPECT_ERR(p.a->try_recv(buffer), EAGAIN);
}

TEST_P(Messages, KeepTheirOrderWhateverTheirSize) {
  EndpointPair p(GetParam());
  constexpr std::uint64_t kMessages = 400;
  std::thread sender([&] {
    Random random(3);
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      ASSERT_OK(p.b->send(p.to_a, pattern(random.size_up_to(100'000), i), 30'000));
    }
  });
  Random random(3);
  std::vector<std::byte> buffer(100'000);
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    auto m = p.a->recv(buffer, 30'000);
    ASSERT_OK(m);
    ASSERT_EQ(m->size, random.size_up_to(100'000));
    ASSERT_TRUE(is_pattern({buffer.data(), m->size}, i, 0)) << i;
  }
  sender.join();
}

TEST_P(Messages, ArePostedAndCompletedLater) {
  EndpointPair p(GetParam());
  std::vector<std::vector<std::byte>> messages;
  for (std::uint64_t i = 0; i < 20; ++i) {
    messages.push_back(pattern(i % 2 == 0 ? 50'000 + i : 10 + i, i));
  }
  std::size_t immediate = 0, later = 0;
  std::vector<std::byte> buffer(100'000);
  std::uint64_t received = 0;
  auto receive = [&] {
    auto m = p.a->try_recv(buffer);
    if (!m) return;
    ASSERT_EQ(m->size, messages[received].size());
    ASSERT_TRUE(is_pattern({buffer.data(), m->size}, received, 0));
    ++received;
  };
  auto reap = [&] {
    SendCompletion c[4];
    const std::size_t n = p.b->poll_sent(c);
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(c[i].status, 0);
      EXPECT_EQ(c[i].to, p.to_a);
      EXPECT_EQ(c[i].cookie % 2, 0u);
    }
    later += n;
  };
  const std::uint64_t end = monotonic_ns() + 30'000'000'000u;
  for (std::uint64_t i = 0; i < messages.size();) {
    auto posted = p.b->post(p.to_a, messages[i], i);
    if (posted.ok()) {
      if (*posted) ++immediate;
      ++i;
    } else {
      ASSERT_EQ(posted.error().err, EAGAIN);
      receive();
      reap();
      ASSERT_LT(monotonic_ns(), end);
    }
  }
  while (received < messages.size() || immediate + later < messages.size()) {
    receive();
    reap();
    ASSERT_LT(monotonic_ns(), end);
  }
  EXPECT_EQ(immediate, 10u);
}

TEST_P(Messages, AreCutToTheBuffer) {
  EndpointPair p(GetParam());
  for (std::size_t n : {100ul, 50'000ul}) {
    std::thread sender([&] { ASSERT_OK(p.b->send(p.to_a, pattern(n, 1), 30'000)); });
    std::vector<std::byte> buffer(60);
    auto m = p.a->recv(buffer, 30'000);
    sender.join();
    ASSERT_OK(m);
    EXPECT_TRUE(m->truncated);
    EXPECT_EQ(m->size, n);
    EXPECT_TRUE(is_pattern(buffer, 1, 0));
  }
  ASSERT_OK(p.b->send(p.to_a, text("next"), 5000));
  std::vector<std::byte> buffer(60);
  EXPECT_EQ(must(p.a->recv(buffer, 5000)).size, 4u);
}

TEST_P(Messages, AreLookedAtTakenOrDropped) {
  EndpointPair p(GetParam());
  EXPECT_ERR(p.a->peek(), EAGAIN);
  std::vector<std::byte> buffer(100'000);
  EXPECT_ERR(p.a->take(buffer), EINVAL);
  std::thread sender([&] {
    for (std::uint64_t i = 0; i < 6; ++i) {
      ASSERT_OK(p.b->send(p.to_a, pattern(i % 2 == 0 ? 20 : 70'000, i), 30'000));
    }
  });
  for (std::uint64_t i = 0; i < 6; ++i) {
    const std::size_t size = i % 2 == 0 ? 20 : 70'000;
    Result<IncomingMessage> m = Error{};
    ASSERT_TRUE(eventually([&] { return (m = p.a->peek()).ok(); }));
    EXPECT_EQ(m->size, size);
    EXPECT_EQ(p.a->peek()->size, size);  // again the same
    EXPECT_TRUE(is_pattern(m->bytes, i, 0));
    EXPECT_EQ(m->bytes.empty(), GetParam() == Way::kOffers && i % 2 == 1);
    if (i < 3) {
      auto taken = p.a->take(buffer);
      ASSERT_OK(taken);
      EXPECT_TRUE(is_pattern({buffer.data(), size}, i, 0));
    } else {
      p.a->drop();
    }
  }
  sender.join();
  EXPECT_ERR(p.a->try_recv(buffer), EAGAIN);
}

TEST_P(Messages, WithAHeaderArriveAsOneOrShowItBeforeTheyAreCopied) {
  EndpointPair p(GetParam());
  const auto header = pattern(kMaxMessageHeader, 3);
  for (const std::size_t n :
       {std::size_t{0}, std::size_t{10}, std::size_t{8200}, std::size_t{300'000}}) {
    const auto body = pattern(n, 7);
    ASSERT_OK(p.b->post(p.to_a, header, body, n));
    std::vector<std::byte> whole;
    const auto deadline = deadline_after_ms(20'000);
    for (;;) {
      SendCompletion done[4];
      p.b->poll_sent(done);
      auto m = p.a->peek();
      if (!m && monotonic_ns() < deadline) continue;
      ASSERT_OK(m);
      whole.assign(m->offered ? m->header.begin() : m->bytes.begin(),
                   m->offered ? m->header.end() : m->bytes.end());
      if (m->offered) {
        EXPECT_EQ(m->size, n);
        whole.resize(kMaxMessageHeader + n);
        ASSERT_OK(p.a->take(std::span(whole).subspan(kMaxMessageHeader)));
      } else {
        p.a->drop();
      }
      break;
    }
    ASSERT_EQ(whole.size(), kMaxMessageHeader + n);
    EXPECT_TRUE(std::equal(header.begin(), header.end(), whole.begin()));
    EXPECT_TRUE(std::equal(body.begin(), body.end(), whole.begin() + kMaxMessageHeader));
  }
  EXPECT_ERR(p.b->post(p.to_a, pattern(kMaxMessageHeader + 1, 0), {}, 1), EINVAL);
}

TEST_P(Messages, AnswersReachTheSender) {
  EndpointPair p(GetParam());
  std::vector<std::byte> buffer(200'000), answer(200'000);
  std::thread server([&] {
    for (int i = 0; i < 200; ++i) {
      auto m = p.a->recv(buffer, 30'000);
      ASSERT_OK(m);
      ASSERT_OK(p.a->send(m->from, {buffer.data(), m->size}, 30'000));
    }
  });
  Random random(1);
  for (std::uint64_t i = 0; i < 200; ++i) {
    const auto question = pattern(random.size_up_to(150'000), i);
    ASSERT_OK(p.b->send(p.to_a, question, 30'000));
    auto m = p.b->recv(answer, 30'000);
    ASSERT_OK(m);
    ASSERT_EQ(m->from, p.to_a);
    ASSERT_EQ(m->size, question.size());
    ASSERT_TRUE(is_pattern({answer.data(), m->size}, i, 0));
  }
  server.join();
}

TEST_P(Messages, LargeOnesMayGoBothWaysAtOnce) {
  EndpointPair p(GetParam());
  ASSERT_OK(p.b->send(p.to_a, text("hello"), 5000));
  std::vector<std::byte> first(16);
  const PeerIndex to_b = must(p.a->recv(first, 5000)).from;
  auto side = [](MessageEndpoint& e, PeerIndex to, std::uint64_t mine, std::uint64_t theirs) {
    constexpr std::uint64_t kMessages = 40;
    constexpr std::size_t kBytes = 400'000;
    std::vector<std::vector<std::byte>> out;
    for (std::uint64_t i = 0; i < kMessages; ++i) out.push_back(pattern(kBytes + i, mine + i));
    std::vector<std::byte> buffer(kBytes + kMessages);
    std::uint64_t posted = 0, sent = 0, received = 0;
    const std::uint64_t end = monotonic_ns() + 40'000'000'000u;
    while ((sent < kMessages || received < kMessages) && monotonic_ns() < end) {
      if (posted < kMessages) {
        auto r = e.post(to, out[posted], posted);
        ASSERT_TRUE(r.ok() || r.error().err == EAGAIN) << r.error().message();
        if (r.ok()) {
          ++posted;
          if (*r) ++sent;
        }
      }
      SendCompletion c[8];
      sent += e.poll_sent(c);
      auto m = e.try_recv(buffer);
      if (m.ok()) {
        ASSERT_EQ(m->size, kBytes + received);
        ASSERT_TRUE(is_pattern({buffer.data(), m->size}, theirs + received, 0));
        ++received;
      } else {
        ASSERT_EQ(m.error().err, EAGAIN);
        std::this_thread::yield();  // the other side may need this processor
      }
    }
    EXPECT_EQ(sent, kMessages);
    EXPECT_EQ(received, kMessages);
  };
  std::thread other([&] { side(*p.b, p.to_a, 1000, 2000); });
  side(*p.a, to_b, 2000, 1000);
  other.join();
}

TEST_P(Messages, TimedOutSendsAreTakenBack) {
  EndpointPair p(GetParam());
  auto data = pattern(1 << 20, 1);  // more than a ring
  EXPECT_ERR(p.b->send(p.to_a, data, 50), ETIMEDOUT);
  std::memset(data.data(), 0, data.size());
  std::vector<std::byte> buffer(2 << 20);
  EXPECT_ERR(p.a->recv(buffer, 100), ETIMEDOUT);  // nothing of it arrives
  if (GetParam() != Way::kOffers) return;         // the connection has ended with the fragments
  ASSERT_OK(p.b->send(p.to_a, text("after"), 5000));
  EXPECT_EQ(must(p.a->recv(buffer, 5000)).size, 5u);
}

TEST_P(Messages, SmallOnesWaitForRoom) {
  EndpointPair p(GetParam());
  Status s;
  int sent = 0;
  while ((s = p.b->send(p.to_a, pattern(1000, 1), 30)) && sent < 10'000) ++sent;
  EXPECT_ERR(s, ETIMEDOUT);
  EXPECT_ERR(p.b->post(p.to_a, pattern(1000, 1), 0), EAGAIN);
  EXPECT_ERR(p.b->reserve(p.to_a, 1000), EAGAIN);
  std::vector<std::byte> buffer(1000);
  for (int i = 0; i < sent; ++i) ASSERT_OK(p.a->recv(buffer, 5000));
  EXPECT_ERR(p.a->recv(buffer, 20), ETIMEDOUT);
  ASSERT_OK(p.b->send(p.to_a, text("room again"), 5000));
  ASSERT_OK(p.a->recv(buffer, 5000));
}

TEST_P(Messages, AreBuiltInPlace) {
  EndpointPair p(GetParam());
  EXPECT_ERR(p.b->reserve(p.to_a, p.b->max_eager(p.to_a) + 1), EMSGSIZE);
  auto room = p.b->reserve(p.to_a, 500);
  ASSERT_OK(room);
  fill_pattern(*room, 4, 0);
  p.b->commit(p.to_a, 300);
  std::vector<std::byte> buffer(500);
  EXPECT_EQ(must(p.a->recv(buffer, 5000)).size, 300u);
  EXPECT_TRUE(is_pattern({buffer.data(), 300}, 4, 0));
}

TEST_P(Messages, TellAnEventQueue) {
  EndpointPair p(GetParam());
  auto events = must(EventQueue::create(p.context_a));
  ASSERT_OK(p.a->register_with(events, 5));
  EXPECT_ERR(p.a->register_with(events, 6), EBUSY);
  std::vector<std::byte> buffer(100'000);
  Event e[4];
  std::thread sender([&] {
    for (int i = 0; i < 30; ++i) {
      if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      ASSERT_OK(p.b->send(p.to_a, pattern(i % 3 == 0 ? 60'000 : 100, 1), 30'000));
    }
  });
  for (int received = 0; received < 30;) {
    if (p.a->try_recv(buffer).ok()) {
      ++received;
      continue;
    }
    auto n = events.wait(e, 20'000);
    ASSERT_OK(n);
    EXPECT_EQ(e[0].tag, 5u);
    EXPECT_EQ(e[0].kind, EventKind::kMessage);
  }
  sender.join();
}

// Registered before it has peers: each new one's first message must be found when the event is
// taken.
TEST_P(Messages, TellAnEventQueueOfPeersThatComeLater) {
  EndpointPair p(GetParam());
  auto hub = must(MessageEndpoint::create(p.context_a));
  auto events = must(EventQueue::create(p.context_a));
  ASSERT_OK(hub.register_with(events, 5));
  constexpr int kPeers = 20, kEach = 20;
  std::thread sender([&] {
    for (int peer = 0; peer < kPeers; ++peer) {
      auto e = must(MessageEndpoint::create(p.context_b));
      const PeerIndex to = must(e.connect(hub.address(), 10'000));
      for (int i = 0; i < kEach; ++i) {
        ASSERT_OK(e.send(to, text("x"), 10'000));
        std::byte answer[1];
        ASSERT_OK(e.recv(answer, 10'000));
      }
    }
  });
  Event e[4];
  std::byte buffer[8];
  bool lost = false;
  for (int received = 0; received < kPeers * kEach && !lost;) {
    if (auto m = hub.try_recv(buffer); m.ok()) {
      ASSERT_OK(hub.send(m->from, text("y"), 10'000));
      ++received;
      continue;
    }
    auto n = events.wait(e, 5'000);
    lost = !n.ok();
    EXPECT_OK(n);
  }
  sender.join();
}

TEST_P(Messages, TellAnEventQueueOfTheEnd) {
  EndpointPair p(GetParam());
  ASSERT_OK(p.b->send(p.to_a, text("hello"), 5000));
  std::byte buffer[8];
  const PeerIndex b = must(p.a->recv(buffer, 5000)).from;
  auto events = must(EventQueue::create(p.context_a));
  ASSERT_OK(p.a->register_with(events, 5));
  Event e[4];
  while (events.poll(e) > 0) {
  }
  EXPECT_ERR(p.a->try_recv(buffer), EAGAIN);
  p.b.reset();
  PeerIndex gone = 99;
  const std::uint64_t end = monotonic_ns() + 10'000'000'000u;
  while (!p.a->take_departed(&gone)) {
    ASSERT_LT(monotonic_ns(), end);
    EXPECT_OK(events.wait(e, 5'000));
    (void)p.a->try_recv(buffer);
  }
  EXPECT_EQ(gone, b);
}

TEST_P(Messages, OfTwoPartsAreSentWholeOrNotAtAll) {
  EndpointPair p(GetParam());
  const std::size_t most = p.b->max_eager(p.to_a);
  std::vector<std::byte> buffer(most);
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{24}, most / 2, most}) {
    for (const std::size_t front : {std::size_t{0}, n / 3, n}) {
      const auto bytes = pattern(n, n);
      const auto deadline = deadline_after_ms(20'000);  // for what has been read to be known here
      Status sent;
      do {
        sent =
            p.b->try_send(p.to_a, std::span(bytes).first(front), std::span(bytes).subspan(front));
      } while (!sent && sent.error().err == EAGAIN && monotonic_ns() < deadline);
      ASSERT_OK(sent);
      auto m = p.a->recv(buffer, 30'000);
      ASSERT_OK(m);
      ASSERT_EQ(m->size, n);
      ASSERT_TRUE(is_pattern({buffer.data(), n}, n, 0));
    }
  }
  const auto bytes = pattern(most, 1);
  EXPECT_ERR(p.b->try_send(p.to_a, std::span(bytes).first(1), bytes), EMSGSIZE);
  EXPECT_ERR(p.b->try_send(p.to_a + 1, bytes, {}), EINVAL);
  int sent = 0;
  Status last;
  while ((last = p.b->try_send(p.to_a, bytes, {})).ok()) ASSERT_LT(++sent, 100);
  EXPECT_ERR(last, EAGAIN);
  for (int i = 0; i < sent; ++i) {
    auto m = p.a->recv(buffer, 30'000);
    ASSERT_OK(m);
    ASSERT_TRUE(m->size == most && is_pattern({buffer.data(), most}, 1, 0)) << i;
  }
  EXPECT_ERR(p.a->try_recv(buffer), EAGAIN);
}

TEST_P(Messages, EndAQuietThatLastsWhileThereIsNothingToDo) {
  EndpointPair p(GetParam());
  std::vector<std::byte> buffer(3 << 20);
  const auto until = [](MessageEndpoint& e, bool quiet) {
    const auto deadline = deadline_after_ms(20'000);
    while (e.quiet() != quiet && monotonic_ns() < deadline) (void)e.peek();
    return e.quiet() == quiet;
  };
  // The first message of a peer that has just come, and of one that is known.
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(until(*p.b, true));
    ASSERT_OK(p.b->send(p.to_a, pattern(8, 1), 10'000));
    const auto deadline = deadline_after_ms(20'000);
    while (p.a->quiet() && monotonic_ns() < deadline) std::this_thread::yield();
    EXPECT_FALSE(p.a->quiet());
    ASSERT_OK(p.a->recv(buffer, 10'000));
    EXPECT_TRUE(until(*p.a, true));
  }
  // A large one on its way, and its completion.
  const auto large = pattern(3 << 20, 2);
  ASSERT_OK(p.b->post(p.to_a, large, 7));
  EXPECT_FALSE(p.b->quiet());
  std::thread receiver([&] { ASSERT_OK(p.a->recv(buffer, 30'000)); });
  SendCompletion c;
  while (p.b->poll_sent({&c, 1}) == 0) EXPECT_FALSE(p.b->quiet());
  receiver.join();
  EXPECT_TRUE(until(*p.b, true));
  // A departure, until it has been reported.
  p.b.reset();
  // Something of its end may come first, and be done with when it has been read.
  PeerIndex gone;
  bool told = false;
  for (const auto deadline = deadline_after_ms(20'000); !told && monotonic_ns() < deadline;) {
    EXPECT_TRUE(until(*p.a, false));
    EXPECT_ERR(p.a->peek(), EAGAIN);
    told = p.a->take_departed(&gone);
  }
  EXPECT_TRUE(told);
  EXPECT_TRUE(until(*p.a, true));
}

TEST_P(Messages, EventQueueHearsOfCompletedSends) {
  EndpointPair p(GetParam());
  auto events = must(EventQueue::create(p.context_b));
  ASSERT_OK(p.b->register_with(events, 5));
  std::thread receiver([&] {
    std::vector<std::byte> buffer(3 << 20);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ASSERT_OK(p.a->recv(buffer, 30'000));
  });
  const auto data = pattern(3 << 20, 1);
  ASSERT_OK(p.b->post(p.to_a, data, 77));
  SendCompletion c;
  while (p.b->poll_sent({&c, 1}) == 0) {
    Event e[4];
    auto n = events.wait(e, 20'000);
    if (!n) {
      ADD_FAILURE() << n.error().message();
      break;
    }
  }
  EXPECT_EQ(c.cookie, 77u);
  EXPECT_EQ(c.status, 0);
  receiver.join();
}

TEST(MessageEndpoint, SetsOfferedMessagesAsideAndCopiesThemInAnyOrderAndInParts) {
  EndpointPair p(Way::kOffers);
  constexpr std::size_t kBytes = 100'000;
  std::vector<std::vector<std::byte>> messages;
  for (std::size_t i = 0; i < 3; ++i) {
    messages.push_back(pattern(kBytes, i));
    const std::byte header[1] = {std::byte(i)};
    auto posted = p.b->post(p.to_a, header, messages.back(), i);
    ASSERT_OK(posted);
    EXPECT_FALSE(*posted);
  }
  ASSERT_OK(p.b->send(p.to_a, pattern(5, 9), 10'000));
  std::vector<SetAside> aside;
  std::vector<std::byte> buffer(kBytes);
  EXPECT_ERR(p.a->set_aside(), EINVAL);
  const auto deadline = deadline_after_ms(20'000);
  while (aside.size() < 3) {
    auto m = p.a->peek();
    if (!m && monotonic_ns() < deadline) continue;
    ASSERT_OK(m);
    ASSERT_TRUE(m->offered);
    ASSERT_EQ(m->header.size(), 1u);
    EXPECT_EQ(m->header[0], std::byte(aside.size()));
    aside.push_back(must(p.a->set_aside()));
  }
  // What came after them is not held up.
  auto small = p.a->recv(buffer, 10'000);
  ASSERT_OK(small);
  EXPECT_EQ(small->size, 5u);
  SendCompletion done[4];
  EXPECT_EQ(p.b->poll_sent(done), 0u);
  for (const std::size_t i : {2u, 0u}) {
    ASSERT_OK(p.a->copy(aside[i], 0, std::span(buffer).first(1000)));
    ASSERT_OK(p.a->copy(aside[i], 1000, std::span(buffer).subspan(1000)));
    EXPECT_ERR(p.a->copy(aside[i], kBytes - 1, std::span(buffer).first(2)), ERANGE);
    EXPECT_TRUE(std::equal(buffer.begin(), buffer.end(), messages[i].begin()));
    p.a->finish(aside[i]);
    ASSERT_EQ(p.b->poll_sent(done), 1u);
    EXPECT_EQ(done[0].cookie, i);
    EXPECT_EQ(done[0].status, 0);
  }
  p.a->finish(aside[1], false);
  ASSERT_EQ(p.b->poll_sent(done), 1u);
  EXPECT_EQ(done[0].status, EFAULT);
  EXPECT_ERR(p.a->copy(aside[1], 0, std::span(buffer).first(1)), ESTALE);
  p.b.reset();
  EXPECT_FALSE(p.a->copy(aside[0], 0, std::span(buffer).first(1)).ok());
}

TEST(MessageEndpoint, LetsBothSidesWorkOnAMessageThatHasNotBeenDropped) {
  EndpointPair p(Way::kOffers);
  ASSERT_OK(p.b->send(p.to_a, text("first"), 10'000));
  std::byte buffer[64];
  ASSERT_OK(p.a->recv(buffer, 10'000));  // from now on it polls
  ASSERT_TRUE(p.b->shares_messages(p.to_a));
  auto room = p.b->reserve(p.to_a, 24);
  ASSERT_OK(room);
  auto* sent = reinterpret_cast<std::atomic<std::uint64_t>*>(room->data() + 8);
  sent->store(5);
  p.b->commit(p.to_a, 24);
  const std::uint64_t mark = p.b->sent_mark(p.to_a);
  ASSERT_OK(p.b->send(p.to_a, text("behind it"), 10'000));

  const auto deadline = deadline_after_ms(20'000);
  auto m = p.a->peek();
  while (!m && monotonic_ns() < deadline) m = p.a->peek();
  ASSERT_OK(m);
  ASSERT_EQ(m->bytes.size(), 24u);
  const PeerIndex from = m->from;
  EXPECT_EQ(p.a->shared_word(4), nullptr);
  EXPECT_EQ(p.a->shared_word(24), nullptr);
  auto* seen = p.a->shared_word(8);
  ASSERT_NE(seen, nullptr);
  EXPECT_EQ(seen->exchange(6), 5u);
  EXPECT_EQ(sent->load(), 6u);

  // Held, it keeps back what is behind it, and the end of its sender, but nobody else.
  p.a->hold();
  EXPECT_ERR(p.a->peek(), EAGAIN);
  auto other = must(MessageEndpoint::create(p.context_b));
  const PeerIndex to_a = must(other.connect(p.a->address(), 10'000));
  ASSERT_OK(other.send(to_a, text("other"), 10'000));
  auto third = p.a->recv(buffer, 10'000);
  ASSERT_OK(third);
  EXPECT_NE(third->from, from);
  EXPECT_FALSE(p.a->has_gone(from));
  EXPECT_FALSE(p.b->has_left(p.to_a, mark));
  sent->store(7);
  EXPECT_EQ(seen->load(), 7u);
  p.b.reset();
  while (!p.a->has_gone(from) && monotonic_ns() < deadline) (void)p.a->peek();
  EXPECT_TRUE(p.a->has_gone(from));
  PeerIndex departed;
  EXPECT_FALSE(p.a->take_departed(&departed));
  p.a->resume(from);
  auto again = p.a->recv(buffer, 10'000);
  ASSERT_OK(again);
  EXPECT_EQ(again->size, 24u);
  auto behind = p.a->recv(buffer, 10'000);
  ASSERT_OK(behind);
  EXPECT_EQ(behind->size, 9u);
  while (!p.a->take_departed(&departed) && monotonic_ns() < deadline) (void)p.a->peek();
  EXPECT_EQ(departed, from);
}

TEST(MessageEndpoint, ShowsAMessageOfFragmentsAgainThatWasHeld) {
  EndpointPair p(Way::kFragments);
  const std::vector<std::byte> large(100'000, std::byte{5});
  auto posted = p.b->post(p.to_a, large, 1);
  ASSERT_OK(posted);
  const auto deadline = deadline_after_ms(20'000);
  SendCompletion done;
  auto m = p.a->peek();
  for (; !m && monotonic_ns() < deadline; m = p.a->peek())
    (void)p.b->poll_sent(std::span(&done, 1));
  ASSERT_OK(m);
  ASSERT_EQ(m->bytes.size(), large.size());
  const PeerIndex from = m->from;
  ASSERT_OK(p.b->send(p.to_a, text("behind it"), 10'000));
  p.a->hold();
  EXPECT_ERR(p.a->peek(), EAGAIN);
  p.a->resume(from);
  std::vector<std::byte> buffer(large.size());
  auto first = p.a->recv(buffer, 10'000);
  ASSERT_OK(first);
  EXPECT_EQ(first->size, large.size());
  EXPECT_EQ(buffer, large);
  auto second = p.a->recv(buffer, 10'000);
  ASSERT_OK(second);
  EXPECT_EQ(second->size, 9u);
}

TEST(MessageEndpoint, IsFoundByNameAndAddress) {
  auto context_a = must(Context::create());
  auto context_b = must(Context::create());
  const std::string name = unique_name("messages");
  auto a = must(MessageEndpoint::create(context_a, name));
  EXPECT_ERR(MessageEndpoint::create(context_b, name), EADDRINUSE);
  auto b = must(MessageEndpoint::create(context_b));
  EXPECT_ERR(b.connect(unique_name("nobody"), 1000), ECONNREFUSED);
  const PeerIndex to = must(b.connect(name, 5000));
  EXPECT_EQ(must(b.peer_address(to)).node, context_a.node());
  ASSERT_OK(b.send(to, text("hi"), 5000));
  std::byte buffer[8];
  auto m = must(a.recv(buffer, 5000));
  const Address back = must(a.peer_address(m.from));
  EXPECT_EQ(back.node, context_b.node());
  EXPECT_EQ(back.endpoint, b.address().endpoint);
  EXPECT_ERR(a.send(99, text("x")), EINVAL);
  EXPECT_ERR(a.peer_address(99), EINVAL);
}

const std::span<const std::byte> kHello[] = {text("hello")};

// An endpoint in a process of its own, which can be stopped.
struct Elsewhere {
  std::string name = unique_name("elsewhere");
  Gate ready;
  Process process;
  Elsewhere() {
    process = Process::start([this] {
      auto context = must(Context::create());
      auto endpoint = must(MessageEndpoint::create(context, name));
      ready.open();
      std::byte buffer[64];
      for (;;) {
        auto m = endpoint.recv(buffer, 20);
        // it may have left
        if (m.ok()) (void)endpoint.send(m->from, std::span(buffer).first(m->size), 5000);
        PeerIndex gone;
        while (endpoint.take_departed(&gone)) endpoint.disconnect(gone);
      }
      return 0;
    });
    EXPECT_TRUE(ready.wait());
  }
};

TEST(MessageEndpoint, ConnectsWithoutWaitingForAPeerThatStandsStill) {
  Elsewhere peer;
  auto context = must(Context::create());
  auto endpoint = must(MessageEndpoint::create(context));
  EXPECT_ERR(endpoint.begin_connect(unique_name("nobody")), ECONNREFUSED);
  peer.process.stop();
  const std::uint64_t begun = monotonic_ns();
  const PeerIndex to = must(endpoint.begin_connect(peer.name, kHello));
  EXPECT_ERR(endpoint.post(to, text("early"), 1), EAGAIN);
  EXPECT_ERR(endpoint.reserve(to, 8), EAGAIN);
  EXPECT_ERR(endpoint.await(to, 1), EAGAIN);
  EXPECT_ERR(endpoint.peer_address(to), ENOTCONN);
  EXPECT_ERR(endpoint.send(to, text("early"), 1), ETIMEDOUT);
  EXPECT_EQ(endpoint.max_eager(to), 0u);
  PeerIndex gone;
  EXPECT_FALSE(endpoint.take_departed(&gone));
  EXPECT_LT(monotonic_ns() - begun, 2'000'000'000u);
  peer.process.resume();
  ASSERT_OK(endpoint.await(to, 10'000));
  ASSERT_OK(endpoint.send(to, text("then this"), 5000));
  EXPECT_TRUE(endpoint.peer_address(to).ok());
  // What was given to begin_connect() came first, and nothing of what was refused.
  std::byte buffer[64];
  for (const char* expected : {"hello", "then this"}) {
    auto m = must(endpoint.recv(buffer, 10'000));
    EXPECT_EQ(m.from, to);
    EXPECT_EQ(std::string(reinterpret_cast<char*>(buffer), m.size), expected);
  }
}

TEST(MessageEndpoint, TellsWhyAPeerDidNotAccept) {
  auto context = must(Context::create());
  auto endpoint = must(MessageEndpoint::create(context));
  for (const bool dies : {true, false}) {
    for (const bool linked : {true, false}) {
      Elsewhere peer;
      std::optional<MessageEndpoint> first;
      if (linked) {  // then only the connection is missing
        first = must(MessageEndpoint::create(context));
        must(first->connect(peer.name, 5000));
      }
      peer.process.stop();
      const PeerIndex to = must(endpoint.begin_connect(peer.name, kHello, 300));
      EXPECT_ERR(endpoint.reserve(to, 8), EAGAIN);
      if (dies) peer.process.kill();
      PeerIndex gone = 99;
      int reason = 0;
      std::byte buffer[64];
      EXPECT_TRUE(eventually([&] {
        (void)endpoint.try_recv(buffer);
        return endpoint.take_departed(&gone, &reason);
      }));
      EXPECT_EQ(gone, to);
      if (dies) {
        EXPECT_TRUE(reason == ECONNREFUSED || reason == ECONNRESET) << reason;
      } else {
        EXPECT_EQ(reason, ETIMEDOUT);
      }
      EXPECT_ERR(endpoint.reserve(to, 8), reason);
      endpoint.disconnect(to);
      EXPECT_ERR(endpoint.reserve(to, 8), EINVAL);
    }
  }
}

TEST(MessageEndpoint, SleepersHearWhatBecameOfAnAttempt) {
  Elsewhere peer;
  auto context = must(Context::create(with_mode(Mode::kSleep)));
  auto endpoint = must(MessageEndpoint::create(context));
  peer.process.stop();
  must(endpoint.begin_connect(peer.name, kHello, 10'000));
  std::thread wakes([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    peer.process.resume();
  });
  // The peer answers the greeting, which can go only when the sleeper hears that it may.
  std::byte buffer[64];
  EXPECT_OK(endpoint.recv(buffer, 10'000));
  wakes.join();
  peer.process.stop();
  auto other = must(MessageEndpoint::create(context));
  must(other.begin_connect(peer.name, {}, 200));
  EXPECT_ERR(other.recv(buffer, 10'000), ETIMEDOUT);
  EXPECT_ERR(other.recv(buffer, 20), ETIMEDOUT);
  PeerIndex gone;
  EXPECT_TRUE(other.take_departed(&gone));
}

TEST(MessageEndpoint, AttemptsThatNobodyWantsAnyMoreLeaveNothing) {
  auto context = must(Context::create());
  Elsewhere peer;
  {
    auto warm = must(MessageEndpoint::create(context));
    must(warm.connect(peer.name, 5000));
  }
  EXPECT_TRUE(eventually([&] { return context.counters().apertures == 0; }));
  const std::size_t before = open_descriptors();
  peer.process.stop();
  for (int i = 0; i < 50; ++i) {
    auto endpoint = must(MessageEndpoint::create(context));
    const PeerIndex to = must(endpoint.begin_connect(peer.name, kHello));
    if (i % 2 == 0) endpoint.disconnect(to);
  }
  peer.process.resume();
  EXPECT_TRUE(eventually([&] { return context.counters().apertures == 0; }));
  EXPECT_TRUE(eventually([&] { return open_descriptors() == before; }))
      << open_descriptors() << " " << before;
  // The same holds for those whose process has yet to be linked with.
  peer.process.stop();
  {
    auto fresh = must(Context::create());
    for (int i = 0; i < 50; ++i) {
      auto endpoint = must(MessageEndpoint::create(fresh));
      const PeerIndex to = must(endpoint.begin_connect(peer.name, kHello));
      if (i % 2 == 0) endpoint.disconnect(to);
    }
  }
  peer.process.resume();
  EXPECT_TRUE(eventually([&] { return open_descriptors() == before; }))
      << open_descriptors() << " " << before;
  // And those that outlive their context.
  peer.process.stop();
  for (const bool linked : {false, true}) {
    std::optional<Context> mortal = must(Context::create());
    auto endpoint = must(MessageEndpoint::create(*mortal));
    if (linked) {
      peer.process.resume();
      must(endpoint.connect(peer.name, 5000));
      peer.process.stop();
    }
    const PeerIndex to = must(endpoint.begin_connect(peer.name, kHello));
    mortal.reset();
    EXPECT_ERR(endpoint.reserve(to, 8), ESHUTDOWN);
    EXPECT_ERR(endpoint.await(to, 10), ESHUTDOWN);
  }
  peer.process.resume();
  EXPECT_TRUE(eventually([&] { return open_descriptors() == before; }))
      << open_descriptors() << " " << before;
  auto endpoint = must(MessageEndpoint::create(context));
  const PeerIndex to = must(endpoint.connect(peer.name, 5000));
  EXPECT_OK(endpoint.send(to, text("still there"), 5000));
  std::byte buffer[64];
  EXPECT_OK(endpoint.recv(buffer, 5000));
}

TEST(MessageEndpoint, BoundsTheMessagesItAccepts) {
  for (Way way : {Way::kOffers, Way::kFragments}) {
    MessageOptions options;
    options.max_message = 100'000;
    EndpointPair p(way, Mode::kAdaptive, options);
    EXPECT_ERR(p.b->send(p.to_a, pattern(100'001, 1), 5000), EMSGSIZE);
    // One that promises nothing of the sort.
    auto other = must(MessageEndpoint::create(p.context_b));
    const PeerIndex to = must(other.connect(p.a->address(), 5000));
    std::vector<std::byte> buffer(200'000);
    std::thread sender([&] {
      auto s = other.send(to, pattern(150'000, 1), 10'000);
      EXPECT_FALSE(s.ok() && way == Way::kOffers);
    });
    const std::uint64_t end = monotonic_ns() + 3'000'000'000u;
    while (p.context_a.counters().hostile_peers == 0 && monotonic_ns() < end) {
      auto m = p.a->recv(buffer, 20);
      ASSERT_FALSE(m.ok());
      EXPECT_TRUE(m.error().err == ETIMEDOUT || m.error().err == EPROTO) << m.error().message();
    }
    EXPECT_EQ(p.context_a.counters().hostile_peers, 1u);
    p.a.reset();
    sender.join();
  }
}

TEST(MessageEndpoint, ColdPeersWakeASleepingReceiver) {
  EndpointPair p(Way::kOffers, Mode::kSleep);
  std::vector<std::byte> buffer(100);
  for (int i = 0; i < 50; ++i) {
    std::thread sender([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(i % 5));
      ASSERT_OK(p.b->send(p.to_a, text("wake up"), 5000));
    });
    ASSERT_OK(p.a->recv(buffer, 10'000));
    sender.join();
  }
  EXPECT_GT(p.context_a.counters().sleeps, 0u);
}

// While a peer is hot its ring is polled, and it need not say that it has made room.
TEST(MessageEndpoint, DoesNotSleepWhenAHotPeerHasMadeRoom) {
  EndpointPair p(Way::kOffers);
  std::vector<std::byte> buffer(4096);
  ASSERT_OK(p.b->send(p.to_a, text("x"), 5000));
  const PeerIndex to_b = must(p.a->recv(buffer, 5000)).from;
  while (p.a->try_send(to_b, buffer, {}).ok()) continue;
  while (!p.a->arm_fd()) EXPECT_ERR(p.a->peek(), EAGAIN);
  EXPECT_ERR(p.a->try_send(to_b, buffer, {}), EAGAIN);
  ASSERT_OK(p.b->send(p.to_a, text("y"), 5000));
  ASSERT_OK(p.a->recv(buffer, 5000));  // hot again
  EXPECT_ERR(p.a->try_send(to_b, buffer, {}), EAGAIN);
  while (p.b->try_recv(buffer).ok()) continue;
  EXPECT_FALSE(p.a->arm_fd());
  EXPECT_OK(p.a->try_send(to_b, buffer, {}));
}

// As the tables are where a child of this process has written over them.
TEST(MessageEndpoint, FindsAfterItsSleepWhatNobodyWokeItFor) {
  EndpointPair p(Way::kOffers, Mode::kSleep);
  std::byte buffer[16];
  ASSERT_OK(p.b->send(p.to_a, pattern(3, 0), 5000));
  ASSERT_OK(p.a->recv(buffer, 5000));
  EXPECT_ERR(p.a->sleep(1), ETIMEDOUT);
  auto& apertures =
      const_cast<shm::NicTables*>(p.context_a.core()->own_lane().image().tables)->apertures;
  for (int i = 0; i < 64; ++i) apertures[i].first_tripwire = shm::kNoTripwire;

  for (const bool by_descriptor : {true, false}) {
    pollfd fd{must(p.a->fd()), POLLIN, 0};
    if (by_descriptor) {
      while (!p.a->arm_fd()) (void)p.a->peek();
    }
    std::thread sender([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ASSERT_OK(p.b->send(p.to_a, pattern(3, 0), 5000));
    });
    if (by_descriptor) {
      EXPECT_EQ(poll(&fd, 1, 300), 0);
      sender.join();
      EXPECT_ERR(p.a->peek(), EAGAIN);
      EXPECT_TRUE(p.a->spin());
    } else {
      (void)p.a->sleep(300);
      sender.join();
    }
    ASSERT_OK(p.a->peek());
    p.a->drop();
    EXPECT_ERR(p.a->peek(), EAGAIN);
  }
}

TEST(MessageEndpoint, ServesAHundredPeersInOrder) {
  const std::string name = unique_name("hub");
  constexpr std::uint32_t kPeers = 100;
  constexpr std::uint32_t kEach = 60;
  struct Small {
    std::uint32_t peer, number;
  };
  auto child = Process::start([&] {
    ContextOptions options;
    options.ring_bytes = 4096;
    auto context = must(Context::create(options));
    std::vector<MessageEndpoint> endpoints;
    std::vector<PeerIndex> to;
    for (std::uint32_t i = 0; i < kPeers; ++i) {
      endpoints.push_back(must(MessageEndpoint::create(context)));
      Result<PeerIndex> connected = Error{};
      CHILD_CHECK(eventually([&] { return (connected = endpoints[i].connect(name, 5000)).ok(); }));
      to.push_back(*connected);
    }
    Random random(1);
    std::vector<std::uint32_t> next(kPeers);
    for (std::uint32_t left = kPeers * kEach; left > 0; --left) {
      std::uint32_t i = static_cast<std::uint32_t>(random.below(kPeers));
      while (next[i] == kEach) i = (i + 1) % kPeers;
      const Small m{i, next[i]++};
      auto s = endpoints[i].send(to[i], std::as_bytes(std::span(&m, 1)), 20'000);
      CHILD_OK(s);
    }
    for (std::uint32_t i = 0; i < kPeers; ++i) {
      std::byte buffer[8];
      auto m = endpoints[i].recv(buffer, 20'000);
      CHILD_OK(m);
    }
    return 0;
  });
  ContextOptions options;
  options.ring_bytes = 4096;
  auto context = must(Context::create(options));
  auto hub = must(MessageEndpoint::create(context, name));
  std::map<std::uint32_t, PeerIndex> from;
  std::vector<std::uint32_t> next(kPeers);
  for (std::uint32_t n = 0; n < kPeers * kEach; ++n) {
    Small m;
    auto got = hub.recv(std::as_writable_bytes(std::span(&m, 1)), 30'000);
    ASSERT_OK(got);
    ASSERT_EQ(got->size, sizeof m);
    ASSERT_LT(m.peer, kPeers);
    ASSERT_EQ(m.number, next[m.peer]++);
    auto [it, fresh] = from.emplace(m.peer, got->from);
    ASSERT_EQ(it->second, got->from);
  }
  for (auto [peer, index] : from) ASSERT_OK(hub.send(index, text("done"), 10'000));
  EXPECT_TRUE(child.wait().clean());
  // All of them depart, and are named.
  std::size_t departed = 0;
  std::byte buffer[8];
  EXPECT_TRUE(eventually([&] {
    (void)hub.try_recv(buffer);
    PeerIndex gone;
    while (hub.take_departed(&gone)) ++departed;
    return departed == kPeers;
  }));
  EXPECT_EQ(departed, kPeers);
}

TEST(MessageEndpoint, PeersDeathFailsWhatItWasOffered) {
  for (Way way : {Way::kOffers, Way::kFragments}) {
    const std::string name = unique_name("mortal");
    Gate ready;
    auto child = Process::start([&] {
      auto context = must(Context::create(options_for(way)));
      auto endpoint = must(MessageEndpoint::create(context, name));
      ready.open();
      ::pause();
      return 0;
    });
    auto context = must(Context::create(options_for(way)));
    auto endpoint = must(MessageEndpoint::create(context));
    ASSERT_TRUE(ready.wait());
    const PeerIndex to = must(endpoint.connect(name, 5000));
    const auto data = pattern(3 << 20, 1);
    ASSERT_OK(endpoint.post(to, data, 1));
    ASSERT_OK(endpoint.post(to, data, 2));
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      child.send_signal(9);
    });
    EXPECT_ERR(endpoint.send(to, data, 20'000), ECONNRESET);
    killer.join();
    std::vector<std::uint64_t> failed;
    EXPECT_TRUE(eventually([&] {
      SendCompletion c[4];
      const std::size_t n = endpoint.poll_sent(c);
      for (std::size_t i = 0; i < n; ++i) {
        EXPECT_EQ(c[i].status, ECONNRESET);
        failed.push_back(c[i].cookie);
      }
      return failed.size() >= 2;
    }));
    std::sort(failed.begin(), failed.end());
    EXPECT_EQ(failed, (std::vector<std::uint64_t>{1, 2}));
    EXPECT_ERR(endpoint.send(to, text("x"), 1000), ECONNRESET);
    PeerIndex gone = 99;
    std::byte buffer[8];
    EXPECT_TRUE(eventually([&] {
      (void)endpoint.try_recv(buffer);
      return endpoint.take_departed(&gone);
    }));
    EXPECT_EQ(gone, to);
  }
}

TEST(MessageEndpoint, WhatADeadPeerHadSentCanBeReceived) {
  const std::string name = unique_name("legacy");
  Gate ready, sent;
  auto child = Process::start([&] {
    auto context = must(Context::create());
    auto endpoint = must(MessageEndpoint::create(context));
    CHILD_CHECK(ready.wait());
    auto to = endpoint.connect(name, 5000);
    CHILD_OK(to);
    for (std::uint64_t i = 0; i < 5; ++i) {
      auto s = endpoint.send(*to, pattern(100, i), 5000);
      CHILD_OK(s);
    }
    auto large = endpoint.post(*to, pattern(100'000, 9), 0);
    CHILD_OK(large);
    sent.open();
    ::pause();
    return 0;
  });
  auto context = must(Context::create());
  auto endpoint = must(MessageEndpoint::create(context, name));
  ready.open();
  ASSERT_TRUE(sent.wait());
  child.kill();
  std::vector<std::byte> buffer(100'000);
  for (std::uint64_t i = 0; i < 5; ++i) {
    auto m = endpoint.recv(buffer, 5000);
    ASSERT_OK(m);
    ASSERT_TRUE(is_pattern({buffer.data(), 100}, i, 0));
  }
  EXPECT_FALSE(endpoint.recv(buffer, 500).ok());  // the large one died with its memory
}

TEST(MessageEndpoint, RecvTellsOfThePeerThatDied) {
  using Case = std::pair<Mode, std::int64_t>;
  for (auto [mode, timeout_ms] :
       {Case{Mode::kSleep, -1}, Case{Mode::kPoll, -1}, Case{Mode::kAdaptive, 20'000}}) {
    const std::string name = unique_name("server");
    Gate ready;
    auto child = Process::start([&] {
      auto context = must(Context::create());
      auto endpoint = must(MessageEndpoint::create(context, name));
      ready.open();
      std::byte buffer[8];
      for (;;) {
        auto m = endpoint.recv(buffer, 20'000);
        CHILD_OK(m);
        CHILD_OK(endpoint.send(m->from, {buffer, m->size}, 20'000));
      }
    });
    auto context = must(Context::create(with_mode(mode)));
    auto endpoint = must(MessageEndpoint::create(context));
    ASSERT_TRUE(ready.wait());
    const PeerIndex to = must(endpoint.connect(name, 5000));
    std::byte buffer[8];
    ASSERT_OK(endpoint.send(to, text("x"), 5000));
    ASSERT_OK(endpoint.recv(buffer, 5000));
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      child.send_signal(9);
    });
    EXPECT_ERR(endpoint.recv(buffer, timeout_ms), ECONNRESET);
    killer.join();
    EXPECT_ERR(endpoint.recv(buffer, 50), ETIMEDOUT);  // once per peer
    PeerIndex gone = 99;
    EXPECT_TRUE(endpoint.take_departed(&gone)) << "recv() leaves the name to take_departed()";
    EXPECT_EQ(gone, to);
    EXPECT_FALSE(endpoint.take_departed(&gone));
    // The endpoint itself is as good as before: a new peer reaches it.
    auto other = must(MessageEndpoint::create(context));
    const PeerIndex back = must(other.connect(endpoint.address(), 5000));
    ASSERT_OK(other.send(back, text("y"), 5000));
    EXPECT_OK(endpoint.recv(buffer, 5000));
  }
}

TEST(MessageEndpoint, RecvTellsADepartureAfterTheMessagesAndOnlyToThoseWhoChoseThePeer) {
  auto context_a = must(Context::create());
  auto context_b = must(Context::create());
  auto a = must(MessageEndpoint::create(context_a, unique_name("a")));
  auto client = must(MessageEndpoint::create(context_a));
  std::optional<MessageEndpoint> b = must(MessageEndpoint::create(context_b));
  const PeerIndex to_a = must(b->connect(a.address(), 5000));
  const PeerIndex to_b = must(client.connect(b->address(), 5000));
  std::byte buffer[8];
  ASSERT_OK(client.send(to_b, text("hello"), 5000));
  const PeerIndex to_client = must(b->recv(buffer, 5000)).from;
  ASSERT_OK(b->send(to_client, text("1"), 5000));
  ASSERT_OK(b->send(to_client, text("2"), 5000));
  ASSERT_OK(b->send(to_a, text("3"), 5000));
  b.reset();  // in order
  EXPECT_OK(client.recv(buffer, 5000));
  EXPECT_OK(client.recv(buffer, 5000));
  EXPECT_ERR(client.recv(buffer, 5000), EPIPE);
  EXPECT_ERR(client.send(to_b, text("x"), 1000), EPIPE);
  EXPECT_OK(a.recv(buffer, 5000));
  EXPECT_ERR(a.recv(buffer, 100), ETIMEDOUT);  // its client has finished: it waits for the next
  PeerIndex gone;
  EXPECT_TRUE(a.take_departed(&gone));
  EXPECT_TRUE(client.take_departed(&gone));
}

TEST(MessageEndpoint, RecvIsSilentAboutADepartureThatIsKnown) {
  auto context_a = must(Context::create());
  auto context_b = must(Context::create());
  std::optional<MessageEndpoint> first = must(MessageEndpoint::create(context_b));
  std::optional<MessageEndpoint> second = must(MessageEndpoint::create(context_b));
  auto a = must(MessageEndpoint::create(context_a));
  must(a.connect(first->address(), 5000));
  const PeerIndex to_second = must(a.connect(second->address(), 5000));
  std::byte buffer[8];
  first.reset();
  PeerIndex gone;
  EXPECT_TRUE(eventually([&] {
    (void)a.try_recv(buffer);
    return a.take_departed(&gone);
  }));
  EXPECT_ERR(a.recv(buffer, 50), ETIMEDOUT);
  second.reset();
  EXPECT_TRUE(eventually([&] { return a.send(to_second, text("x"), 1000).error().err == EPIPE; }));
  EXPECT_ERR(a.try_recv(buffer), EAGAIN);  // finds out
  a.disconnect(to_second);
  EXPECT_ERR(a.recv(buffer, 50), ETIMEDOUT);
}

TEST(MessageEndpoint, DisconnectsOnePeerAndKeepsTheOthers) {
  EndpointPair p(Way::kOffers);
  auto third = must(MessageEndpoint::create(p.context_b));
  const PeerIndex to = must(third.connect(p.a->address(), 5000));
  std::byte buffer[64];
  ASSERT_OK(p.b->send(p.to_a, text("b"), 5000));
  const PeerIndex b = must(p.a->recv(buffer, 5000)).from;
  ASSERT_OK(third.send(to, text("third"), 5000));
  const PeerIndex c = must(p.a->recv(buffer, 5000)).from;
  p.a->disconnect(b);
  EXPECT_ERR(p.a->send(b, text("x")), EINVAL);
  EXPECT_TRUE(eventually([&] { return !p.b->send(p.to_a, text("x"), 100).ok(); }));
  ASSERT_OK(p.a->send(c, text("still here"), 5000));
  ASSERT_OK(third.recv(buffer, 5000));
}

// Waiting without taking: spin(), then sleep() or the descriptor, then peek().
TEST_P(Messages, CanBeWaitedForWithoutBeingTaken) {
  EndpointPair p(GetParam(), Mode::kSleep);
  EXPECT_TRUE(eventually([&] {  // an end without a reason is allowed
    EXPECT_ERR(p.a->peek(), EAGAIN);
    const auto slept = p.a->sleep(20);
    return !slept.ok() && slept.error().err == ETIMEDOUT;
  }));
  EXPECT_FALSE(p.a->spin());
  for (int i = 0; i < 20; ++i) {
    std::thread sender([&] { ASSERT_OK(p.b->send(p.to_a, text("four"), 5000)); });
    auto m = p.a->peek();
    for (; !m.ok(); m = p.a->peek()) {
      if (!p.a->spin()) (void)p.a->sleep(10'000);
    }
    sender.join();
    EXPECT_EQ(m->size, 4u);
    ASSERT_OK(p.a->sleep(10'000));  // there is something, though it has been checked
    p.a->drop();
  }
}

TEST_P(Messages, MakeTheDescriptorReadableOnceItIsArmed) {
  EndpointPair p(GetParam());
  const int fd = must(p.a->fd());
  for (int i = 0; i < 20; ++i) {
    while (!p.a->arm_fd()) EXPECT_ERR(p.a->peek(), EAGAIN);
    pollfd ready{fd, POLLIN, 0};
    EXPECT_EQ(poll(&ready, 1, 0), 0);
    ASSERT_OK(p.b->send(p.to_a, text("x"), 5000));
    EXPECT_EQ(poll(&ready, 1, 10'000), 1);
    ASSERT_TRUE(eventually([&] { return p.a->peek().ok(); }));
    EXPECT_FALSE(p.a->arm_fd());  // while it has not been taken
    p.a->ring_fd();
    EXPECT_EQ(poll(&ready, 1, 0), 1);
    p.a->drop();
  }
  while (!p.a->arm_fd()) EXPECT_ERR(p.a->peek(), EAGAIN);
  p.b.reset();
  pollfd ready{fd, POLLIN, 0};
  EXPECT_EQ(poll(&ready, 1, 10'000), 1);
  EXPECT_TRUE(eventually([&] {
    PeerIndex gone;
    (void)p.a->peek();
    return p.a->take_departed(&gone);
  }));
}

// One that has too little left of its NIC: what such a peer sends would lie there unnoticed.
TEST(MessageEvents, APeerOfWhichTheQueueCannotHearIsNotKept) {
  auto context_a = must(Context::create()), context_b = must(Context::create());
  auto a = must(MessageEndpoint::create(context_a)), b = must(MessageEndpoint::create(context_b));
  auto events = must(EventQueue::create(context_a));
  ASSERT_OK(a.register_with(events, 5));
  nic::Nic& nic = context_a.core()->own_lane();
  constexpr std::uint32_t kOfAConnection = 3, kOfAnAperture = 4096;
  const std::uint32_t most = shm::kMaxTripwires - kOfAConnection - nic.live_tripwires();
  std::byte memory[8];
  RdmaCookie cookie;
  for (std::uint32_t i = 0; i < most; ++i) {
    if (i % kOfAnAperture == 0)
      cookie = must(nic.export_aperture({memory, sizeof memory, Rights::kWrite, nullptr}));
    (void)must(nic.add_tripwire({cookie.aperture, 0, sizeof memory}));
  }
  (void)must(b.connect(a.address(), 10'000));
  std::byte byte{};
  Result<MessageInfo> heard = Error{ETIMEDOUT, "nothing yet"};
  for (int i = 0; i < 500 && !heard.ok() && heard.error().err == ETIMEDOUT; ++i) {
    EXPECT_ERR(a.peek(), EAGAIN);
    heard = b.recv({&byte, 1}, 10);
  }
  EXPECT_ERR(heard, EPIPE);
}

}  // namespace
}  // namespace clan
