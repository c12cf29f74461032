// A peer that speaks the provider's wire and means no good: every kind of message with wrong
// lengths, numbers, keys and contexts, answers that nobody has asked for, introductions as somebody
// else, access words as no peer writes them. A process that talks with it keeps what it has: its
// memory, its other conversations, one end to each operation, and its processor.
#include <clan/context.h>
#include <clan/message.h>
#include <malloc.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <random>
#include <thread>

#include "libfabric-provider/wire/access_word.h"
#include "libfabric-provider/wire/wire.h"
#include "libfabric/node.h"

namespace clan::test {
namespace {

using namespace clan::ofi;
using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;

std::uint16_t port_of(const std::vector<char>& name) {
  sockaddr_in address{};
  std::memcpy(&address, name.data(), sizeof address);
  return ntohs(address.sin_port);
}

template <typename T>
void append(Bytes& to, const T& value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), bytes, bytes + sizeof value);
}

sockaddr_in6 loopback(std::uint16_t port) {
  sockaddr_in6 address{};
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::memcpy(&address, &v4, sizeof v4);
  return address;
}

double cpu_seconds(const rusage& usage) {
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/// The peer. It is reached by its name as an endpoint is, and does nothing by itself.
class Hostile {
 public:
  Hostile() : context_(*Context::create()), messages_(*take_any_name()) {}

  std::vector<char> name() const {
    const sockaddr_in6 address = loopback(port_);
    const auto* bytes = reinterpret_cast<const char*>(&address);
    return {bytes, bytes + sizeof(sockaddr_in)};
  }
  std::uint16_t port() const { return port_; }
  MessageEndpoint& messages() { return messages_; }

  /// Connects, without a word. False: it was not let in.
  bool connect(std::uint16_t port) {
    auto to = messages_.connect("ofi." + std::to_string(port), 5'000);
    if (to) to_ = *to;
    return to.ok();
  }
  bool say(const Bytes& message) {
    const auto end = Clock::now() + std::chrono::seconds(5);
    while (Clock::now() < end) {
      auto room = messages_.reserve(to_, message.size());
      if (room) {
        if (!message.empty()) std::memcpy(room->data(), message.data(), message.size());
        messages_.commit(to_, message.size());
        WireHeader header;
        if (message.size() < sizeof header + sizeof(AccessWord)) return true;
        std::memcpy(&header, message.data(), sizeof header);
        if (header.op == Op::kPut || header.op == Op::kGet) {
          words_.emplace_back(messages_.sent_mark(to_), reinterpret_cast<std::atomic<AccessWord>*>(
                                                            room->data() + sizeof header));
        }
        return true;
      }
      if (room.error().err != EAGAIN) return false;
      take_all();
      if (work) work();
      give_up_accesses();
    }
    return false;
  }
  bool say(const WireHeader& header, const Bytes& body = {}) {
    Bytes message;
    append(message, header);
    message.insert(message.end(), body.begin(), body.end());
    return say(message);
  }
  bool introduce(std::uint16_t as) {
    Hello hello;
    hello.length = sizeof(sockaddr_in);
    hello.address = loopback(as);
    Bytes body;
    append(body, hello);
    return say({.op = Op::kHello}, body);
  }
  /// What lies in front, which `f` may change; it is taken then. False: nothing has come in time.
  bool look(const std::function<void(const WireHeader&, const IncomingMessage&)>& f) {
    return eventually([&] {
      auto message = messages_.peek();
      if (!message) {
        if (work) work();
        return false;
      }
      WireHeader header;
      const auto head = message->offered ? message->header : message->bytes;
      if (head.size() >= sizeof header) std::memcpy(&header, head.data(), sizeof header);
      if (header.op == Op::kHello) {
        to_ = message->from;
        messages_.drop();
        return false;
      }
      f(header, *message);
      return true;
    });
  }
  /// The word of the access that lies in front. It stays there.
  std::atomic<std::uint64_t>* word() { return messages_.shared_word(sizeof(WireHeader)); }
  void take_all() {
    while (messages_.peek()) messages_.drop();
  }
  /// Says of those that have been refused, and lie there still, that nobody makes them.
  void give_up_accesses() {
    std::erase_if(words_, [&](auto& access) {
      AccessWord refused = kAccessRefused;
      return messages_.has_left(to_, access.first) ||
             access.second->compare_exchange_strong(refused, kAccessFailed);
    });
  }
  std::function<void()> work;  ///< what others do meanwhile

 private:
  Result<MessageEndpoint> take_any_name() {
    for (;;) {
      port_ = static_cast<std::uint16_t>(32768 + ::arc4random_uniform(32768));
      auto made = MessageEndpoint::create(context_, "ofi." + std::to_string(port_));
      if (made.ok() || made.error().err != EADDRINUSE) return made;
    }
  }
  Context context_;
  std::uint16_t port_ = 0;
  MessageEndpoint messages_;
  PeerIndex to_ = 0;
  std::vector<std::pair<std::uint64_t, std::atomic<AccessWord>*>>
      words_;  ///< of our accesses, and their marks
};

/// One endpoint, which a hostile peer is about to talk with. Operations have numbers for contexts.
class Victim : public Node {
 public:
  explicit Victim(const NodeOptions& options = {}) : Node(options) {
    enable();
    port = port_of(name());
    hostile.work = [this] { work(); };
    to_hostile = insert(hostile.name());
  }
  static void* number(std::size_t n) { return reinterpret_cast<void*>(n); }
  /// Takes what has been completed.
  void work() {
    for (;;) {
      fi_cq_tagged_entry entry{};
      const ssize_t n = fi_cq_read(cq.get(), &entry, 1);
      if (n == 1) {
        ++ends[reinterpret_cast<std::size_t>(entry.op_context)];
        if ((entry.flags & FI_RECV) == 0) ++well;
        continue;
      }
      if (n != -FI_EAVAIL) return;
      fi_cq_err_entry error{};
      if (fi_cq_readerr(cq.get(), &error, 0) != 1) return;
      ++ends[reinterpret_cast<std::size_t>(error.op_context)];
    }
  }
  void idle(int times = 500) {
    for (int i = 0; i < times; ++i) work();
  }
  ssize_t attempt(const std::function<ssize_t()>& call) {
    ssize_t rc = -FI_EAGAIN;
    (void)eventually([&] {
      work();
      return (rc = call()) != -FI_EAGAIN;
    });
    return rc;
  }

  Hostile hostile;
  std::uint16_t port = 0;
  fi_addr_t to_hostile = 0;
  std::map<std::size_t, int> ends;  ///< how often each operation was completed
  int well = 0;                     ///< of those, the ones that were no error
};

class FabricHostile : public testing::Test {
 protected:
  void SetUp() override { ::alarm(60); }
  void TearDown() override { ::alarm(0); }
};

// --- answers -------------------------------------------------------------------------------------

struct Answer {
  const char* what;
  Op op;
  AccessWord word;  ///< what the peer writes into the access's word afterwards
};

class FabricHostileAnswer : public testing::TestWithParam<std::tuple<bool, Answer>> {
 protected:
  void SetUp() override { ::alarm(60); }
  void TearDown() override { ::alarm(0); }
};

constexpr Answer kAnswers[] = {
    {"ack", Op::kAck, kAccessDone},
    {"ack_refused", Op::kAck, kAccessRefused},
    {"atomic_reply", Op::kAtomicReply, kAccessDone},
    {"bytes", Op::kGetReply, kAccessDone},
    {"bytes_refused", Op::kGetReply, kAccessRefused},
    {"bytes_failed", Op::kGetReply, kAccessFailed},
    {"bytes_ours", Op::kGetReply, kAccessOurs},
    {"bytes_nonsense", Op::kGetReply, 77},
    {"nothing_ours", Op{0}, kAccessOurs},
};

INSTANTIATE_TEST_SUITE_P(, FabricHostileAnswer,
                         testing::Combine(testing::Bool(), testing::ValuesIn(kAnswers)),
                         [](const auto& it) {
                           return std::string(std::get<0>(it.param) ? "write_" : "read_") +
                                  std::get<1>(it.param).what;
                         });

TEST_P(FabricHostileAnswer, EndsASmallAccessOnceAtMost) {
  const auto [writes, answer] = GetParam();
  Victim victim;
  char buffer[64] = {};
  const auto start = [&victim, &buffer, write = writes](std::size_t n) {
    return write ? fi_write(victim.ep.get(), buffer, sizeof buffer, nullptr, victim.to_hostile, 0,
                            5, Victim::number(n))
                 : fi_read(victim.ep.get(), buffer, sizeof buffer, nullptr, victim.to_hostile, 0, 5,
                           Victim::number(n));
  };
  int seen = 0;
  for (std::size_t n = 1; seen < 3 && n < 100; ++n) {
    ASSERT_EQ(victim.attempt([&] { return start(n); }), 0);
    victim.work();
    if (victim.ends[n] > 0) continue;  // made by a system call, as we have not been polling
    ++seen;
    std::atomic<std::uint64_t>* word = nullptr;
    std::uint32_t id = 0;
    // It may have been taken back already: then it has not come to us to decide.
    const bool came = victim.hostile.look([&](const WireHeader& header, const IncomingMessage&) {
      id = header.id;
      word = victim.hostile.word();
      std::uint64_t waiting = kAccessWaiting;
      if (word != nullptr && !word->compare_exchange_strong(waiting, kAccessTheirs)) word = nullptr;
    });
    ASSERT_TRUE(came);
    Bytes body;
    if (answer.op == Op::kAtomicReply) append(body, AtomicReply{});
    if (answer.op == Op::kGetReply) body.resize(sizeof buffer);
    if (answer.op != Op{0}) {
      ASSERT_TRUE(victim.hostile.say({.op = answer.op, .id = id}, body));
    }
    victim.idle();
    if (word != nullptr) word->store(answer.word);
    victim.idle();
    victim.hostile.messages().drop();
    victim.idle();
    EXPECT_LE(victim.ends[n], 1);
  }
  EXPECT_GT(seen, 0);
  // Each of the next ones is an operation of its own.
  Two two;
  const fi_addr_t to_b = victim.insert(two.b.name());
  (void)two.b.insert(victim.name());
  char in[8][8] = {};
  for (std::size_t n = 0; n < 8; ++n) {
    ASSERT_EQ(fi_recv(two.b.ep.get(), in[n], 8, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    const fi_msg msg{nullptr, nullptr, 0, to_b, Victim::number(1000 + n), 0};
    ASSERT_EQ(
        victim.attempt([&] { return fi_sendmsg(victim.ep.get(), &msg, FI_DELIVERY_COMPLETE); }), 0);
  }
  EXPECT_TRUE(eventually([&] {
    victim.work();
    fi_cq_tagged_entry received;
    (void)fi_cq_read(two.b.cq.get(), &received, 1);
    return victim.ends[1007] > 0;
  }));
  for (std::size_t n = 0; n < 8; ++n) EXPECT_EQ(victim.ends[1000 + n], 1) << n;
}

TEST_F(FabricHostile, BytesAreTakenOnlyForAReadThatIsUnderWay) {
  Victim victim;
  char buffer[64];
  std::memset(buffer, 1, sizeof buffer);
  ASSERT_EQ(victim.attempt([&] {
    return fi_read(victim.ep.get(), buffer, sizeof buffer, nullptr, victim.to_hostile, 0, 5,
                   Victim::number(1));
  }),
            0);
  victim.idle();  // nobody has it: an error
  ASSERT_TRUE(eventually([&] {
    victim.hostile.take_all();
    victim.work();
    return victim.ends[1] == 1;
  }));
  // The next operation has the number of that one.
  const fi_msg msg{nullptr, nullptr, 0, victim.to_hostile, Victim::number(2), 0};
  ASSERT_EQ(victim.attempt([&] { return fi_sendmsg(victim.ep.get(), &msg, FI_DELIVERY_COMPLETE); }),
            0);
  std::uint32_t id = 0;
  ASSERT_TRUE(victim.hostile.look(
      [&](const WireHeader& header, const IncomingMessage&) { id = header.id; }));
  ASSERT_TRUE(victim.hostile.say({.op = Op::kGetReply, .id = id}, Bytes(sizeof buffer)));
  Bytes reply;
  append(reply, AtomicReply{});
  ASSERT_TRUE(victim.hostile.say({.op = Op::kAtomicReply, .id = id}, reply));
  victim.idle();
  EXPECT_EQ(victim.ends[2], 0);
  for (char c : buffer) ASSERT_EQ(c, 1);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(victim.hostile.say({.op = Op::kAck, .id = id}));
  victim.idle();
  EXPECT_EQ(victim.ends[2], 1);
}

TEST_F(FabricHostile, AnAtomicOperationEndsByItsOwnAnswerOnly) {
  Victim victim;
  std::uint64_t operand = 1, result[3] = {9, 9, 9};
  ASSERT_EQ(victim.attempt([&] {
    return fi_fetch_atomic(victim.ep.get(), &operand, 1, nullptr, &result[1], nullptr,
                           victim.to_hostile, 0, 5, FI_UINT64, FI_SUM, Victim::number(1));
  }),
            0);
  std::uint32_t id = 0;
  ASSERT_TRUE(victim.hostile.look(
      [&](const WireHeader& header, const IncomingMessage&) { id = header.id; }));
  Bytes reply;
  append(reply, AtomicReply{});
  ASSERT_TRUE(victim.hostile.say({.op = Op::kAck, .id = id}));
  ASSERT_TRUE(victim.hostile.say({.op = Op::kGetReply, .id = id}, Bytes(8)));
  ASSERT_TRUE(victim.hostile.say({.op = Op::kAtomicReply, .id = id}));  // too short
  reply.resize(sizeof(AtomicReply) + 800, std::byte{7});
  for (const std::uint64_t skip :
       {std::uint64_t{8}, ~std::uint64_t{0}, ~std::uint64_t{7}, std::uint64_t{4}})
    ASSERT_TRUE(
        victim.hostile.say({.op = Op::kAtomicReply, .flags = kMore, .id = id, .tag = skip}, reply));
  victim.idle();
  EXPECT_EQ(victim.ends[1], 0);
  ASSERT_TRUE(victim.hostile.say({.op = Op::kAtomicReply, .id = id}, reply));
  victim.idle();
  EXPECT_EQ(victim.ends[1], 1);
  EXPECT_EQ(result[0], 9u);
  EXPECT_EQ(result[1], 0x0707070707070707u);
  EXPECT_EQ(result[2], 9u);
}

// --- access words --------------------------------------------------------------------------------

TEST_F(FabricHostile, AnAccessThatItsInitiatorMakesWakesWhoSleepsBehindIt) {
  Victim victim({.wait = FI_WAIT_FD});
  ASSERT_TRUE(victim.hostile.connect(victim.port));
  ASSERT_TRUE(victim.hostile.introduce(victim.hostile.port()));
  char in[8] = {};
  ASSERT_EQ(fi_recv(victim.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, Victim::number(1)), 0);
  victim.idle();
  Bytes message;
  append(message, WireHeader{.op = Op::kPut, .tag = 5});
  append(message, kAccessOurs);
  auto room = victim.hostile.messages().reserve(0, message.size());
  ASSERT_TRUE(room.ok());
  std::memcpy(room->data(), message.data(), message.size());
  auto* word = reinterpret_cast<std::atomic<std::uint64_t>*>(room->data() + sizeof(WireHeader));
  victim.hostile.messages().commit(0, message.size());
  ASSERT_TRUE(victim.hostile.say({.op = Op::kMessage}, Bytes(8, std::byte{3})));
  std::thread initiator([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    word->store(kAccessDone);
    victim.hostile.messages().nudge(0);
  });
  const auto begun = Clock::now();
  fi_cq_tagged_entry entry{};
  rusage before, after;
  ::getrusage(RUSAGE_SELF, &before);
  EXPECT_EQ(fi_cq_sread(victim.cq.get(), &entry, 1, nullptr, 10'000), 1);
  ::getrusage(RUSAGE_SELF, &after);
  const std::chrono::duration<double> waited = Clock::now() - begun;
  initiator.join();
  EXPECT_LT(waited.count(), 5);
  EXPECT_LT(cpu_seconds(after) - cpu_seconds(before), 0.9 * waited.count());
  EXPECT_EQ(in[0], 3);
}

TEST_F(FabricHostile, AnAccessThatIsNeverMadeEndsWithWhoWasToMakeIt) {
  Victim victim({.wait = FI_WAIT_FD});
  char buffer[64];
  ASSERT_EQ(victim.attempt([&] {
    return fi_read(victim.ep.get(), buffer, sizeof buffer, nullptr, victim.to_hostile, 0, 5,
                   Victim::number(1));
  }),
            0);
  // Its first message, the access, may have been taken back while it introduced itself.
  std::uint64_t waiting = kAccessWaiting;
  bool ours = false;
  ASSERT_TRUE(victim.hostile.look([&](const WireHeader&, const IncomingMessage&) {
    auto* word = victim.hostile.word();
    ours = word != nullptr && word->compare_exchange_strong(waiting, kAccessTheirs);
  }));
  fi_cq_tagged_entry entry{};
  if (ours) {
    EXPECT_EQ(fi_cq_sread(victim.cq.get(), &entry, 1, nullptr, 100), -FI_EAGAIN);
    EXPECT_EQ(fi_write(victim.ep.get(), buffer, sizeof buffer, nullptr, victim.to_hostile, 0, 5,
                       Victim::number(2)),
              0);
  }
  victim.hostile.messages().disconnect(0);
  EXPECT_TRUE(eventually([&] {
    victim.work();
    return victim.ends[1] == 1 && (!ours || victim.ends[2] == 1);
  }));
  EXPECT_EQ(victim.well, 0);
}

// It has taken the access, and stops there.
TEST_F(FabricHostile, AnAccessThatItsTargetIsAtForLongLetsUsSleep) {
  for (const bool by_descriptor : {false, true}) {
    Victim victim({.wait = FI_WAIT_FD});
    char buffer[64] = {};
    std::atomic<std::uint64_t>* word = nullptr;
    for (std::size_t n = 1; word == nullptr && n < 100; ++n) {
      victim.ends.clear();
      ASSERT_EQ(victim.attempt([&] {
        return fi_write(victim.ep.get(), buffer, sizeof buffer, nullptr, victim.to_hostile, 0, 5,
                        Victim::number(1));
      }),
                0);
      victim.work();
      if (victim.ends[1] > 0) continue;  // tried by a system call
      ASSERT_TRUE(victim.hostile.look([&](const WireHeader&, const IncomingMessage&) {
        std::uint64_t waiting = kAccessWaiting;
        word = victim.hostile.word();
        if (word != nullptr && !word->compare_exchange_strong(waiting, kAccessTheirs))
          word = nullptr;
      }));
      if (word == nullptr) victim.hostile.messages().drop();
      victim.idle(word == nullptr ? 500 : 0);
    }
    ASSERT_NE(word, nullptr);
    const auto sleep = [&](int ms) -> ssize_t {
      fi_cq_tagged_entry entry{};
      if (!by_descriptor) return fi_cq_sread(victim.cq.get(), &entry, 1, nullptr, ms);
      int fd = -1;
      EXPECT_EQ(fi_control(&victim.cq->fid, FI_GETWAIT, &fd), 0);
      fid_t const ids[] = {&victim.cq->fid};
      const auto end = Clock::now() + std::chrono::milliseconds(ms);
      while (Clock::now() < end) {
        const ssize_t n = fi_cq_read(victim.cq.get(), &entry, 1);
        if (n != -FI_EAGAIN) return n;
        pollfd wait{fd, POLLIN, 0};
        if (fi_trywait(victim.fabric.get(), const_cast<fid_t*>(ids), 1) == 0)
          (void)::poll(&wait, 1, ms);
      }
      return -FI_EAGAIN;
    };
    rusage before, after;
    ::getrusage(RUSAGE_SELF, &before);
    const auto from = Clock::now();
    EXPECT_EQ(sleep(700), -FI_EAGAIN);
    ::getrusage(RUSAGE_SELF, &after);
    const std::chrono::duration<double> slept = Clock::now() - from;
    EXPECT_LT(cpu_seconds(after) - cpu_seconds(before), slept.count() / 2);
    // It goes on, and tells nobody.
    std::thread target([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      word->store(kAccessDone);
    });
    const auto begun = Clock::now();
    EXPECT_EQ(sleep(10'000), 1);
    EXPECT_LT(Clock::now() - begun, std::chrono::seconds(5));
    target.join();
  }
}

TEST_F(FabricHostile, AnOperationThatCouldNotBeStartedHasNoEnd) {
  Victim victim;
  const fi_msg msg{nullptr, nullptr, 0, victim.to_hostile, Victim::number(1), 0};
  ASSERT_EQ(
      victim.attempt([&] { return fi_inject(victim.ep.get(), "full", 4, victim.to_hostile); }), 0);
  ssize_t rc;
  while ((rc = fi_inject(victim.ep.get(), "full", 4, victim.to_hostile)) == 0) {
  }
  ASSERT_EQ(rc, -FI_EAGAIN);
  ASSERT_TRUE(eventually([&] { return victim.hostile.messages().peek().ok(); }));
  // It goes, which the sender finds out in the middle of a call; that begins anew, or says so.
  victim.hostile.messages().disconnect(0);
  // for the own driver thread to learn of it
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const int well = victim.well;
  ASSERT_TRUE(eventually([&] {
    rc = fi_sendmsg(victim.ep.get(), &msg, FI_DELIVERY_COMPLETE);
    victim.idle();
    EXPECT_EQ(victim.ends[1], 0) << "after " << fi_strerror(static_cast<int>(-rc));
    return rc == 0;
  }));
  std::uint32_t id = 0;
  ASSERT_TRUE(victim.hostile.look(
      [&](const WireHeader& header, const IncomingMessage&) { id = header.id; }));
  ASSERT_TRUE(victim.hostile.say({.op = Op::kAck, .id = id}));
  victim.idle();
  EXPECT_EQ(victim.ends[1], 1);
  EXPECT_EQ(victim.well, well + 1);
}

// --- introductions -------------------------------------------------------------------------------

TEST_F(FabricHostile, APeerKeepsTheNameThatItHasGiven) {
  Victim victim;
  Two two;
  Hostile& hostile = victim.hostile;
  ASSERT_TRUE(hostile.connect(victim.port));
  ASSERT_TRUE(hostile.introduce(hostile.port()));
  ASSERT_TRUE(hostile.introduce(port_of(two.b.name())));
  ASSERT_TRUE(hostile.introduce(victim.port));
  ASSERT_TRUE(hostile.say({.op = Op::kHello}, Bytes(3)));
  Bytes body;
  append(body, Hello{.version = 99, .length = 7000});
  ASSERT_TRUE(hostile.say({.op = Op::kHello}, body));
  victim.idle();
  // What is meant for the endpoint whose name it has claimed goes to that endpoint.
  const fi_addr_t to_b = victim.insert(two.b.name());
  (void)two.b.insert(victim.name());
  char in[8] = {};
  ASSERT_EQ(fi_recv(two.b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  ASSERT_EQ(victim.attempt([&] { return fi_inject(victim.ep.get(), "for b!!", 8, to_b); }), 0);
  fi_cq_tagged_entry entry;
  ASSERT_TRUE(two.completes(two.b, &entry));
  EXPECT_STREQ(in, "for b!!");
  // And what is under way to it ends when it goes.
  const fi_msg msg{nullptr, nullptr, 0, victim.to_hostile, Victim::number(1), 0};
  ASSERT_EQ(victim.attempt([&] { return fi_sendmsg(victim.ep.get(), &msg, FI_DELIVERY_COMPLETE); }),
            0);
  ASSERT_TRUE(hostile.look([](const WireHeader& header, const IncomingMessage&) {
    EXPECT_EQ(header.op, Op::kMessage);
  }));
  hostile.take_all();
  hostile.messages().disconnect(0);
  EXPECT_TRUE(eventually([&] {
    victim.work();
    return victim.ends[1] > 0;
  }));
  EXPECT_EQ(victim.ends[1], 1);
  EXPECT_EQ(victim.well, 0);
}

// --- peers that ask for much and read nothing ----------------------------------------------------

struct Greed {
  const char* what;
  Op op;
  Op answer;
};

class FabricHostileGreed : public testing::TestWithParam<Greed> {
 protected:
  void SetUp() override { ::alarm(60); }
  void TearDown() override { ::alarm(0); }
};

INSTANTIATE_TEST_SUITE_P(, FabricHostileGreed,
                         testing::Values(Greed{"bytes", Op::kGet, Op::kGetReply},
                                         Greed{"values", Op::kAtomic, Op::kAtomicReply},
                                         Greed{"many_values", Op::kLongAtomic, Op::kAtomicReply},
                                         Greed{"acknowledgements", Op::kTagged, Op::kAck}),
                         [](const auto& it) { return it.param.what; });

TEST_P(FabricHostileGreed, IsNotListenedToUntilItTakesItsAnswers) {
  const Greed greed = GetParam();
  constexpr std::size_t kLong = 8 << 20;
  Victim victim;
  Hostile& hostile = victim.hostile;
  Two two;
  const fi_addr_t to_b = victim.insert(two.b.name());
  (void)two.b.insert(victim.name());
  std::vector<std::uint64_t> memory(kLong / 8, 0x1111);
  fid_mr* mr = nullptr;
  ASSERT_EQ(fi_mr_reg(victim.domain.get(), memory.data(), kLong, FI_REMOTE_READ | FI_REMOTE_WRITE,
                      0, 5, 0, &mr, nullptr),
            0);
  Object<fid_mr> region(mr);
  char in[8] = {};
  fi_cq_tagged_entry entry;
  ASSERT_EQ(victim.attempt([&] { return fi_tinject(victim.ep.get(), "hello!!", 8, to_b, 8); }), 0);
  ASSERT_EQ(fi_trecv(two.b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, 8, 0, nullptr), 0);
  ASSERT_TRUE(two.completes(two.b, &entry));
  ASSERT_TRUE(hostile.connect(victim.port));
  ASSERT_TRUE(hostile.introduce(hostile.port()));
  Bytes message;
  append(message, WireHeader{.op = greed.op,
                             .flags = greed.op == Op::kTagged ? kWantsAck : std::uint8_t{0},
                             .tag = 5,
                             .data = greed.op == Op::kLongAtomic ? kLong / 8 : 0});
  AtomicRequest request{0, greed.op == Op::kAtomic ? 1024u : 0u, FI_UINT64, FI_ATOMIC_READ, 1, 0};
  if (greed.op == Op::kGet) append(message, kAccessWaiting);
  if (greed.op == Op::kGet) append(message, GetRequest{8192});
  if (greed.op == Op::kAtomic || greed.op == Op::kLongAtomic) append(message, request);
  // As many as are taken, up to what would be much to keep.
  const std::size_t most = greed.op == Op::kTagged       ? 1'000'000
                           : greed.op == Op::kLongAtomic ? 50
                                                         : 50'000;
  ::malloc_trim(0);  // what others have used would be used again
  const std::size_t before = resident_bytes();
  std::size_t asked = 0, posted = 0;
  for (int in_vain = 0; asked < most && in_vain < 200;) {
    auto room = hostile.messages().reserve(0, message.size());
    if (room) {
      std::memcpy(room->data(), message.data(), message.size());
      hostile.messages().commit(0, message.size());
      ++asked;
      in_vain = 0;
      if (asked % 16 != 0) continue;
    } else {
      ASSERT_EQ(room.error().err, EAGAIN);
      ++in_vain;
    }
    // The program receives what comes.
    for (; greed.op == Op::kTagged && posted < asked; ++posted) {
      ASSERT_EQ(
          fi_trecv(victim.ep.get(), nullptr, 0, nullptr, FI_ADDR_UNSPEC, 5, 0, Victim::number(1)),
          0);
    }
    victim.work();
  }
  victim.idle();
  const std::size_t kept = resident_bytes() - before;
  EXPECT_TRUE(!kCountsMemory || kept < std::size_t{32} << 20)
      << kept << " bytes, " << asked << " asked";
  // Others are.
  ASSERT_EQ(fi_trecv(two.b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, 8, 0, nullptr), 0);
  ASSERT_EQ(victim.attempt([&] { return fi_tinject(victim.ep.get(), "honest!", 8, to_b, 8); }), 0);
  ASSERT_TRUE(two.completes(two.b, &entry));
  EXPECT_STREQ(in, "honest!");
  // And it gets all of them in the end.
  std::size_t answers = 0;
  EXPECT_TRUE(eventually([&] {
    for (; greed.op == Op::kTagged && posted < asked; ++posted)
      (void)fi_trecv(victim.ep.get(), nullptr, 0, nullptr, FI_ADDR_UNSPEC, 5, 0, Victim::number(1));
    victim.work();
    while (auto answer = hostile.messages().peek()) {
      WireHeader header;
      std::memcpy(&header, answer->bytes.data(), sizeof header);
      if (header.op == greed.answer && (header.flags & kMore) == 0) ++answers;
      hostile.messages().drop();
    }
    return answers >= asked;
  })) << answers
      << " of " << asked;
  EXPECT_EQ(answers, asked);
}

// --- offers that are taken back ------------------------------------------------------------------

// The sender of a message that has been claimed goes while it is received. That ends once, and no
// other message comes to its place.
TEST_F(FabricHostile, AClaimedMessageThatIsTakenBackEndsItsReceive) {
  Victim victim;
  Two two;
  const fi_addr_t to_b = two.a.insert(victim.name());
  (void)two.a.insert(two.b.name());
  std::vector<std::byte> offered(100'000);
  std::vector<char> in(offered.size());
  int broken = 0, whole = 0, gone = 0;
  for (int i = 0; i < 150; ++i) {
    victim.ends.clear();
    auto hostile = std::make_unique<Hostile>();
    hostile->work = [&] { victim.work(); };
    ASSERT_TRUE(hostile->connect(victim.port));
    ASSERT_TRUE(hostile->introduce(hostile->port()));
    Bytes header;
    append(header, WireHeader{.op = Op::kTagged, .tag = 9});
    ASSERT_TRUE(hostile->messages().post(0, header, offered, 1).ok());
    fi_msg_tagged msg{};
    msg.addr = FI_ADDR_UNSPEC;
    msg.tag = 9;
    msg.context = Victim::number(1);
    ASSERT_TRUE(eventually([&] {
      if (fi_trecvmsg(victim.ep.get(), &msg, FI_PEEK | FI_CLAIM) != 0) return false;
      fi_cq_tagged_entry entry;
      if (fi_cq_read(victim.cq.get(), &entry, 1) == 1) return true;
      fi_cq_err_entry error{};
      EXPECT_EQ(fi_cq_readerr(victim.cq.get(), &error, 0), 1);
      return false;
    }));
    std::atomic<bool> begun{false};
    std::thread leaver([&] {
      begun = true;
      hostile->messages().disconnect(0);
    });
    while (!begun) {
    }
    const auto moment = Clock::now() + std::chrono::nanoseconds(i * 100);
    while (Clock::now() < moment) {
    }
    iovec iov{in.data(), in.size()};
    msg.msg_iov = &iov;
    msg.iov_count = 1;
    const ssize_t rc = fi_trecvmsg(victim.ep.get(), &msg, FI_CLAIM);
    leaver.join();
    fi_cq_tagged_entry entry;
    fi_cq_err_entry error{};
    const ssize_t n = fi_cq_read(victim.cq.get(), &entry, 1);
    if (rc != 0) {
      EXPECT_EQ(rc, -FI_EINVAL);  // it had gone with its sender
      ++gone;
    } else if (n == -FI_EAVAIL) {
      EXPECT_EQ(fi_cq_readerr(victim.cq.get(), &error, 0), 1);
      EXPECT_EQ(error.op_context, Victim::number(1));
      ++broken;
    } else {
      ASSERT_EQ(n, 1) << i;
      EXPECT_EQ(entry.op_context, Victim::number(1));
      ++whole;
    }
    // Another of that tag is not for it.
    ASSERT_EQ(sent([&] { return fi_tinject(two.a.ep.get(), "another", 8, to_b, 9); }, two.a), 0);
    victim.idle(50);
    EXPECT_EQ(fi_cq_read(victim.cq.get(), &entry, 1), -FI_EAGAIN);
    ASSERT_EQ(fi_trecv(victim.ep.get(), in.data(), in.size(), nullptr, FI_ADDR_UNSPEC, 9, 0,
                       Victim::number(2)),
              0);
    ASSERT_TRUE(eventually([&] {
      victim.work();
      return victim.ends[2] == 1;
    }));
    EXPECT_STREQ(in.data(), "another");
  }
  EXPECT_EQ(broken + whole + gone, 150);
}

// --- everything ----------------------------------------------------------------------------------

TEST_F(FabricHostile, NonsenseOfEveryKindIsTakenOutOfTheWay) {
  Victim victim;
  Two two;
  const fi_addr_t to_b = victim.insert(two.b.name());
  (void)two.b.insert(victim.name());
  // A region between two that nobody may reach.
  std::vector<std::uint64_t> memory(3 * 1024, 0x1111);
  fid_mr* mr = nullptr;
  ASSERT_EQ(fi_mr_reg(victim.domain.get(), &memory[1024], 8192, FI_REMOTE_READ | FI_REMOTE_WRITE, 0,
                      5, 0, &mr, nullptr),
            0);
  Object<fid_mr> region(mr);
  std::mt19937_64 random(20261122);
  const auto any = [&](std::initializer_list<std::uint64_t> of) {
    const auto at = random() % (of.size() + 1);
    return at == of.size() ? random() : of.begin()[at];
  };
  for (int peer = 0; peer < 3; ++peer) {
    Hostile hostile;
    hostile.work = [&] { victim.work(); };
    ASSERT_TRUE(hostile.connect(victim.port));
    if (peer > 0) {
      ASSERT_TRUE(hostile.introduce(hostile.port()));
    }
    std::vector<Bytes> offered(64);
    for (int i = 0; i < 4000; ++i) {
      WireHeader header;
      header.op = static_cast<Op>(random() % 17);
      if (header.op == Op::kHello && peer == 0) continue;
      header.flags = static_cast<std::uint8_t>(random() % 9);
      header.context = static_cast<std::uint16_t>(any({0, 0, 0, 1}));
      header.id = static_cast<std::uint32_t>(any({0, 1, 2, 3}));
      header.tag = any({5, 5, 0, 6});
      header.data = any({0, 8191, 8192, 8193, 1ull << 31, ~0ull, ~7ull});
      Bytes body;
      switch (header.op) {
        case Op::kPut:
        case Op::kGet:
          append(body, static_cast<AccessWord>(kAccessWaiting + 3 * (random() % 2)));
          append(body, GetRequest{any({0, 1, 8192, 8193, ~0ull})});
          break;
        case Op::kAtomic:
        case Op::kLongAtomic:
          append(body, AtomicRequest{any({0, 8191, 8192, ~7ull}),
                                     static_cast<std::uint32_t>(any({0, 1, 4, 5, 1024})),
                                     static_cast<std::uint8_t>(random() % 18),
                                     static_cast<std::uint8_t>(random() % 22),
                                     static_cast<std::uint8_t>(random() % 4), 0});
          for (std::uint64_t n = random() % 5; n > 0; --n)
            append(body,
                   AtomicTarget{any({0, 8192, ~0ull}), any({0, 1, 1024, ~0ull}), any({5, 6})});
          break;
        case Op::kRmaDone: append(body, RmaNotice{any({0}), any({0}), 1, 0}); break;
        default: break;
      }
      body.resize(random() % 4 == 0 ? random() % (body.size() + 1)
                                    : body.size() + random() % 3 * 8);
      if (random() % 8 != 0) {
        ASSERT_TRUE(hostile.say(header, body)) << i;
      } else {
        Bytes& bytes = offered[i % offered.size()];
        if (bytes.empty()) bytes.resize(20'000 + random() % 20'000);
        const std::size_t head = random() % (body.size() + 1);
        Bytes all;
        append(all, header);
        all.insert(all.end(), body.begin(),
                   body.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(head, 40)));
        (void)hostile.messages().post(0, all, bytes, 1);
      }
      if (i % 16 != 0) continue;
      victim.work();
      hostile.take_all();
      SendCompletion done[16];
      (void)hostile.messages().poll_sent(done);
      // Meanwhile a conversation of honest people goes on.
      if (i % 160 != 0) continue;
      char in[8] = {};
      ASSERT_EQ(fi_trecv(two.b.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, 8, 0, nullptr), 0);
      ASSERT_EQ(victim.attempt([&] { return fi_tinject(victim.ep.get(), "honest!", 8, to_b, 8); }),
                0);
      fi_cq_tagged_entry entry;
      ASSERT_TRUE(two.completes(two.b, &entry));
      ASSERT_STREQ(in, "honest!");
    }
    victim.idle();
  }
  victim.idle();
  for (std::size_t i = 0; i < 1024; ++i) {
    ASSERT_EQ(memory[i], 0x1111u);
    ASSERT_EQ(memory[2048 + i], 0x1111u);
  }
}

TEST_F(FabricHostile, EveryOperationEndsOnceWhateverItsPeerAnswers) {
  std::mt19937_64 random(7);
  Victim victim;
  std::map<std::size_t, bool> started;
  std::vector<char> buffer(1 << 16);
  std::size_t next = 1;
  for (int i = 0; i < 3000; ++i) {
    const std::size_t n = next++;
    ssize_t rc = 0;
    fid_ep* const ep = victim.ep.get();
    const fi_addr_t to = victim.to_hostile;
    void* const number = Victim::number(n);
    const iovec piece{buffer.data(), 32};
    const fi_msg msg{&piece, nullptr, 1, to, number, 0};
    switch (random() % 6) {
      case 0: rc = fi_read(ep, buffer.data(), 64, nullptr, to, 0, 5, number); break;
      case 1: rc = fi_write(ep, buffer.data(), 64, nullptr, to, 0, 5, number); break;
      case 2: rc = fi_sendmsg(ep, &msg, FI_DELIVERY_COMPLETE); break;
      case 3:
        rc = fi_fetch_atomic(ep, buffer.data(), 4, nullptr, buffer.data() + 64, nullptr, to, 0, 5,
                             FI_UINT64, FI_SUM, number);
        break;
      case 4: rc = fi_send(ep, buffer.data(), buffer.size(), nullptr, to, number); break;
      case 5:
        rc = fi_atomic(ep, buffer.data(), 4000, nullptr, to, 0, 5, FI_UINT64, FI_SUM, number);
        break;
    }
    if (rc == 0) started[n] = true;
    if (rc != 0) {
      ASSERT_EQ(rc, -FI_EAGAIN);
    }
    if (random() % 2 == 0) victim.work();
    auto message = victim.hostile.messages().peek();
    if (message) {
      WireHeader header{};
      const auto head = message->offered ? message->header : message->bytes;
      if (head.size() >= sizeof header) std::memcpy(&header, head.data(), sizeof header);
      if (header.op == Op::kHello) {
        victim.hostile.messages().drop();
        continue;
      }
      std::uint64_t waiting = kAccessWaiting;
      auto* word = header.op == Op::kPut || header.op == Op::kGet ? victim.hostile.word() : nullptr;
      const bool take = word != nullptr && word->compare_exchange_strong(waiting, random() % 7);
      constexpr Op kOps[] = {Op::kAck, Op::kAtomicReply, Op::kGetReply};
      for (std::uint64_t times = random() % 4; times > 0; --times) {
        Bytes body;
        const Op op = kOps[random() % 3];
        if (op == Op::kAtomicReply)
          append(body, AtomicReply{static_cast<std::int32_t>(random() % 3) - 1, 0});
        if (op == Op::kGetReply) body.resize(random() % 2 == 0 ? 64 : random() % 100);
        (void)victim.hostile.say(
            {.op = op,
             .flags = static_cast<std::uint8_t>(random() % 8),
             .id = random() % 4 == 0 ? static_cast<std::uint32_t>(random() % 8) : header.id,
             .tag = random() % 64},
            body);
      }
      if (random() % 2 == 0) victim.work();
      if (take && random() % 2 == 0) word->store(random() % 7);
      if (random() % 4 == 0) victim.work();
      // An access in its own hands stays in front for a while.
      if (random() % 3 != 0) victim.hostile.messages().drop();
    }
    SendCompletion done[4];
    (void)victim.hostile.messages().poll_sent(done);
  }
  victim.hostile.take_all();
  victim.idle();
  victim.hostile.messages().disconnect(0);
  EXPECT_TRUE(eventually([&] {
    victim.work();
    for (const auto& [n, yes] : started) {
      if (victim.ends[n] == 0) return false;
    }
    return true;
  }));
  std::size_t twice = 0, never = 0, unasked = 0;
  for (const auto& [n, times] : victim.ends) {
    if (times > 1) ++twice;
    if (times > 0 && !started.contains(n)) ++unasked;
    if (times == 0 && started.contains(n)) ++never;
  }
  EXPECT_EQ(twice, 0u);
  EXPECT_EQ(never, 0u);
  EXPECT_EQ(unasked, 0u);
  EXPECT_GT(started.size(), 500u);
}

// --- connections ---------------------------------------------------------------------------------

/// A message endpoint that hostile peers are about to connect with, or to talk into.
class Connecting {
 public:
  explicit Connecting(fi_info* with) {
    MUST(fi_fabric(with->fabric_attr, &out.fabric, nullptr));
    fabric.reset(out.fabric);
    fi_eq_attr eq_attr{};
    eq_attr.wait_obj = FI_WAIT_FD;
    MUST(fi_eq_open(fabric.get(), &eq_attr, &out.eq, nullptr));
    eq.reset(out.eq);
    MUST(fi_domain(fabric.get(), with, &out.domain, nullptr));
    domain.reset(out.domain);
    fi_cq_attr cq_attr{};
    cq_attr.format = FI_CQ_FORMAT_TAGGED;
    MUST(fi_cq_open(domain.get(), &cq_attr, &out.cq, nullptr));
    cq.reset(out.cq);
    MUST(fi_endpoint(domain.get(), with, &out.ep, nullptr));
    ep.reset(out.ep);
    MUST(fi_ep_bind(ep.get(), &eq->fid, 0));
    MUST(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV));
    MUST(fi_enable(ep.get()));
    MUST(fi_mr_reg(domain.get(), memory, sizeof memory, FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 5, 0,
                   &out.mr, nullptr));
    mr.reset(out.mr);
  }
  /// The next event, or -1.
  int event(int timeout_ms = 0) {
    std::uint32_t what = 0;
    fi_eq_cm_entry entry[128];
    const ssize_t n = fi_eq_sread(eq.get(), &what, entry, sizeof entry, timeout_ms, 0);
    if (n != -FI_EAVAIL) return n < 0 ? -1 : static_cast<int>(what);
    fi_eq_err_entry error{};
    (void)fi_eq_readerr(eq.get(), &error, 0);
    return -1000 - error.err;
  }
  /// Completions that there are, after some time. At most one receive each.
  int received(int times = 300) {
    int n = 0;
    for (int i = 0; i < times; ++i) {
      fi_cq_tagged_entry entry;
      n += fi_cq_read(cq.get(), &entry, 1) == 1;
    }
    return n;
  }
  void post() {
    ASSERT_EQ(fi_recv(ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    ASSERT_EQ(fi_trecv(ep.get(), buffer, sizeof buffer, nullptr, FI_ADDR_UNSPEC, 0, ~0ull, nullptr),
              0);
  }

  struct {
    fid_fabric* fabric;
    fid_eq* eq;
    fid_domain* domain;
    fid_cq* cq;
    fid_ep* ep;
    fid_mr* mr;
  } out{};
  std::uint64_t memory[64] = {};
  char buffer[64] = {};
  Object<fid_fabric> fabric;
  Object<fid_eq> eq;
  Object<fid_domain> domain;
  Object<fid_cq> cq;
  Object<fid_mr> mr;
  Object<fid_ep> ep;
};

// What a stranger tries, once it is let in. It may be cut off in the middle.
void try_everything(Hostile& hostile) {
  for (const Op op : {Op::kMessage, Op::kTagged, Op::kAck, Op::kRmaDone, Op::kReject, Op::kConnect,
                      Op::kAccept, Op::kMessage})
    if (!hostile.say({.op = op, .tag = 5}, Bytes(16))) return;
  Bytes put;
  append(put, kAccessWaiting);
  put.resize(16, std::byte{1});
  if (!hostile.say({.op = Op::kPut, .tag = 5}, put)) return;
  Bytes add;
  append(add, AtomicRequest{.count = 1, .type = FI_UINT64, .op = FI_SUM});
  append(add, std::uint64_t{7});
  (void)hostile.say({.op = Op::kAtomic, .tag = 5}, add);
}

TEST_F(FabricHostile, AMessageEndpointHearsItsConnectionAlone) {
  Hostile passive, granter, stranger, impostor;
  Info info = get_info(make_hints(FI_EP_MSG), "127.0.0.1", std::to_string(passive.port()).c_str());
  ASSERT_NE(info, nullptr);
  Connecting victim(info.get());
  victim.post();
  for (Hostile* h : {&passive, &granter, &stranger, &impostor}) {
    h->work = [&] {
      EXPECT_EQ(victim.received(1), 0);
      EXPECT_EQ(victim.event(), -1);
    };
  }
  std::vector<char> name(16);
  std::size_t length = name.size();
  MUST(fi_getname(&victim.ep->fid, name.data(), &length));
  const std::uint16_t port = port_of(name);
  const auto intrude = [&](Hostile& who, std::uint16_t as) {
    if (who.connect(port) && who.introduce(as)) try_everything(who);
    for (int i = 0; i < 50; ++i) EXPECT_EQ(victim.received(10), 0);
    EXPECT_EQ(victim.event(), -1);
    EXPECT_EQ(victim.memory[0], 0u);
  };
  // Nobody has been asked yet.
  intrude(stranger, stranger.port());
  ASSERT_EQ(fi_connect(victim.ep.get(), info->dest_addr, nullptr, 0), 0);
  std::uint64_t attempt = 0;
  ASSERT_TRUE(passive.look([&](const WireHeader& header, const IncomingMessage&) {
    EXPECT_EQ(header.op, Op::kConnect);
    attempt = header.tag;
  }));
  passive.take_all();
  // A peer that is asked may say yes or no, and nothing else; others not even that.
  try_everything(passive);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(victim.received(10), 0);
  intrude(stranger, stranger.port());
  intrude(stranger, passive.port());
  ASSERT_TRUE(impostor.connect(port));
  // is there first, with the name of the later endpoint
  ASSERT_TRUE(impostor.introduce(granter.port()));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(victim.received(10), 0);
  ASSERT_TRUE(granter.connect(port));
  ASSERT_TRUE(granter.introduce(granter.port()));
  ASSERT_TRUE(granter.say({.op = Op::kAccept, .tag = attempt}));
  EXPECT_TRUE(eventually([&] {
    victim.received(1);
    return victim.event() == FI_CONNECTED;
  }));
  try_everything(impostor);
  intrude(stranger, stranger.port());
  intrude(stranger, granter.port());
  intrude(passive, passive.port());
  ASSERT_EQ(fi_inject(victim.ep.get(), "for the granter", 16, FI_ADDR_UNSPEC), 0);
  granter.work = [&] { victim.received(1); };
  ASSERT_TRUE(granter.look([](const WireHeader& header, const IncomingMessage& message) {
    EXPECT_EQ(header.op, Op::kMessage);
    EXPECT_EQ(message.size, sizeof header + 16);
  }));
  ASSERT_TRUE(granter.say({.op = Op::kMessage}, Bytes(16)));
  ASSERT_TRUE(granter.say({.op = Op::kTagged}, Bytes(16)));
  int received = 0;
  EXPECT_TRUE(eventually([&] { return (received += victim.received(10)) == 2; }));
}

TEST_F(FabricHostile, AnEndpointIsToldItsOwnNameByItselfAlone) {
  Victim victim;
  Hostile& hostile = victim.hostile;
  ASSERT_TRUE(hostile.connect(victim.port));
  ASSERT_TRUE(hostile.introduce(victim.port));
  victim.idle();
  const fi_addr_t to_self = victim.insert(victim.name());
  char in[16] = {};
  ASSERT_EQ(fi_recv(victim.ep.get(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, Victim::number(1)), 0);
  ASSERT_EQ(victim.attempt([&] { return fi_inject(victim.ep.get(), "for myself", 11, to_self); }),
            0);
  EXPECT_TRUE(eventually([&] {
    victim.work();
    return victim.ends[1] == 1;
  }));
  EXPECT_STREQ(in, "for myself");
}

/// A passive endpoint, and where it reports requests.
struct Listener {
  Listener() {
    info = get_info(make_hints(FI_EP_MSG), "127.0.0.1", "0", FI_SOURCE);
    if (!info) MUST(-FI_ENODATA);
    fid_fabric* f;
    MUST(fi_fabric(info->fabric_attr, &f, nullptr));
    fabric.reset(f);
    fi_eq_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    fid_eq* e;
    MUST(fi_eq_open(f, &attr, &e, nullptr));
    eq.reset(e);
    fid_pep* p;
    MUST(fi_passive_ep(f, info.get(), &p, nullptr));
    pep.reset(p);
    MUST(fi_pep_bind(p, &e->fid, 0));
    MUST(fi_listen(p));
    name.resize(16);
    std::size_t length = name.size();
    MUST(fi_getname(&p->fid, name.data(), &length));
  }
  /// Reads a request, if there is one within some time, and rejects it.
  bool reject_one(int timeout_ms) {
    std::uint32_t event;
    fi_eq_cm_entry entry[128];
    const ssize_t n = fi_eq_sread(eq.get(), &event, entry, sizeof entry, timeout_ms, 0);
    if (n <= 0 || event != FI_CONNREQ) return false;
    EXPECT_EQ(fi_reject(pep.get(), entry[0].info->handle, nullptr, 0), 0);
    fi_freeinfo(entry[0].info);
    return true;
  }
  Info info;
  Object<fid_fabric> fabric;
  Object<fid_eq> eq;
  Object<fid_pep> pep;
  std::vector<char> name;
};

TEST_F(FabricHostile, APassiveEndpointKeepsAsManyRequestsAsItsBacklogSays) {
  Listener listener;
  int backlog = 4;
  ASSERT_EQ(fi_control(&listener.pep->fid, FI_BACKLOG, &backlog), 0);
  std::uint32_t event;
  fi_eq_cm_entry entry[128];
  const auto work = [&] {
    (void)fi_eq_read(listener.eq.get(), &event, entry, sizeof entry, FI_PEEK);
  };
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<Hostile>> crowd;
    for (int i = 0; i < 10; ++i) {
      crowd.push_back(std::make_unique<Hostile>());
      Hostile& hostile = *crowd.back();
      hostile.work = work;
      ASSERT_TRUE(hostile.connect(port_of(listener.name)));
      ASSERT_TRUE(hostile.introduce(hostile.port()));
      // More than once does not help.
      for (int n = 0; n < 20; ++n)
        if (!hostile.say({.op = Op::kConnect}, Bytes(kMostConnectionData))) break;
    }
    std::size_t refused = 0;
    EXPECT_TRUE(eventually([&] {
      work();
      PeerIndex gone;
      for (auto& hostile : crowd) {
        (void)hostile->messages().peek();
        while (hostile->messages().take_departed(&gone)) ++refused;
      }
      return refused >= 6;
    }));
    // Room for others as soon as the program has read them.
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(listener.reject_one(5'000)) << i;
    EXPECT_FALSE(listener.reject_one(50));
    EXPECT_EQ(refused, 6u);
  }
}

std::size_t heap_bytes() { return ::mallinfo2().uordblks; }

TEST_F(FabricHostile, RequestsThatNobodyHasReadGoWithTheirPassiveEndpoint) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's heap is another";
#endif
  const auto life = [](bool asks) {
    Hostile hostile;
    Listener listener;
    std::uint32_t event;
    fi_eq_cm_entry entry[128];
    ASSERT_TRUE(hostile.connect(port_of(listener.name)));
    ASSERT_TRUE(hostile.introduce(hostile.port()));
    ASSERT_TRUE(hostile.say({.op = asks ? Op::kConnect : Op::kAck}, Bytes(kMostConnectionData)));
    for (int i = 0; asks && i < 100; ++i) {
      if (fi_eq_sread(listener.eq.get(), &event, entry, sizeof entry, 100, FI_PEEK) > 0) return;
    }
    ASSERT_FALSE(asks);
  };
  std::size_t grown[2] = {};
  for (int i = 0; i < 3; ++i) life(i % 2 == 0);
  for (const bool asks : {false, true}) {
    const std::size_t before = heap_bytes();
    for (int i = 0; i < 40; ++i) life(asks);
    const std::size_t after = heap_bytes();
    grown[asks] = after > before ? after - before : 0;
  }
  EXPECT_LT(grown[true], grown[false] + 40 * sizeof(fi_info));
}

TEST_F(FabricHostile, APassiveEndpointHearsOfThoseAloneWhoAskForAConnection) {
  Listener listener;
  fid_eq* const e = listener.eq.get();
  fid_pep* const p = listener.pep.get();
  const auto& name = listener.name;
  std::mt19937_64 random(3);
  std::vector<std::byte> offered(40'000);
  for (int peer = 0; peer < 2; ++peer) {
    Hostile hostile;
    std::uint32_t event;
    fi_eq_cm_entry entry[128];
    hostile.work = [&] { (void)fi_eq_read(e, &event, entry, sizeof entry, 0); };
    ASSERT_TRUE(hostile.connect(port_of(name)));
    for (int i = 0; i < 500; ++i) {
      auto op = static_cast<Op>(random() % 17);
      if (peer == 0 ? op == Op::kHello : op == Op::kConnect) continue;
      ASSERT_TRUE(hostile.say({.op = op}, Bytes(random() % 60)));
      if (i % 50 == 0) (void)hostile.messages().post(0, Bytes(24, std::byte{11}), offered, 1);
    }
    EXPECT_EQ(fi_eq_sread(e, &event, entry, sizeof entry, 20, 0), -FI_EAGAIN);
    if (peer == 0) continue;
    ASSERT_TRUE(hostile.introduce(hostile.port()));
    ASSERT_TRUE(hostile.say({.op = Op::kConnect}, Bytes(kMostConnectionData + 1)));
    ASSERT_TRUE(hostile.say({.op = Op::kConnect}, Bytes(kMostConnectionData)));
    ASSERT_EQ(fi_eq_sread(e, &event, entry, sizeof entry, 5'000, 0),
              static_cast<ssize_t>(sizeof(fi_eq_cm_entry) + kMostConnectionData));
    EXPECT_EQ(event, static_cast<std::uint32_t>(FI_CONNREQ));
    EXPECT_EQ(fi_reject(p, entry[0].info->handle, nullptr, 0), 0);
    fi_freeinfo(entry[0].info);
    EXPECT_EQ(fi_eq_sread(e, &event, entry, sizeof entry, 20, 0), -FI_EAGAIN);
  }
}

}  // namespace
}  // namespace clan::test
