#include "engine/lent.h"

#include <clan/stream.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <thread>

#include "clan/clock.h"
#include "engine/stream_core.h"
#include "support/streams.h"

namespace clan {
namespace {

using namespace test;
using Mode = WaitOptions::Mode;

constexpr std::uint32_t kRing = 4096;
constexpr std::size_t kLarge = 1u << 20;
constexpr std::int64_t kLongMs = 60'000;

ContextOptions options(Mode mode = Mode::kAdaptive, bool direct_copy = true) {
  ContextOptions o = with_mode(mode, kRing);
  o.direct_copy = direct_copy;
  return o;
}

// Whether bytes are lent here: where process_vm_readv is not allowed the rings do.
bool can_copy() {
  StreamPair pair(options());
  std::atomic<bool> sent{false};
  const auto bytes = pattern(2 * kRing, 1);
  std::thread sender([&] {
    EXPECT_OK(pair.client.send_lent(bytes, kLongMs));
    sent = true;
  });
  std::byte first[8];
  EXPECT_OK(pair.server.recv(first, kLongMs));
  (void)receive_pattern(pair.server, 1, 8, bytes.size() - 1);
  ::usleep(10'000);
  const bool lent = !sent;
  (void)receive_pattern(pair.server, 1, bytes.size() - 1, bytes.size());
  sender.join();
  return lent;
}

// --- bytes -----------------------------------------------------------------------------------------

struct Way {
  Mode mode;
  bool client_copies, server_copies;
  const char* name;
};

// Its bytes would be those of an address.
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class LentBytes : public testing::TestWithParam<Way> {
 protected:
  StreamPair pair_{options(GetParam().mode, GetParam().client_copies),
                   options(GetParam().mode, GetParam().server_copies)};
};
INSTANTIATE_TEST_SUITE_P(Ways, LentBytes,
                         testing::Values(Way{Mode::kAdaptive, true, true, "Adaptive"},
                                         Way{Mode::kSleep, true, true, "Sleep"},
                                         Way{Mode::kAdaptive, false, true, "ReceiverCopies"},
                                         Way{Mode::kAdaptive, false, false, "NobodyCopies"}),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_P(LentBytes, ArriveExactlyWhateverTheSizesOfTheCalls) {
  const std::size_t sizes[] = {0,       1,       kRing - 1, kRing,     kRing + 1, 65'535,    65'536, 65'537,
                               262'144, 300'000, kLarge,    kLarge + 1, 5'000'003, 7,        kLarge};
  std::thread sender([&] {
    std::uint64_t at = 0;
    for (std::size_t n : sizes) {
      auto sent = pair_.client.send_lent(pattern(n, 2, at), kLongMs);
      ASSERT_OK(sent);
      ASSERT_EQ(*sent, n);
      at += n;
    }
    ASSERT_OK(pair_.client.shutdown_send());
  });
  std::uint64_t total = 0;
  for (std::size_t n : sizes) total += n;
  for (std::uint64_t at = 0; at < total;) {
    // In parts of any size, and now and then in place.
    const std::uint64_t to = std::min<std::uint64_t>(total, at + 900'000);
    Received r = receive_pattern(pair_.server, 2, at, to, at % 3 == 0 ? 3000 : 2u << 20, kLongMs);
    ASSERT_TRUE(r.right) << r.bytes;
    ASSERT_EQ(r.bytes, to) << r.err;
    at = to;
    for (int i = 0; i < 5 && at < total; ++i) {
      ASSERT_OK(pair_.server.wait_readable(kLongMs));
      EXPECT_TRUE(pair_.server.readable());
      auto front = pair_.server.peek();
      ASSERT_OK(front);
      ASSERT_FALSE(front->empty());
      ASSERT_TRUE(is_pattern(*front, 2, at));
      const std::size_t n = i % 2 == 0 ? front->size() : (front->size() + 1) / 2;
      pair_.server.consume(n);
      at += n;
    }
  }
  sender.join();
  std::byte b;
  auto end = pair_.server.recv({&b, 1}, kLongMs);
  ASSERT_OK(end);
  EXPECT_EQ(*end, 0u);
}

TEST_P(LentBytes, FlowInBothDirectionsAtOnce) {
  auto side = [](Stream& stream, std::uint64_t out, std::uint64_t in) {
    return std::thread([&stream, out, in] {
      std::thread sender([&] {
        for (std::uint64_t i = 0; i < 8; ++i) {
          EXPECT_OK(stream.send_lent(pattern(kLarge / 4, out, i * kLarge / 4), kLongMs));
        }
      });
      Received r = receive_pattern(stream, in, 0, 2 * kLarge, 1u << 20, kLongMs);
      EXPECT_EQ(r.bytes, 2 * kLarge) << r.err;
      EXPECT_TRUE(r.right);
      sender.join();
    });
  };
  std::thread client = side(pair_.client, 3, 4);
  std::thread server = side(pair_.server, 4, 3);
  client.join();
  server.join();
}

// --- the sender waits, and stops waiting -----------------------------------------------------------

TEST(Lent, BytesMayBeReusedOnlyWhenTheCallHasReturned) {
  if (!can_copy()) GTEST_SKIP() << "process_vm_readv is not allowed here";
  StreamPair pair(options());
  std::atomic<bool> returned{false};
  std::thread sender([&] {
    auto bytes = pattern(kLarge, 5);
    EXPECT_OK(pair.client.send_lent(bytes, kLongMs));
    returned = true;
    std::fill(bytes.begin(), bytes.end(), std::byte{0x55});
  });
  EXPECT_EQ(receive_pattern(pair.server, 5, 0, kLarge - 1).bytes, kLarge - 1);
  ::usleep(2000);
  EXPECT_FALSE(returned);
  EXPECT_EQ(receive_pattern(pair.server, 5, kLarge - 1, kLarge).bytes, kLarge);
  sender.join();
}

TEST(Lent, SendThatTimesOutSaysHowMuchWentAndTheRestCanFollow) {
  if (!can_copy()) GTEST_SKIP() << "process_vm_readv is not allowed here";
  StreamPair pair(options());
  auto bytes = pattern(kLarge, 6);
  EXPECT_ERR(pair.client.send_lent(bytes, 5), ETIMEDOUT);  // nobody reads
  std::atomic<std::uint64_t> went{0};
  std::thread sender([&] {
    auto sent = pair.client.send_lent(bytes, 200);
    while (!sent.ok() && sent.error().err == ETIMEDOUT) sent = pair.client.send_lent(bytes, 200);
    ASSERT_OK(sent);
    went = *sent;
  });
  // Some of it, and then nothing until the time is over.
  Received r = receive_pattern(pair.server, 6, 0, 100'000, 50'000, kLongMs);
  EXPECT_EQ(r.bytes, 100'000u) << r.err;
  sender.join();
  EXPECT_EQ(went, 100'000u);
  std::byte b;
  EXPECT_ERR(pair.server.recv({&b, 1}, 5), ETIMEDOUT);  // the rest has been withdrawn
  EXPECT_FALSE(pair.server.readable());
  std::thread rest([&] { EXPECT_OK(pair.client.send_lent(std::span(bytes).subspan(went), kLongMs)); });
  r = receive_pattern(pair.server, 6, went, bytes.size());
  EXPECT_EQ(r.bytes, bytes.size()) << r.err;
  EXPECT_TRUE(r.right);
  rest.join();
}

// What is withdrawn in the middle of a copy has gone or has not; the sender and the receiver agree, and a buffer
// that is written to right afterwards is not seen.
TEST(Lent, WithdrawalsAtAnyMomentNeitherLoseNorRepeatNorChangeAByte) {
  StreamPair pair(options());
  constexpr std::uint64_t kTotal = 60u << 20;
  std::thread sender([&] {
    std::vector<std::byte> bytes(kLarge);
    std::uint64_t at = 0;
    for (std::int64_t turn = 0; at < kTotal; ++turn) {
      const std::size_t n = std::min<std::uint64_t>(kLarge, kTotal - at);
      fill_pattern({bytes.data(), n}, 7, at);
      auto sent = pair.client.send_lent({bytes.data(), n}, turn % 64 == 63 ? kLongMs : turn % 2);
      std::memset(bytes.data(), 0xee, n);
      if (sent.ok()) {
        at += *sent;
      } else {
        ASSERT_EQ(sent.error().err, ETIMEDOUT);
      }
    }
  });
  Received r = receive_pattern(pair.server, 7, 0, kTotal, 60'000, kLongMs);
  EXPECT_TRUE(r.right) << r.bytes;
  EXPECT_EQ(r.bytes, kTotal) << r.err;
  sender.join();
}

TEST(Lent, SenderLearnsThatThePeerHasClosedOrTheConnectionWasAborted) {
  if (!can_copy()) GTEST_SKIP() << "process_vm_readv is not allowed here";
  for (const bool aborted : {false, true}) {
    StreamPair pair(options());
    const auto bytes = pattern(kLarge, 8);
    std::thread ender([&] {
      EXPECT_TRUE(pair.server.wait_readable(kLongMs).ok());
      if (aborted) {
        pair.client.abort();
      } else {
        pair.server.close();
      }
    });
    EXPECT_ERR(pair.client.send_lent(bytes, kLongMs), aborted ? ECONNABORTED : EPIPE);
    ender.join();
    EXPECT_FALSE(pair.client.send_lent(bytes, kLongMs).ok());
    if (aborted) {
      EXPECT_EQ(receive_text(pair.server), "<" + std::to_string(ECONNRESET) + ">");
    }
  }
}

// --- processes -------------------------------------------------------------------------------------

class LentProcess : public testing::Test {
 protected:
  Context context_ = must(Context::create(options()));
  Listener listener_ = must(Listener::create(context_, unique_name("lent")));
  Gate going_;

  // A child whose end of the stream `body` has. The stream is this side's.
  template <typename Body>
  Process child(Body&& body) {
    return Process::start([&] {
      auto own = Context::create(options());
      CHILD_OK(own);
      auto stream = Stream::connect(*own, listener_.address(), 20'000);
      CHILD_OK(stream);
      return body(*stream);
    });
  }
};

TEST_F(LentProcess, KilledWhileItSendsLeavesNoWrongByte) {
  for (int round = 0; round < 12; ++round) {
    auto sender = child([&](Stream& stream) {
      for (std::uint64_t at = 0;; at += kLarge) {
        const auto bytes = pattern(kLarge, 9, at);
        if (at == 4 * kLarge) going_.open();
        CHILD_OK(stream.send_lent(bytes, kLongMs));
      }
      return 0;
    });
    Stream stream = must(listener_.accept(20'000));
    Received r;
    std::thread receiver([&] { r = receive_pattern(stream, 9, 0, ~std::uint64_t{0}, 900'000, kLongMs); });
    ASSERT_TRUE(going_.wait());
    ::usleep(static_cast<useconds_t>(round) * 150);
    EXPECT_TRUE(sender.kill().killed());
    receiver.join();
    EXPECT_TRUE(r.right) << r.bytes;
    EXPECT_FALSE(r.end_of_stream);
    EXPECT_EQ(r.err, ECONNRESET);
  }
}

TEST_F(LentProcess, KilledWhileItReceivesIsTheEndOfTheSend) {
  for (int round = 0; round < 12; ++round) {
    auto receiver = child([&](Stream& stream) {
      Received r = receive_pattern(stream, 10, 0, 4 * kLarge, 300'000, kLongMs);
      CHILD_CHECK(r.right && r.bytes == 4 * kLarge);
      going_.open();
      r = receive_pattern(stream, 10, r.bytes, ~std::uint64_t{0}, 300'000, kLongMs);
      return 0;
    });
    Stream stream = must(listener_.accept(20'000));
    int err = 0;
    std::thread sender([&] {
      for (std::uint64_t at = 0;;) {
        auto sent = stream.send_lent(pattern(kLarge, 10, at), kLongMs);
        if (!sent.ok()) {
          err = sent.error().err;
          return;
        }
        at += *sent;
      }
    });
    ASSERT_TRUE(going_.wait());
    ::usleep(static_cast<useconds_t>(round) * 150);
    EXPECT_TRUE(receiver.kill().killed());
    sender.join();
    EXPECT_EQ(err, ECONNRESET);
  }
}

TEST_F(LentProcess, ThatForksWhileItSendsGoesOnAndItsChildDoesNot) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer loses count of its threads in a process that forks beside them";
#endif
  auto sender = child([&](Stream& stream) {
    std::thread forks([&] {
      for (int i = 0; i < 10; ++i) {
        Process grandchild = Process::start([&] {
          const auto bytes = pattern(kLarge, 99);
          auto sent = stream.send_lent(bytes, 1000);
          return !sent.ok() && sent.error().err == ESHUTDOWN ? 0 : 1;
        });
        if (!grandchild.wait().clean()) std::abort();
      }
    });
    for (std::uint64_t at = 0; at < 30 * kLarge; at += kLarge) {
      CHILD_OK(stream.send_lent(pattern(kLarge, 11, at), kLongMs));
    }
    forks.join();
    return 0;
  });
  Stream stream = must(listener_.accept(20'000));
  Received r = receive_pattern(stream, 11, 0, 30 * kLarge, 900'000, kLongMs);
  EXPECT_TRUE(r.right) << r.bytes;
  EXPECT_EQ(r.bytes, 30 * kLarge) << r.err;
  EXPECT_TRUE(sender.wait().clean());
}

// --- what cannot be read, and what is nonsense -----------------------------------------------------

// From now on the calling thread may not read another process's memory.
bool forbid_copies() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{sizeof filter / sizeof *filter, filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

TEST(Lent, WhatTheReceiverMayNotReadGoesThroughTheRing) {
  StreamPair pair(options());
  std::thread sender([&] {
    for (std::uint64_t at = 0; at < 3 * kLarge; at += kLarge) {
      auto sent = pair.client.send_lent(pattern(kLarge, 12, at), kLongMs);
      ASSERT_OK(sent);
      ASSERT_EQ(*sent, kLarge);
    }
  });
  bool forbidden = true;
  std::thread receiver([&] {
    Received r = receive_pattern(pair.server, 12, 0, kLarge, 600'000, kLongMs);
    forbidden = forbid_copies();
    r = receive_pattern(pair.server, 12, r.bytes, 3 * kLarge, 600'000, kLongMs);
    EXPECT_TRUE(r.right) << r.bytes;
    EXPECT_EQ(r.bytes, 3 * kLarge) << r.err;
  });
  receiver.join();
  sender.join();
  if (!forbidden) GTEST_SKIP() << "no seccomp filters here";
}

}  // namespace

namespace engine {
namespace {

using test::eventually;
using test::must;
using test::pattern;

// Takes the one connection that is asked for.
class Acceptor final : public OobSink {
 public:
  explicit Acceptor(std::shared_ptr<ContextCore> context) : context_(std::move(context)) {}
  void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) override {
    auto accepted = Connection::accept(context_, link, message, ConnectionKind::kStream);
    if (!accepted) return Connection::refuse(*link, message, accepted.error().err);
    std::lock_guard lock(mutex_);
    accepted_ = *accepted;
  }
  void on_link_down(const std::shared_ptr<nic::Link>&) override {}
  std::shared_ptr<Connection> taken() {
    std::lock_guard lock(mutex_);
    return accepted_;
  }

 private:
  std::shared_ptr<ContextCore> context_;
  std::mutex mutex_;
  std::shared_ptr<Connection> accepted_;
};

// One end is a Connection, which a hostile peer writes to as it likes; the other one a stream.
class HostileLent : public testing::Test {
 protected:
  void SetUp() override {
    ContextOptions options;
    options.ring_bytes = 4096;
    a_ = *ContextCore::create(options);
    b_ = *ContextCore::create(options);
    auto acceptor = std::make_shared<Acceptor>(b_);
    const std::string service = test::unique_name("lent");
    ASSERT_TRUE(b_->add_service(service, must(b_->add_endpoint(acceptor))).ok());
    hostile_ = must(Connection::connect_service(a_, service, ::geteuid(), ConnectionKind::kStream, {},
                                                deadline_after_ms(20'000)));
    ASSERT_TRUE(eventually([&] { return acceptor->taken() != nullptr; }));
    victim_ = acceptor->taken();
    stream_.emplace(victim_);
  }
  void TearDown() override {
    stream_.reset();
    for (const auto& context : {a_, b_}) context->shut_down();
  }
  void put(std::span<const std::byte> bytes) {
    std::byte* at = hostile_->reserve(bytes.size());
    ASSERT_NE(at, nullptr);
    std::memcpy(at, bytes.data(), bytes.size());
    hostile_->commit(bytes.size(), RecordType::kLent);
  }
  void put(const LentRecord& record) { put(std::as_bytes(std::span(&record, 1))); }
  std::uint64_t hostile_peers() { return b_->snapshot().hostile_peers; }

  std::shared_ptr<ContextCore> a_, b_;
  std::shared_ptr<Connection> hostile_, victim_;
  std::optional<StreamCore> stream_;
  std::byte buffer_[64] = {};
};

TEST_F(HostileLent, RecordsThatMakeNoSenseEndTheConnection) {
  put(std::as_bytes(std::span("too short")));
  EXPECT_FALSE(stream_->recv(buffer_, deadline_after_ms(5000)).ok());
  EXPECT_EQ(hostile_peers(), 1u);
  EXPECT_EQ(victim_->reset_reason(), EPROTO);
}

TEST_F(HostileLent, LengthsThatAreImpossibleEndTheConnection) {
  LentRecord record;
  record.cookie.length = kMostLent + 1;
  put(record);
  EXPECT_FALSE(stream_->recv(buffer_, deadline_after_ms(5000)).ok());
  EXPECT_EQ(hostile_peers(), 1u);
}

TEST_F(HostileLent, CookiesThatAreMadeUpAreRefused) {
  LentRecord record;
  record.cookie.length = 1'000'000;
  record.cookie.node = a_->node();
  record.sequence = 5;
  hostile_->own_offer_word(0).store(LentWord::make(5, 0).word, std::memory_order_relaxed);
  put(record);
  auto got = stream_->recv(buffer_, deadline_after_ms(20));
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().err, ETIMEDOUT);
  EXPECT_TRUE(LentWord{hostile_->own_offer_word(0).load(std::memory_order_relaxed)}.refused());
}

TEST_F(HostileLent, WordsThatDoNotFitTheirRecordAreAWithdrawal) {
  LentRecord record;
  record.cookie.length = 1'000'000;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    record.sequence = i;
    hostile_->own_offer_word(0).store(LentWord::make(i + 1, i).word, std::memory_order_relaxed);
    put(record);
    auto got = stream_->try_recv(buffer_);
    ASSERT_FALSE(got.ok());
    ASSERT_EQ(got.error().err, EAGAIN);
  }
  EXPECT_EQ(hostile_peers(), 0u);
}

// A receiver that counts more than it was lent, or for another range.
TEST_F(HostileLent, AnswersThatAreImpossibleEndTheConnection) {
  if (!Lender(*victim_).lends(8000)) GTEST_SKIP() << "process_vm_readv is not allowed here";
  std::thread hostile([&] {
    ASSERT_TRUE(hostile_->wait_readable(deadline_after_ms(20'000)).ok());
    hostile_->lent_word().store(~std::uint64_t{0}, std::memory_order_seq_cst);
    hostile_->nudge();
  });
  const auto bytes = pattern(8000, 1);
  EXPECT_FALSE(stream_->send_lent(bytes, deadline_after_ms(20'000)).ok());
  hostile.join();
  EXPECT_EQ(hostile_peers(), 1u);
  EXPECT_EQ(victim_->reset_reason(), EPROTO);
}

TEST(LentWord, TellsOneRangeFromAnother) {
  const LentWord word = LentWord::make((1u << 30) - 1, 0xffff'ffff);
  EXPECT_EQ(word.taken(), 0xffff'ffffu);
  EXPECT_TRUE(word.of((1u << 30) - 1));
  EXPECT_FALSE(word.of(0));
  EXPECT_FALSE(word.refused());
  EXPECT_TRUE(LentWord{word.word | LentWord::kRefused | LentWord::kWithdrawn}.of((1u << 30) - 1));
}

}  // namespace
}  // namespace engine
}  // namespace clan
