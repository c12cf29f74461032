// A server that meets its clients as the library does and then means no good: their calls end in
// time, and say why. Its NULLPROC is served in earnest, so that calls are known to go over CLAN
// before the false one is made: on a busy machine a meeting may take several calls.
#include <clan/detail/clock.h>
#include <clan/message.h>
#include <poll.h>

#include <optional>
#include <thread>

#include "forked.h"
#include "meeting.h"
#include "peers.h"

namespace clan {
namespace {

using namespace test;

/// What a false server does with a call that has come over CLAN.
using Answer = void (*)(MessageEndpoint& endpoint, PeerIndex from, const rpc::CallHead& head);

/// then a false server gives up what it does for ever
constexpr std::uint64_t kPatienceNs = 20'000'000'000;

// The child's alone.
MessageEndpoint* false_endpoint = nullptr;

void dispatch_meeting(svc_req* request, SVCXPRT* xprt) {
  rpc::MeetArguments arguments;
  rpc::MeetResults results;
  if (request->rq_proc != rpc::kMeet ||
      svc_getargs(xprt, xdr_of(xdr_meeting), &arguments) == FALSE) {
    return svcerr_noproc(xprt);
  }
  results.address = false_endpoint->address();
  results.token = 1;
  (void)svc_sendreply(xprt, xdr_of(xdr_met), &results);
}

// What comes by the socket is served in earnest.
void dispatch_negate(svc_req* request, SVCXPRT* xprt) {
  int value = 0;
  if (request->rq_proc == NULLPROC) {
    (void)svc_sendreply(xprt, xdr_of(xdr_void), nullptr);
    return;
  }
  if (request->rq_proc != NEGATE || svc_getargs(xprt, xdr_of(xdr_int), &value) == FALSE)
    return svcerr_noproc(xprt);
  value = -value;
  (void)svc_sendreply(xprt, xdr_of(xdr_int), &value);
}

void say(MessageEndpoint& endpoint, PeerIndex to, const rpc::ReplyHead& head,
         std::size_t more = 0) {
  std::vector<std::byte> bytes(sizeof head + more);
  std::memcpy(bytes.data(), &head, sizeof head);
  (void)endpoint.send(to, bytes, 5000);
}

rpc::ReplyHead reply_to(const rpc::CallHead& call, std::uint8_t kind = rpc::kReply,
                        std::uint8_t go_on = rpc::kLast) {
  rpc::ReplyHead head;
  head.kind = kind;
  head.go_on = go_on;
  head.xid = call.xid;
  return head;
}

[[noreturn]] void serve_falsely(int ready, Answer with) {
  Context context = std::move(*Context::create());
  MessageEndpoint endpoint = std::move(*MessageEndpoint::create(context));
  false_endpoint = &endpoint;
  SVCXPRT* const xprt = svctcp_create(RPC_ANYSOCK, 0, 0);
  svc_unreg(rpc::kProgram, rpc::kVersion);
  if (xprt == nullptr ||
      svc_reg(xprt, rpc::kProgram, rpc::kVersion, dispatch_meeting, nullptr) == FALSE ||
      svc_reg(xprt, EVERY, EVERY_NEW, dispatch_negate, nullptr) == FALSE) {
    _exit(1);
  }
  say_port(ready, xprt->xp_port);
  for (;;) {
    std::vector<pollfd> fds(svc_pollfd, svc_pollfd + svc_max_pollfd);
    if (const int n = poll(fds.data(), fds.size(), 1); n > 0) svc_getreq_poll(fds.data(), n);
    while (auto message = endpoint.peek()) {
      rpc::CallHead head{};
      std::memcpy(&head, message->bytes.data(), std::min(sizeof head, message->bytes.size()));
      const PeerIndex from = message->from;
      endpoint.drop();
      if (head.kind == rpc::kHello) {
        rpc::Hello welcome;
        welcome.kind = rpc::kWelcome;
        (void)endpoint.try_send(from, std::as_bytes(std::span(&welcome, 1)), {});
      } else if (head.kind == rpc::kCall && head.proc == NULLPROC) {
        say(endpoint, from, reply_to(head));
      } else if (head.kind == rpc::kCall) {
        with(endpoint, from, head);
      }
    }
  }
}

class FalseServer : public Forked {
 public:
  explicit FalseServer(Answer with) : Forked([with](int ready) { serve_falsely(ready, with); }) {}
};

/// Sends one message again and again, as fast as it can.
void repeat(MessageEndpoint& endpoint, PeerIndex to, const rpc::ReplyHead& head, std::size_t size) {
  const std::uint64_t end = monotonic_ns() + kPatienceNs;
  while (!endpoint.has_gone(to) && monotonic_ns() < end) {
    for (int i = 0; i < 1000; ++i) {
      auto room = endpoint.reserve(to, size);
      if (!room) break;
      std::memcpy(room->data(), &head, sizeof head);
      endpoint.commit(to, size);
    }
  }
}

constexpr timeval kShort{0, 200'000};

enum clnt_stat negate(CLIENT* client, timeval timeout, int* result) {
  int value = 5;
  return clnt_call(client, NEGATE, xdr_of(xdr_int), &value, xdr_of(xdr_int), result, timeout);
}

class FalseServers : public testing::Test {
 protected:
  void SetUp() override {
    if (!preloaded()) GTEST_SKIP() << "the client has not the library";
  }
};

// Decodes for as long as something comes, and for five seconds at most.
bool_t decode_slowly(XDR* xdrs, void*) {
  char piece[1024];
  for (int i = 0; i < 5000; ++i) {
    if (xdr_opaque(xdrs, piece, sizeof piece) == FALSE) return FALSE;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return TRUE;
}

TEST_F(FalseServers, AReplyWithoutEndTimesOut) {
  FalseServer server([](MessageEndpoint& endpoint, PeerIndex from, const rpc::CallHead& call) {
    say(endpoint, from, reply_to(call, rpc::kReply, rpc::kFollows), 1024);
    repeat(endpoint, from, reply_to(call, rpc::kMore, rpc::kFollows), 8192);
  });
  Handle client = by_tcp(server.port());
  ASSERT_TRUE(client);
  ASSERT_NO_FATAL_FAILURE(warm_up(client.get()));
  const Paths before = paths();
  int value = 5;
  EXPECT_EQ(clnt_call(client.get(), NEGATE, xdr_of(xdr_int), &value, xdr_of(decode_slowly), nullptr,
                      kShort),
            RPC_TIMEDOUT);
  expect_clan(before, 1);
}

TEST_F(FalseServers, RepliesThatNobodyWaitsForDoNotHoldACall) {
  FalseServer server([](MessageEndpoint& endpoint, PeerIndex from, const rpc::CallHead& call) {
    rpc::ReplyHead other = reply_to(call);
    other.xid += 77;
    repeat(endpoint, from, other, sizeof other);
  });
  Handle client = by_tcp(server.port());
  ASSERT_TRUE(client);
  ASSERT_NO_FATAL_FAILURE(warm_up(client.get()));
  const Paths before = paths();
  int result = 0;
  EXPECT_EQ(negate(client.get(), kShort, &result), RPC_TIMEDOUT);
  expect_clan(before, 1);
}

// As one whose loop has stopped serving CLAN.
TEST_F(FalseServers, TwoTimeoutsInARowMoveTheCallsToTheSocket) {
  FalseServer server([](MessageEndpoint&, PeerIndex, const rpc::CallHead&) {});
  Handle client = by_tcp(server.port());
  ASSERT_TRUE(client);
  ASSERT_NO_FATAL_FAILURE(warm_up(client.get()));
  const Paths before = paths();
  int result = 0;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(negate(client.get(), kShort, &result), RPC_TIMEDOUT);
  expect_clan(before, 2);
  EXPECT_EQ(negate(client.get(), kLong, &result), RPC_SUCCESS) << clnt_sperror(client.get(), "");
  EXPECT_EQ(result, -5);
  EXPECT_EQ(paths().stock - before.stock, 1u);
}

// It has taken a part of the arguments, reads no more of them and talks without end.
TEST_F(FalseServers, ArgumentsThatItDoesNotReadTimeOut) {
  FalseServer server([](MessageEndpoint& endpoint, PeerIndex from, const rpc::CallHead& call) {
    repeat(endpoint, from, reply_to(call), sizeof(rpc::ReplyHead));
  });
  Handle client = by_tcp(server.port());
  ASSERT_TRUE(client);
  ASSERT_NO_FATAL_FAILURE(warm_up(client.get()));
  std::vector<char> bytes(32 << 20);
  blob argument{static_cast<u_int>(bytes.size()), bytes.data()};
  u_int result = 0;
  EXPECT_EQ(clnt_call(client.get(), COUNT, xdr_of(xdr_blob), &argument, xdr_of(xdr_u_int), &result,
                      kShort),
            RPC_CANTSEND);
  rpc_err error{};
  clnt_geterr(client.get(), &error);
  EXPECT_EQ(error.re_errno, ETIMEDOUT);
}

TEST_F(FalseServers, ARepliesNonsenseFailsItsCallAndTheNextGoesByTheSocket) {
  const Answer answers[] = {
      [](MessageEndpoint& endpoint, PeerIndex from, const rpc::CallHead&) {
        (void)endpoint.send(from, std::vector<std::byte>(3), 5000);
      },
      [](MessageEndpoint& endpoint, PeerIndex from, const rpc::CallHead& call) {
        say(endpoint, from, reply_to(call, 9), 4);
      },
      [](MessageEndpoint& endpoint, PeerIndex from, const rpc::CallHead& call) {
        say(endpoint, from, reply_to(call, rpc::kReply, 9), 4);
      },
      [](MessageEndpoint& endpoint, PeerIndex from, const rpc::CallHead& call) {
        say(endpoint, from, reply_to(call, rpc::kReplyFull), 3);
      },
      [](MessageEndpoint& endpoint, PeerIndex from, const rpc::CallHead& call) {
        say(endpoint, from, reply_to(call, rpc::kReply, rpc::kFollows), 2);
        say(endpoint, from, reply_to(call, 9, rpc::kLast), 2);
      },
  };
  testing::internal::CaptureStderr();
  ASSERT_EQ(::fcntl(STDERR_FILENO, F_SETFL, O_APPEND), 0);  // else it is no file for log lines
  for (const Answer with : answers) {
    FalseServer server(with);
    Handle client = by_tcp(server.port());
    ASSERT_TRUE(client);
    ASSERT_NO_FATAL_FAILURE(warm_up(client.get()));
    const Paths before = paths();
    int result = 0;
    EXPECT_EQ(negate(client.get(), kLong, &result), RPC_CANTDECODERES)
        << clnt_sperror(client.get(), "");
    expect_clan(before, 1);
    EXPECT_EQ(negate(client.get(), kLong, &result), RPC_SUCCESS) << clnt_sperror(client.get(), "");
    EXPECT_EQ(result, -5);
    EXPECT_EQ(paths().stock - before.stock, 1u);
  }
  EXPECT_GE(page_of(getpid())->hostile.load(), std::size(answers));
  const std::string said = testing::internal::GetCapturedStderr();
  const char* const level = std::getenv("CLAN_LOG");
  if (level == nullptr || std::string(level) != "warn") return;
  const std::size_t at = said.find("makes no sense: its calls go by the socket from now on");
  ASSERT_NE(at, std::string::npos) << said;
  EXPECT_EQ(said.find("makes no sense", at + 1), std::string::npos) << said;
}

}  // namespace
}  // namespace clan
