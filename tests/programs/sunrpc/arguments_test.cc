// Arguments that lie in the ring while other things happen: a service that decodes slowly, or not
// at all.
#include <clan/message.h>

#include <optional>
#include <thread>

#include "forked.h"
#include "meeting.h"
#include "peers.h"

namespace clan {
namespace {

using namespace test;

enum Procedure : rpcproc_t { kNull, kSlowly, kLater, kIgnore, kCount, kChildTakes, kForkFirst };

constexpr u_int kWords = 4000;  ///< of the arguments of kSlowly: one fragment
/// while they are decoded, of 100 ms: longer than a server waits for a client that does not read
constexpr int kPauses = 40;

int ignored = 0;
char byte_at(u_int i) { return static_cast<char>(i % 251); }
std::vector<char> much(8 << 20);

bool_t xdr_words_slowly(XDR* xdrs, void*) {
  for (u_int i = 0; i < kWords; ++i) {
    u_int word = 0;
    if (xdr_u_int(xdrs, &word) == FALSE || word != i) return FALSE;
    if (i % (kWords / kPauses) == 0) usleep(100'000);
  }
  return TRUE;
}

bool_t xdr_much(XDR* xdrs, void*) {
  return xdr_opaque(xdrs, much.data(), static_cast<u_int>(much.size()));
}

/// Says how many bytes there are, all of them as they should be.
void take(SVCXPRT* xprt) {
  blob bytes{};
  if (svc_getargs(xprt, xdr_of(xdr_blob), &bytes) == FALSE) return svcerr_decode(xprt);
  u_int right = 0;
  while (right < bytes.blob_len && bytes.blob_val[right] == byte_at(right)) ++right;
  (void)svc_sendreply(xprt, xdr_of(xdr_u_int), &right);
  (void)svc_freeargs(xprt, xdr_of(xdr_blob), &bytes);
}

void dispatch(svc_req* request, SVCXPRT* xprt) {
  int right = 1;
  switch (request->rq_proc) {
    case kSlowly:
      right = svc_getargs(xprt, xdr_of(xdr_words_slowly), nullptr) == FALSE ? 0 : 1;
      (void)svc_sendreply(xprt, xdr_of(xdr_int), &right);
      if (right == 0) _exit(2);
      return;
    case kLater:
      std::thread([xprt] { (void)svc_sendreply(xprt, xdr_of(xdr_much), nullptr); }).detach();
      return;
    case kIgnore: ++ignored; return;
    case kChildTakes:  // the child decodes and replies
      if (fork() != 0) return;
      take(xprt);
      _exit(0);
    case kForkFirst:
      if (fork() == 0) _exit(0);
      return take(xprt);
    case kCount: (void)svc_sendreply(xprt, xdr_of(xdr_int), &ignored); return;
    default: (void)svc_sendreply(xprt, xdr_of(xdr_void), nullptr);
  }
}

class Arguments : public testing::Test {
 protected:
  static void serve(int ready) {
    signal(SIGCHLD, SIG_IGN);
    SVCXPRT* const xprt = svctcp_create(RPC_ANYSOCK, 0, 0);
    if (xprt == nullptr || svc_reg(xprt, EVERY, EVERY_NEW, dispatch, nullptr) == FALSE) return;
    say_port(ready, xprt->xp_port);
    svc_run();
  }
  Forked server_{serve};
};

// A call of several fragments, and of one.
TEST_F(Arguments, ThatAServiceIgnoresAreDispatchedOnce) {
  Handle client = by_tcp(server_.port()), other = by_tcp(server_.port());
  ASSERT_TRUE(client && other);
  warm_up(client.get());
  warm_up(other.get());
  for (const u_int size : {8000u, 200'000u}) {
    blob argument{size, much.data()};
    EXPECT_EQ(clnt_call(client.get(), kIgnore, xdr_of(xdr_blob), &argument, xdr_of(xdr_void),
                        nullptr, (timeval{1, 0})),
              RPC_TIMEDOUT);
  }
  int count = 0;
  const Paths before = paths();
  // Another's: after a time-out libtirpc passes over the next reply.
  EXPECT_EQ(
      clnt_call(other.get(), kCount, xdr_of(xdr_void), nullptr, xdr_of(xdr_int), &count, kLong),
      RPC_SUCCESS);
  EXPECT_EQ(count, 2);
  expect_clan(before, 1);
}

// A service that forks before it decodes its arguments.
TEST_F(Arguments, AreThereForAChildOfTheService) {
  Handle client = by_tcp(server_.port());
  ASSERT_TRUE(client);
  warm_up(client.get());
  std::vector<char> bytes(2 << 20);
  for (u_int i = 0; i < bytes.size(); ++i) bytes[i] = byte_at(i);
  for (const Procedure procedure : {kChildTakes, kForkFirst}) {
    for (const u_int size : {100u, 2000u, 3000u, 8000u, 30'000u, 40'000u, 200'000u, 2u << 20}) {
      // of longer ones stock parent and child would each read a part from their socket
      if (!preloaded() && procedure == kChildTakes && size > 3000) continue;
      const Paths before = paths();
      blob argument{size, bytes.data()};
      u_int right = 0;
      EXPECT_EQ(clnt_call(client.get(), procedure, xdr_of(xdr_blob), &argument, xdr_of(xdr_u_int),
                          &right, kLong),
                RPC_SUCCESS)
          << procedure << ", " << size;
      EXPECT_EQ(right, size);
      expect_clan(before, 1);
    }
  }
}

// One thread of the server gives its client up while another decodes what that has sent.
TEST_F(Arguments, StayWhileTheyAreDecodedThoughTheirClientIsGivenUp) {
  if (!preloaded()) GTEST_SKIP() << "the server has not the library";
  signal(SIGPIPE, SIG_IGN);  // to a server that ends here, libtirpc writes once more
  Handle asking = by_tcp(server_.port(), rpc::kVersion, rpc::kProgram);
  ASSERT_TRUE(asking);
  rpc::MeetArguments arguments;
  rpc::MeetResults results;
  ASSERT_EQ(clnt_call(asking.get(), rpc::kMeet, xdr_of(xdr_meeting), &arguments, xdr_of(xdr_met),
                      &results, kLong),
            RPC_SUCCESS);
  Context context = std::move(*Context::create());
  MessageOptions options;
  options.eager_bytes = rpc::kEager;
  MessageEndpoint endpoint = std::move(*MessageEndpoint::create(context, {}, options));
  auto to = endpoint.connect(results.address, 5000);
  ASSERT_TRUE(to.ok());
  rpc::Hello hello;
  hello.token = results.token;
  ASSERT_TRUE(endpoint.send(*to, std::as_bytes(std::span(&hello, 1)), 5000).ok());
  std::byte answer_bytes[64];
  ASSERT_TRUE(endpoint.recv(answer_bytes, 5000).ok());
  struct {
    rpc::CallHead head;
    rpc::Caller caller;
    std::uint32_t words[kWords];
  } call;
  call.head.new_caller = 1;
  call.caller.prog = EVERY;
  call.caller.vers = EVERY_NEW;
  for (u_int i = 0; i < kWords; ++i) call.words[i] = htonl(i);
  for (const Procedure procedure : {kLater, kSlowly}) {
    call.head.proc = procedure;
    ++call.head.xid;
    const auto bytes = std::as_bytes(std::span(&call, 1));
    ASSERT_TRUE(
        endpoint
            .send(*to,
                  procedure == kSlowly ? bytes : bytes.first(sizeof call.head + sizeof call.caller),
                  5000)
            .ok());
  }
  for (int i = 0; i < 2000 && !endpoint.has_gone(*to); ++i) usleep(10'000);
  EXPECT_TRUE(endpoint.has_gone(*to));
  // The memory of a client that has gone is the next one's.
  endpoint.disconnect(*to);
  MessageEndpoint next = std::move(*MessageEndpoint::create(context, {}, options));
  to = next.connect(results.address, 5000);
  ASSERT_TRUE(to.ok());
  const std::vector<std::byte> ones(30'000, std::byte{0xff});
  for (int i = 0; i < 10; ++i) (void)next.try_send(*to, ones, {});
  Handle other = by_tcp(server_.port());
  ASSERT_TRUE(other);
  int count = -1;
  EXPECT_EQ(
      clnt_call(other.get(), kCount, xdr_of(xdr_void), nullptr, xdr_of(xdr_int), &count, kLong),
      RPC_SUCCESS);
  // it has found all words as they were sent
  EXPECT_EQ(waitpid(server_.pid(), nullptr, WNOHANG), 0);
}

}  // namespace
}  // namespace clan
