// A peer that knows how the library talks and means no good: the server drops it and goes on with
// the others.
#include <clan/message.h>

#include <atomic>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "meeting.h"
#include "peers.h"

namespace clan {
namespace {

using namespace test;

class Hostile : public testing::Test {
 protected:
  void SetUp() override {
    if (!preloaded()) GTEST_SKIP() << "the server has not the library";
    asking_ = by_tcp(server_.tcp(), rpc::kVersion, rpc::kProgram);
    good_ = by_tcp(server_.tcp());
    ASSERT_TRUE(asking_ && good_);
    warm_up(good_.get());
    context_.emplace(std::move(*Context::create()));
  }

  /// An endpoint that has met the server and not said anything.
  MessageEndpoint meet(PeerIndex* to, std::uint64_t* token) {
    rpc::MeetArguments arguments;
    rpc::MeetResults results;
    EXPECT_EQ(clnt_call(asking_.get(), rpc::kMeet, xdr_of(xdr_meeting), &arguments, xdr_of(xdr_met),
                        &results, kLong),
              RPC_SUCCESS);
    EXPECT_EQ(results.status, 0u);
    auto endpoint = MessageEndpoint::create(*context_);
    auto peer = endpoint->connect(results.address, 5000);
    EXPECT_TRUE(peer.ok());
    *to = *peer;
    *token = results.token;
    return std::move(*endpoint);
  }

  /// As meet(), and welcome.
  MessageEndpoint welcome(PeerIndex* to) {
    rpc::Hello hello;
    MessageEndpoint endpoint = meet(to, &hello.token);
    EXPECT_TRUE(endpoint.send(*to, std::as_bytes(std::span(&hello, 1)), 5000).ok());
    std::byte answer[64];
    auto got = endpoint.recv(answer, 5000);
    EXPECT_TRUE(got.ok());
    return endpoint;
  }

