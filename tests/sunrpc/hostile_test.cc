// A peer that knows how the library talks and means no good: the server drops it and goes on with the others.
#include <clan/message.h>

#include <optional>

#include "plugins/sunrpc/wire.h"
#include "peers.h"

namespace clan {
namespace {

using namespace test;

bool_t xdr_meeting(XDR* xdrs, rpc::MeetArguments* a) {
  return static_cast<bool_t>(xdr_uint32_t(xdrs, &a->abi) != FALSE && xdr_uint32_t(xdrs, &a->uid) != FALSE);
}
bool_t xdr_met(XDR* xdrs, rpc::MeetResults* r) {
  const auto word = [&](std::uint64_t* to) {
    std::uint32_t high = 0, low = 0;
    const bool good = xdr_uint32_t(xdrs, &high) != FALSE && xdr_uint32_t(xdrs, &low) != FALSE;
    *to = std::uint64_t{high} << 32 | low;
    return good;
  };
  return static_cast<bool_t>(xdr_uint32_t(xdrs, &r->status) != FALSE && word(&r->address.node.value) &&
                             xdr_uint32_t(xdrs, &r->address.endpoint) != FALSE &&
                             xdr_uint32_t(xdrs, &r->address.uid) != FALSE && word(&r->token));
}

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
    EXPECT_EQ(clnt_call(asking_.get(), rpc::kMeet, xdr_of(xdr_meeting), &arguments, xdr_of(xdr_met), &results, kLong),
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

TEST_F(Hostile, AWrongTokenIsNotWelcome) {
  PeerIndex to = 0;
  rpc::Hello hello;
  MessageEndpoint endpoint = meet(&to, &hello.token);
  hello.token ^= 1;
  ASSERT_TRUE(endpoint.send(to, std::as_bytes(std::span(&hello, 1)), 5000).ok());
  expect_dropped_and_others_served(endpoint);
}

TEST_F(Hostile, AnotherVersionIsRefusedAndItsCallsGoByTheSocket) {
  rpc::MeetArguments arguments;
  arguments.abi = rpc::kAbi + 1;
  rpc::MeetResults results;
  ASSERT_EQ(clnt_call(asking_.get(), rpc::kMeet, xdr_of(xdr_meeting), &arguments, xdr_of(xdr_met), &results, kLong),
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

/// A first fragment of a call of ECHO whose argument is to have `length` bytes, `here` of which are in it.
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

TEST_F(Hostile, FragmentsThatMakeNoSenseEndTheConnection) {
  const auto odd = static_cast<rpc::GoOn>(9);
  for (const auto& next : {next_fragment(rpc::kFollows, 0), next_fragment(odd, 100), next_fragment(rpc::kLast, 100, 78),
                           std::vector<std::byte>(3), first_fragment(100, 100)}) {
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
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(endpoint.send(to, next_fragment(rpc::kFollows, 4000), 5000).ok());
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

}  // namespace
}  // namespace clan
