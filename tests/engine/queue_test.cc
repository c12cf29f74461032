#include <clan/queue.h>
#include <gtest/gtest.h>

#include <thread>

#include "clan/clock.h"
#include "shm/ring.h"
#include "support/plain_link.h"
#include "support/streams.h"

namespace clan {
namespace {

using namespace test;
using Mode = WaitOptions::Mode;

// One queue between two contexts of this process; over a link that maps memory, or one that does
// not.
struct QueuePair {
  std::unique_ptr<PlainNetwork> network;
  Context sender_context, receiver_context;
  std::optional<QueueReceiver> in;
  std::optional<QueueSender> out;

  explicit QueuePair(std::size_t bytes, bool mapped = true, Mode mode = Mode::kAdaptive,
                     const PlainOptions& network_options = {})
      : network(mapped ? nullptr : std::make_unique<PlainNetwork>(network_options)),
        sender_context(must(Context::create(with_mode(mode)))),
        receiver_context(must(Context::create(with_mode(mode)))) {
    if (network) network->join(*sender_context.core(), *receiver_context.core());
    in = must(QueueReceiver::create(receiver_context, bytes));
    out = must(QueueSender::create(sender_context));
    EXPECT_OK(out->attach(in->cookie()));
    EXPECT_OK(in->attach(out->cookie()));
  }
};

class Queue : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Links, Queue, testing::Values(true, false),
                         [](const auto& i) { return i.param ? "Mapped" : "Packets"; });

TEST_P(Queue, CarriesRecordsOfAnySizeInOrder) {
  QueuePair q(16 * 1024, GetParam());
  constexpr int kRecords = 4000;
  std::thread sender([&] {
    Random random(5);
    for (int i = 0; i < kRecords; ++i) {
      const std::size_t n = random.size_up_to(q.out->max_record() + 1) - 1;
      ASSERT_OK(q.out->send(pattern(n, static_cast<std::uint64_t>(i)), 20'000));
    }
  });
  Random random(5);
  std::vector<std::byte> buffer(q.out->max_record());
  for (int i = 0; i < kRecords; ++i) {
    auto n = q.in->receive(buffer, 20'000);
    ASSERT_OK(n);
    ASSERT_EQ(*n, random.size_up_to(q.out->max_record() + 1) - 1) << i;
    ASSERT_TRUE(is_pattern({buffer.data(), *n}, static_cast<std::uint64_t>(i), 0)) << i;
  }
  sender.join();
  EXPECT_ERR(q.in->try_receive(buffer), EAGAIN);
}

TEST_P(Queue, CarriesBytes) {
  for (Mode mode : {Mode::kAdaptive, Mode::kSleep}) {
    QueuePair q(8 * 1024, GetParam(), mode);
    constexpr std::uint64_t kBytes = 2'000'000;
    std::thread sender([&] {
      Random random(3);
      for (std::uint64_t at = 0; at < kBytes;) {
        const std::size_t n = std::min<std::uint64_t>(random.size_up_to(20'000), kBytes - at);
        auto sent = q.out->write(pattern(n, 9, at), 20'000);
        ASSERT_OK(sent);
        ASSERT_EQ(*sent, n);
        at += n;
      }
    });
    Random random(4);
    std::vector<std::byte> buffer(20'000);
    for (std::uint64_t at = 0; at < kBytes;) {
      auto n = q.in->read({buffer.data(), random.size_up_to(buffer.size())}, 20'000);
      ASSERT_OK(n);
      ASSERT_TRUE(is_pattern({buffer.data(), *n}, 9, at));
      at += *n;
    }
    sender.join();
  }
}

TEST_P(Queue, SaysHowMuchFits) {
  QueuePair q(1024, GetParam());
  EXPECT_EQ(q.out->max_record(), 256u - 8u);
  std::vector<std::byte> big(q.out->max_record() + 1);
  EXPECT_ERR(q.out->try_send(big), EMSGSIZE);
  EXPECT_ERR(q.out->reserve(big.size()), EMSGSIZE);
  EXPECT_ERR(q.out->wait(big.size()), EMSGSIZE);
  int sent = 0;
  Status s;
  while ((s = q.out->try_send(text("record")))) ++sent;
  EXPECT_ERR(s, EAGAIN);
  EXPECT_EQ(sent, 15);  // 16 lines, one for the terminator
  EXPECT_ERR(q.out->wait(6, 20), ETIMEDOUT);
  EXPECT_ERR(q.out->send(text("record"), 20), ETIMEDOUT);
  std::byte buffer[64];
  int received = 0;
  while (received < sent) {
    ASSERT_OK(q.in->receive(buffer, 5000));
    ++received;
  }
  EXPECT_ERR(q.in->receive(buffer, 20), ETIMEDOUT);
  EXPECT_OK(q.out->wait(6, 5000));
}

TEST_P(Queue, ShowsTheFrontRecordInPlace) {
  QueuePair q(4096, GetParam());
  ASSERT_OK(q.out->try_send(text("first")));
  ASSERT_OK(q.out->try_send(text("second")));
  ASSERT_OK(q.in->wait(5000));
  for (int i = 0; i < 2; ++i) {
    auto front = q.in->peek();
    ASSERT_OK(front);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(front->data()), front->size()), "first");
  }
  std::byte small[3];
  EXPECT_ERR(q.in->try_receive(small), EMSGSIZE);
  ASSERT_OK(q.in->try_read(small));
  auto rest = q.in->peek();
  ASSERT_OK(rest);
  EXPECT_EQ(rest->size(), 2u);
  q.in->consume();
  std::byte buffer[16];
  auto n = q.in->receive(buffer, 5000);
  ASSERT_OK(n);
  EXPECT_EQ(*n, 6u);
}

TEST_P(Queue, BuildsRecordsInPlace) {
  QueuePair q(4096, GetParam());
  for (int i = 0; i < 500; ++i) {
    auto room = q.out->reserve(700);
    while (!room) {
      std::byte buffer[700];
      if (!q.in->try_receive(buffer)) std::this_thread::yield();  // room is on its way
      room = q.out->reserve(700);
    }
    fill_pattern(room->first(static_cast<std::size_t>(i) % 701), 1, 0);
    ASSERT_OK(q.out->commit(static_cast<std::size_t>(i) % 701));
  }
  EXPECT_ERR(q.out->commit(1), EINVAL);
}

TEST_P(Queue, WakesSleepersOnBothSides) {
  QueuePair q(1024, GetParam(), Mode::kSleep);
  std::byte buffer[256];
  std::thread receiver([&] {
    for (int i = 0; i < 200; ++i) ASSERT_OK(q.in->receive(buffer, 20'000));
  });
  for (int i = 0; i < 200; ++i) {
    if (i % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_OK(q.out->send(pattern(200, 1), 20'000));
  }
  receiver.join();
}

TEST_P(Queue, TellsAnEventQueueOfRecordsRoomAndTheEnd) {
  QueuePair q(1024, GetParam());
  auto events_in = must(EventQueue::create(q.receiver_context));
  auto events_out = must(EventQueue::create(q.sender_context));
  ASSERT_OK(q.in->register_with(events_in, 1));
  ASSERT_OK(q.out->register_with(events_out, 2));
  Event e[4];
  std::byte buffer[256];
  ASSERT_OK(events_in.wait(e, 5000));  // the one at registration
  ASSERT_OK(events_out.wait(e, 5000));
  EXPECT_EQ(e[0].tag, 2u);
  EXPECT_ERR(events_in.wait(e, 20), ETIMEDOUT);
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK(q.out->send(text("x"), 5000));
    auto n = events_in.wait(e, 5000);
    ASSERT_OK(n);
    EXPECT_EQ(e[0].tag, 1u);
    EXPECT_EQ(e[0].kind, EventKind::kTripwire);
    ASSERT_OK(q.in->receive(buffer, 5000));
    EXPECT_ERR(q.in->try_receive(buffer), EAGAIN);  // tells the sender that all has been read
    ASSERT_OK(events_out.wait(e, 5000));
  }
  if (q.network) q.network->settle();
  while (events_in.poll(e) > 0) {
  }
  q.out.reset();
  ASSERT_OK(events_in.wait(e, 5000));
}

TEST_P(Queue, EndsWithEitherSide) {
  {
    QueuePair q(1024, GetParam(), Mode::kSleep);
    ASSERT_OK(q.out->try_send(text("last words")));
    if (q.network) q.network->settle();
    q.out.reset();
    if (q.network) q.network->settle();
    std::byte buffer[64];
    auto n = q.in->receive(buffer, 5000);
    ASSERT_OK(n);
    EXPECT_EQ(*n, 10u);
    if (GetParam()) EXPECT_ERR(q.in->receive(buffer, 5000), ESTALE);
  }
  {
    QueuePair q(1024, GetParam(), Mode::kSleep);
    std::thread ender([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      q.in.reset();
    });
    Status s;
    for (int i = 0; i < 1000 && s; ++i) s = q.out->send(text("into the void"), 100);
    ender.join();
    if (GetParam()) EXPECT_ERR(s, ESTALE);
    EXPECT_FALSE(s.ok());
  }
}

TEST(QueueEnd, WakesASleepingReceiver) {
  QueuePair q(1024, true, Mode::kSleep);
  std::thread ender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    q.out.reset();
  });
  std::byte buffer[64];
  const std::uint64_t start = monotonic_ns();
  EXPECT_ERR(q.in->receive(buffer, 10'000), ESTALE);
  EXPECT_LT(monotonic_ns() - start, 5'000'000'000u);  // and not the ten seconds of the call
  ender.join();
}

TEST(QueueSetUp, RefusesWhatMakesNoSense) {
  auto a = must(Context::create());
  auto b = must(Context::create());
  for (std::size_t bytes :
       {std::size_t{0}, std::size_t{512}, std::size_t{5000}, std::size_t{2} << 30}) {
    EXPECT_ERR(QueueReceiver::create(a, bytes), EINVAL);
  }
  auto out = must(QueueSender::create(b));
  EXPECT_ERR(out.try_send(text("x")), ENOTCONN);
  EXPECT_ERR(out.wait(1, 1), ENOTCONN);
  EXPECT_EQ(out.max_record(), 0u);
  auto memory = must(Memory::allocate(8192));
  auto odd = must(Aperture::export_memory(a, memory, 0, 5000, Rights::kWrite));
  EXPECT_ERR(out.attach(odd.cookie()), EPROTO);
  auto other = must(Memory::allocate(4096));
  auto read_only = must(Aperture::export_memory(a, other, 0, 4096, Rights::kRead));
  EXPECT_ERR(out.attach(read_only.cookie()), EACCES);
  auto in = must(QueueReceiver::create(a, 1024));
  RdmaCookie forged = in.cookie();
  forged.key ^= 1;
  EXPECT_ERR(out.attach(forged), EACCES);
  ASSERT_OK(out.attach(in.cookie()));
  EXPECT_ERR(out.attach(in.cookie()), EISCONN);
  std::byte buffer[8];
  ASSERT_OK(out.try_send(text("early")));
  ASSERT_OK(in.try_receive(buffer));  // works without the credit cookie
}

// The peer writes what it likes into the ring, through the aperture it has.
TEST(QueueHostile, RingContentsEndTheQueueAndNothingElse) {
  using shm::RingHead;
  for (std::uint64_t word : {~std::uint64_t{0}, std::uint64_t{1},
                             RingHead::make(0xffffffff, 1, 0).word, RingHead::make(5000, 1, 0).word,
                             RingHead::make(8, 77, 0).word, RingHead::make(0, 0xff, 0).word}) {
    QueuePair q(4096);
    auto remote = must(RemoteAperture::import(q.sender_context, q.in->cookie()));
    ASSERT_OK(remote.publish(0, word));
    std::byte buffer[64];
    EXPECT_ERR(q.in->receive(buffer, 1000), EPROTO);
    EXPECT_ERR(q.in->try_receive(buffer), EPROTO);
    EXPECT_ERR(q.in->try_read(buffer), EPROTO);
    EXPECT_EQ(q.receiver_context.counters().hostile_peers, 1u);
  }
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    QueuePair q(1024);
    auto remote = must(RemoteAperture::import(q.sender_context, q.in->cookie()));
    for (int i = 0; i < 40; ++i) {
      const std::uint64_t valid = RingHead::make(static_cast<std::uint32_t>(random.below(300)),
                                                 random.below(4) == 0 ? 0xff : 1, 0)
                                      .word;
      ASSERT_OK(
          remote.publish(random.below(128) * 8, random.below(3) == 0 ? random.next() : valid));
      std::byte buffer[256];
      (void)q.in->try_receive(buffer);
    }
  }
}

TEST(QueueHostile, CreditEndsTheQueueAndNothingElse) {
  for (std::uint64_t word : {~std::uint64_t{0}, std::uint64_t{17}, std::uint64_t{1} << 63}) {
    QueuePair q(1024);
    auto remote = must(RemoteAperture::import(q.receiver_context, q.out->cookie()));
    ASSERT_OK(remote.publish(0, word));
    Status s;
    for (int i = 0; i < 100 && s; ++i) s = q.out->send(text("x"), 100);
    EXPECT_ERR(s, EPROTO);
    EXPECT_ERR(q.out->try_send(text("x")), EPROTO);
    EXPECT_EQ(q.sender_context.counters().hostile_peers, 1u);
  }
}

TEST(QueueOrder, HoldsOverANetworkThatReorders) {
  PlainOptions options;
  options.reorder_window = 8;
  options.packet_bytes = 300;
  QueuePair q(8192, false, Mode::kAdaptive, options);
  std::thread sender([&] {
    for (std::uint64_t i = 0; i < 2000; ++i) ASSERT_OK(q.out->send(pattern(i % 2000, i), 20'000));
  });
  std::vector<std::byte> buffer(q.out->max_record());
  for (std::uint64_t i = 0; i < 2000; ++i) {
    auto n = q.in->receive(buffer, 20'000);
    ASSERT_OK(n);
    ASSERT_EQ(*n, i % 2000);
    ASSERT_TRUE(is_pattern({buffer.data(), *n}, i, 0));
  }
  sender.join();
}

// --- two processes -------------------------------------------------------------------------------

struct Notes {
  RdmaCookie ring, credit;
};

TEST(QueueBetweenProcesses, CarriesRecordsAndOutlivesItsSender) {
  Shared<Notes> shared;
  Notes& notes = *shared;
  Gate ring_known, credit_known, sent;
  auto sender = Process::start([&] {
    auto context = must(Context::create());
    CHILD_CHECK(ring_known.wait());
    auto out = QueueSender::create(context, notes.ring);
    CHILD_OK(out);
    notes.credit = out->cookie();
    credit_known.open();
    for (std::uint64_t i = 0; i < 5000; ++i) {
      auto s = out->send(pattern(i % 700, i), 20'000);
      CHILD_OK(s);
    }
    sent.open();
    ::pause();
    return 0;
  });
  auto context = must(Context::create(with_mode(Mode::kSleep)));
  auto in = must(QueueReceiver::create(context, 4096));
  notes.ring = in.cookie();
  ring_known.open();
  ASSERT_TRUE(credit_known.wait());
  ASSERT_OK(in.attach(notes.credit));
  std::vector<std::byte> buffer(1024);
  for (std::uint64_t i = 0; i < 4995; ++i) {
    auto n = in.receive(buffer, 20'000);
    ASSERT_OK(n);
    ASSERT_EQ(*n, i % 700);
    ASSERT_TRUE(is_pattern({buffer.data(), *n}, i, 0));
  }
  ASSERT_TRUE(sent.wait());
  EXPECT_TRUE(sender.kill().killed());
  for (int i = 0; i < 5; ++i) ASSERT_OK(in.receive(buffer, 5000));
  EXPECT_ERR(in.receive(buffer, 10'000), ECONNRESET);
}

TEST(QueueBetweenProcesses, DeathWakesBothSides) {
  for (bool kill_sender : {true, false}) {
    Shared<Notes> shared;
    Notes& notes = *shared;
    Gate ring_known, credit_known;
    auto peer = Process::start([&] {
      auto context = must(Context::create());
      std::optional<QueueReceiver> in;
      std::optional<QueueSender> out;
      if (kill_sender) {
        CHILD_CHECK(ring_known.wait());
        out = must(QueueSender::create(context, notes.ring));
        notes.credit = out->cookie();
        credit_known.open();
      } else {
        in = must(QueueReceiver::create(context, 1024));
        notes.ring = in->cookie();
        ring_known.open();
        CHILD_CHECK(credit_known.wait());
        auto s = in->attach(notes.credit);
        CHILD_OK(s);
      }
      ::pause();
      return 0;
    });
    auto context = must(Context::create(with_mode(Mode::kSleep)));
    std::thread killer;
    auto kill_soon = [&] {
      killer = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        peer.send_signal(9);
      });
    };
    std::byte buffer[64];
    const std::uint64_t start = monotonic_ns();
    if (kill_sender) {
      auto in = must(QueueReceiver::create(context, 1024));
      notes.ring = in.cookie();
      ring_known.open();
      ASSERT_TRUE(credit_known.wait());
      ASSERT_OK(in.attach(notes.credit));
      kill_soon();
      EXPECT_ERR(in.receive(buffer, 10'000), ECONNRESET);
    } else {
      ASSERT_TRUE(ring_known.wait());
      auto out = must(QueueSender::create(context, notes.ring));
      notes.credit = out.cookie();
      credit_known.open();
      Status s;
      kill_soon();
      for (int i = 0; i < 100 && s; ++i) s = out.send(text("x"), 10'000);
      EXPECT_ERR(s, ECONNRESET);
    }
    EXPECT_LT(monotonic_ns() - start, 5'000'000'000u);
    killer.join();
  }
}

}  // namespace
}  // namespace clan