  void expect_dropped_and_others_served(MessageEndpoint& endpoint) {
    std::byte buffer[4096];
    const auto got = endpoint.recv(buffer, 10'000);
    EXPECT_FALSE(got.ok());
    EXPECT_NE(got.error().err, ETIMEDOUT);
    for (int i = 0; i < 20; ++i) {
      const int* negated = negate_2(&i, good_.get());
      ASSERT_NE(negated, nullptr);
      EXPECT_EQ(*negated, -i);
    }
    EXPECT_GT(page_of(server_.pid())->hostile.load(), 0u);
  }

  Server server_{{"tcp"}};
  Handle asking_, good_;
  std::optional<Context> context_;
};

/// A first fragment of a call of ECHO whose argument is to have `length` bytes, `here` of which are
/// in it.
std::vector<std::byte> first_fragment(std::uint32_t length, std::size_t here) {
  struct {
    rpc::CallHead head;
    rpc::Caller caller;
    std::uint32_t length;
  } front;
  front.head.go_on = rpc::kFollows;
  front.head.new_caller = 1;
  front.head.xid = 77;
  front.head.proc = ECHO;
  front.caller.prog = EVERY;
  front.caller.vers = EVERY_NEW;
  front.length = htonl(length);
  std::vector<std::byte> bytes(sizeof front + here);
  std::memcpy(bytes.data(), &front, sizeof front);
  return bytes;
}

std::vector<std::byte> next_fragment(rpc::GoOn go_on, std::size_t size, std::uint32_t xid = 77) {
  rpc::ReplyHead head;
  head.kind = rpc::kMore;
  head.go_on = go_on;
  head.xid = xid;
  std::vector<std::byte> bytes(sizeof head + size);
  std::memcpy(bytes.data(), &head, sizeof head);
  return bytes;
}

TEST_F(Hostile, AWrongTokenIsNotWelcome) {
  PeerIndex to = 0;
  rpc::Hello hello;
  MessageEndpoint endpoint = meet(&to, &hello.token);
  hello.token ^= 1;
  ASSERT_TRUE(endpoint.send(to, std::as_bytes(std::span(&hello, 1)), 5000).ok());
  expect_dropped_and_others_served(endpoint);
}

// Its server_ is another one, that says what it has to say where the test reads it.
TEST_F(Hostile, NonsenseAndRepliesThatNobodyReadsAreToldOnceInAWhile) {
  setenv("CLAN_LOG", "warn", 1);
  testing::internal::CaptureStderr();
  Server loud({"tcp"});
  Handle asking = by_tcp(loud.tcp(), rpc::kVersion, rpc::kProgram), good = by_tcp(loud.tcp());
  asking_.swap(asking);
  for (int i = 0; i < 5; ++i) {
    PeerIndex to = 0;
    MessageEndpoint endpoint = welcome(&to);
    EXPECT_TRUE(endpoint.send(to, std::vector<std::byte>(3), 5000).ok());
    EXPECT_FALSE(endpoint.recv(std::span<std::byte>(), 10'000).ok());
  }
  for (int i = 0; i < 2; ++i) {
    PeerIndex to = 0;
    MessageEndpoint endpoint = welcome(&to);
    const int pieces = 400;  // of 8000 bytes: more than a ring holds
    ASSERT_TRUE(endpoint.send(to, first_fragment(8000 * pieces, 8000), 5000).ok());
    for (int n = 1; n < pieces; ++n) {
      const auto more = next_fragment(n + 1 < pieces ? rpc::kFollows : rpc::kLast, 8000);
      ASSERT_TRUE(endpoint.send(to, more, 10'000).ok());
    }
    while (!endpoint.has_gone(to)) usleep(10'000);
  }
  int value = 5, result = 0;
  EXPECT_EQ(clnt_call(good.get(), NEGATE, xdr_of(xdr_int), &value, xdr_of(xdr_int), &result, kLong),
            RPC_SUCCESS);
  const std::string said = testing::internal::GetCapturedStderr();
  for (const char* line : {"makes no sense", "does not read its replies"}) {
    const std::size_t at = said.find(line);
    ASSERT_NE(at, std::string::npos) << said;
    EXPECT_EQ(said.find(line, at + 1), std::string::npos) << said;
  }
}

TEST_F(Hostile, AnotherVersionIsRefusedAndItsCallsGoByTheSocket) {
  rpc::MeetArguments arguments;
  arguments.abi = rpc::kAbi + 1;
  rpc::MeetResults results;
  ASSERT_EQ(clnt_call(asking_.get(), rpc::kMeet, xdr_of(xdr_meeting), &arguments, xdr_of(xdr_met),
                      &results, kLong),
            RPC_SUCCESS);
  EXPECT_EQ(results.status, static_cast<std::uint32_t>(EPROTONOSUPPORT));
  EXPECT_EQ(results.token, 0u);
  // One that says so only afterwards.
  PeerIndex to = 0;
  rpc::Hello hello;
  MessageEndpoint endpoint = meet(&to, &hello.token);
  hello.abi = rpc::kAbi + 1;
  ASSERT_TRUE(endpoint.send(to, std::as_bytes(std::span(&hello, 1)), 5000).ok());
  expect_dropped_and_others_served(endpoint);
}

/// Pieces of memory that a process shares with others.
std::size_t shared_mappings(pid_t pid) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  std::size_t shared = 0;
  for (std::string line; std::getline(maps, line);) {
    const std::size_t rights = line.find(' ');
    if (rights != std::string::npos && line.size() > rights + 4 && line[rights + 4] == 's')
      ++shared;
  }
  return shared;
}

TEST_F(Hostile, ClientsThatGoWithoutAWordLeaveNothing) {
  PeerIndex to = 0;
  std::uint64_t token = 0;
  const int one = 1;
  std::size_t before = 0;
  for (int i = 0; i < 300; ++i) {
    context_.emplace(std::move(*Context::create()));  // as of a process of its own
    (void)meet(&to, &token);
    ASSERT_NE(negate_2(const_cast<int*>(&one), good_.get()), nullptr);
    if (i == 50) before = shared_mappings(server_.pid());
  }
  for (int i = 0; i < 1000 && shared_mappings(server_.pid()) > before + 20; ++i) {
    usleep(10'000);  // the last ones may be going
    ASSERT_NE(negate_2(const_cast<int*>(&one), good_.get()), nullptr);
  }
  EXPECT_LE(shared_mappings(server_.pid()), before + 20);
}

TEST_F(Hostile, ACallBeforeHelloIsNotServed) {
  PeerIndex to = 0;
  std::uint64_t token = 0;
  MessageEndpoint endpoint = meet(&to, &token);
  rpc::CallHead head;
  ASSERT_TRUE(endpoint.send(to, std::as_bytes(std::span(&head, 1)), 5000).ok());
  expect_dropped_and_others_served(endpoint);
}

TEST_F(Hostile, HeadsThatMakeNoSenseEndTheConnection) {
  struct Long {
    rpc::CallHead head;
    rpc::Caller caller;
  } message;
  for (const std::uint32_t length : {401u, 0x7fffffffu, 0xffffffffu, 8u}) {
    PeerIndex to = 0;
    MessageEndpoint endpoint = welcome(&to);
    message.head.new_caller = 1;
    message.caller.length = length;  // more than a credential may have, or than there is
    ASSERT_TRUE(endpoint.send(to, std::as_bytes(std::span(&message, 1)), 5000).ok());
    expect_dropped_and_others_served(endpoint);
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{15}}) {
    PeerIndex to = 0;
    MessageEndpoint endpoint = welcome(&to);
    ASSERT_TRUE(endpoint.send(to, std::as_bytes(std::span(&message, 1)).first(size), 5000).ok());
    expect_dropped_and_others_served(endpoint);
  }
}

// libtirpc's part in the server would take them for what has come by the socket.
TEST_F(Hostile, ACallerOfAFlavourThatIsNotCarriedEndsTheConnection) {
  struct {
    rpc::CallHead head;
    rpc::Caller caller;
  } message;
  message.head.new_caller = 1;
  message.caller.prog = EVERY;
  message.caller.vers = EVERY_NEW;
  for (const std::int32_t flavor : {RPCSEC_GSS, AUTH_DES, -1}) {
    PeerIndex to = 0;
    MessageEndpoint endpoint = welcome(&to);
    message.caller.flavor = flavor;
    ASSERT_TRUE(endpoint.send(to, std::as_bytes(std::span(&message, 1)), 5000).ok());
    expect_dropped_and_others_served(endpoint);
  }
}

TEST_F(Hostile, ACallWithoutACallerEndsTheConnection) {
  PeerIndex to = 0;
  MessageEndpoint endpoint = welcome(&to);
  rpc::CallHead head;
  ASSERT_TRUE(endpoint.send(to, std::as_bytes(std::span(&head, 1)), 5000).ok());
  expect_dropped_and_others_served(endpoint);
}

TEST_F(Hostile, FragmentsThatMakeNoSenseEndTheConnection) {
  const auto odd = static_cast<rpc::GoOn>(9);
  for (const auto& next :
       {next_fragment(rpc::kFollows, 0), next_fragment(odd, 100),
        next_fragment(rpc::kLast, 100, 78), std::vector<std::byte>(3), first_fragment(100, 100)}) {
    PeerIndex to = 0;
    MessageEndpoint endpoint = welcome(&to);
    ASSERT_TRUE(endpoint.send(to, first_fragment(100'000, 1000), 5000).ok());
    ASSERT_TRUE(endpoint.send(to, next, 5000).ok());
    expect_dropped_and_others_served(endpoint);
  }
  // One that goes on with nothing.
  PeerIndex to = 0;
  MessageEndpoint endpoint = welcome(&to);
  ASSERT_TRUE(endpoint.send(to, next_fragment(rpc::kLast, 100), 5000).ok());
  expect_dropped_and_others_served(endpoint);
}

TEST_F(Hostile, ArgumentsThatAreLongerThanTheirMessageAreGarbage) {
  PeerIndex to = 0;
  MessageEndpoint endpoint = welcome(&to);
  std::byte answer[256];
  for (const rpc::GoOn end : {rpc::kLast, rpc::kGivenUp}) {
    ASSERT_TRUE(endpoint.send(to, first_fragment(100'000, 1000), 5000).ok());
    ASSERT_TRUE(endpoint.send(to, next_fragment(rpc::kFollows, 1000), 5000).ok());
    ASSERT_TRUE(endpoint.send(to, next_fragment(end, 1000), 5000).ok());
    auto got = endpoint.recv(answer, 5000);
    ASSERT_TRUE(got.ok());
    rpc::ReplyHead head;
    std::memcpy(&head, answer, sizeof head);
    EXPECT_EQ(head.kind, rpc::kReplyFull);  // GARBAGE_ARGS
  }
  // What is left of one that was refused early is passed over.
  ASSERT_TRUE(endpoint.send(to, first_fragment(0xfffffff0u, 1000), 5000).ok());
  for (int i = 0; i < 300; ++i)
    ASSERT_TRUE(endpoint.send(to, next_fragment(rpc::kFollows, 4000), 5000).ok());
  ASSERT_TRUE(endpoint.send(to, next_fragment(rpc::kLast, 10), 5000).ok());
  ASSERT_TRUE(endpoint.recv(answer, 5000).ok());
  ASSERT_TRUE(endpoint.send(to, first_fragment(4, 4), 5000).ok());
  ASSERT_TRUE(endpoint.send(to, next_fragment(rpc::kLast, 0), 5000).ok());
  auto got = endpoint.recv(answer, 5000);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(static_cast<std::uint8_t>(answer[0]), rpc::kReply);
}

// The others' calls lie still while one message is taken apart, but not for long.
TEST_F(Hostile, AClientThatStopsWithinAMessageIsWaitedForFiveSeconds) {
  PeerIndex to = 0;
  MessageEndpoint endpoint = welcome(&to);
  ASSERT_TRUE(endpoint.send(to, first_fragment(100'000, 1000), 5000).ok());
  const int one = 1;
  const int* negated = negate_2(const_cast<int*>(&one), good_.get());
  ASSERT_NE(negated, nullptr);
  EXPECT_EQ(*negated, -1);
}

// Its call is gathered first: the little time that has come back would not do.
TEST_F(Hostile, AClientThatPausesIsServedThoughAnotherHasUsedUpTheTime) {
  PeerIndex to = 0;
  MessageEndpoint stops = welcome(&to);
  ASSERT_TRUE(stops.send(to, first_fragment(100'000, 1000), 5000).ok());
  const int one = 1;
  ASSERT_NE(negate_2(const_cast<int*>(&one), good_.get()), nullptr);
  MessageEndpoint pauses = welcome(&to);
  usleep(200'000);
  ASSERT_TRUE(pauses.send(to, first_fragment(2000, 1000), 5000).ok());
  usleep(100'000);
  ASSERT_TRUE(pauses.send(to, next_fragment(rpc::kLast, 1000), 5000).ok());
  std::byte answer[4096];
  ASSERT_TRUE(pauses.recv(answer, 5000).ok());
  EXPECT_EQ(static_cast<std::uint8_t>(answer[0]), rpc::kReply);
}

/// Goes on with a call of ECHO that never ends.
class Trickle {
 public:
  Trickle(MessageEndpoint& endpoint, PeerIndex to) : endpoint_(endpoint), to_(to) {
    EXPECT_TRUE(endpoint_.send(to_, first_fragment(1'000'000, 8), 5000).ok());
    thread_ = std::thread([this] {
      for (; !end_; usleep(50'000)) {
        EXPECT_TRUE(endpoint_.send(to_, next_fragment(rpc::kFollows, 8), 5000).ok());
        ++pieces_;
      }
    });
  }
  Trickle(const Trickle&) = delete;
  Trickle& operator=(const Trickle&) = delete;
  ~Trickle() { (void)end(); }
  /// Pieces of 8 bytes that have gone.
  std::size_t end() {
    end_ = true;
    if (thread_.joinable()) thread_.join();
    return pieces_ + 1;
  }

 private:
  MessageEndpoint& endpoint_;
  const PeerIndex to_;
  std::atomic<bool> end_{false};
  std::size_t pieces_ = 0;
  std::thread thread_;
};

// Each piece comes in time. The first call holds the others up for five seconds in all; the next
// one not at all, and it is served when it is whole, though no time is left to wait for it.
TEST_F(Hostile, AClientThatTricklesHoldsTheOthersUpOnce) {
  PeerIndex to = 0;
  MessageEndpoint endpoint = welcome(&to);
  const Paths before = paths();
  for (const bool first : {true, false}) {
    Trickle trickle(endpoint, to);
    for (int i = 0; i < 20; ++i) {
      int result = 0;
      ASSERT_EQ(
          clnt_call(good_.get(), NEGATE, xdr_of(xdr_int), &i, xdr_of(xdr_int), &result, kLong),
          RPC_SUCCESS);
      EXPECT_EQ(result, -i);
      usleep(20'000);
    }
    const std::size_t there = trickle.end() * 8;
    ASSERT_TRUE(endpoint.send(to, next_fragment(first ? rpc::kLast : rpc::kFollows, 8), 5000).ok());
    std::byte answer[256];
    if (!first) {
      std::size_t left = 1'000'000 - there - 8;
      for (; left > 8000; left -= 8000) {
        ASSERT_TRUE(endpoint.send(to, next_fragment(rpc::kFollows, 8000), 5000).ok());
      }
      ASSERT_TRUE(endpoint.send(to, next_fragment(rpc::kLast, left), 5000).ok());
    }
    auto got = endpoint.recv(answer, 20'000);
    ASSERT_TRUE(got.ok());
    // GARBAGE_ARGS
    EXPECT_EQ(static_cast<std::uint8_t>(answer[0]), first ? rpc::kReplyFull : rpc::kReply);
  }
  expect_clan(before, 40);
}

TEST_F(Hostile, AClientThatGoesWithinAMessageIsNotWaitedFor) {
  PeerIndex to = 0;
  std::optional<MessageEndpoint> endpoint = welcome(&to);
  ASSERT_TRUE(endpoint->send(to, first_fragment(100'000, 1000), 5000).ok());
  endpoint.reset();
  timespec before, after;
  clock_gettime(CLOCK_MONOTONIC, &before);
  for (int i = 0; i < 20; ++i) ASSERT_NE(negate_2(&i, good_.get()), nullptr);
  clock_gettime(CLOCK_MONOTONIC, &after);
  EXPECT_LT(after.tv_sec - before.tv_sec, 4);
}

// --- a side that leaves (kLeave), as asked for by a peer of its own making -----------------------

rpc::LeaveResults leave(CLIENT* client, std::uint64_t token, std::uint32_t xid) {
  rpc::LeaveArguments arguments{token, xid};
  rpc::LeaveResults results{~0u, ~0u};
  EXPECT_EQ(clnt_call(client, rpc::kLeave, xdr_of(xdr_leaving), &arguments, xdr_of(xdr_left),
                      &results, kLong),
            RPC_SUCCESS);
  return results;
}

TEST_F(Hostile, ATokenThatNobodyHasLeavesNothing) {
  for (const std::uint64_t token : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
    const rpc::LeaveResults results = leave(asking_.get(), token, 77);
    EXPECT_EQ(results.status, static_cast<std::uint32_t>(ENOENT));
    EXPECT_EQ(results.taken, 0u);
  }
  std::uint32_t word = 1;  // too short
  rpc::LeaveResults results;
  EXPECT_EQ(clnt_call(asking_.get(), rpc::kLeave, xdr_of(xdr_uint32_t), &word, xdr_of(xdr_left),
                      &results, kLong),
            RPC_CANTDECODEARGS);
  const Paths before = paths();
  for (int i = 0; i < 20; ++i) {
    const int* negated = negate_2(&i, good_.get());
    ASSERT_NE(negated, nullptr);
    EXPECT_EQ(*negated, -i);
  }
  expect_clan(before, 20);
}

TEST_F(Hostile, HelloBehindALeaveIsNotWelcome) {
  PeerIndex to = 0;
  rpc::Hello hello;
  MessageEndpoint endpoint = meet(&to, &hello.token);
  EXPECT_EQ(leave(asking_.get(), hello.token, 1).status, 0u);
  EXPECT_EQ(leave(asking_.get(), hello.token, 1).status, static_cast<std::uint32_t>(ENOENT));
  ASSERT_TRUE(endpoint.send(to, std::as_bytes(std::span(&hello, 1)), 5000).ok());
  expect_dropped_and_others_served(endpoint);
}

// On this host the path ends only with the socket: a token that has been used leaves nothing, also
// within a message.
TEST_F(Hostile, ALeaveOfAClientOfThisHostChangesNothing) {
  PeerIndex to = 0;
  rpc::Hello hello;
  MessageEndpoint endpoint = meet(&to, &hello.token);
  std::byte answer[256];
  ASSERT_TRUE(endpoint.send(to, std::as_bytes(std::span(&hello, 1)), 5000).ok());
  ASSERT_TRUE(endpoint.recv(answer, 5000).ok());
  ASSERT_TRUE(endpoint.send(to, first_fragment(4, 4), 5000).ok());
  EXPECT_EQ(leave(asking_.get(), hello.token, 77).status, static_cast<std::uint32_t>(ENOENT));
  ASSERT_TRUE(endpoint.send(to, next_fragment(rpc::kLast, 0), 5000).ok());
  ASSERT_TRUE(endpoint.recv(answer, 5000).ok());
  EXPECT_EQ(static_cast<std::uint8_t>(answer[0]), rpc::kReply);
}

}  // namespace
}  // namespace clan
