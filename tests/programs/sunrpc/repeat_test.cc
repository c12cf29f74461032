// A datagram's call that is not answered is sent again in libtirpc's rhythm, the same bytes each
// time. And what a handle makes of trouble that is over, and a server of clients that never stop.
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "forked.h"
#include "peers.h"

namespace clan {
namespace {

using namespace test;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

enum Procedure : rpcproc_t { kNull, kOften, kSlow, kTaken };

int taken = 0;

void dispatch(svc_req* request, SVCXPRT* xprt) {
  static int times = 0;
  int value = 0;
  switch (request->rq_proc) {
    case kOften:  // answered the `value`th time
      ++taken;
      if (svc_getargs(xprt, xdr_of(xdr_int), &value) == FALSE) return svcerr_decode(xprt);
      if (++times < value) return;
      times = 0;
      (void)svc_sendreply(xprt, xdr_of(xdr_int), &value);
      return;
    case kSlow: usleep(100); return;
    case kTaken: (void)svc_sendreply(xprt, xdr_of(xdr_int), &taken); return;
    default: (void)svc_sendreply(xprt, xdr_of(xdr_void), nullptr);
  }
}

void serve(int ready, SVCXPRT* xprt) {
  if (xprt == nullptr || svc_reg(xprt, EVERY, EVERY_NEW, dispatch, nullptr) == FALSE) return;
  say_port(ready, xprt->xp_port);
  svc_run();
}

void set_retry(CLIENT* client, timeval retry) {
  ASSERT_TRUE(clnt_control(client, CLSET_RETRY_TIMEOUT, reinterpret_cast<char*>(&retry)));
}

/// As a routine that reads what it encodes: each time it is asked it encodes another number.
bool_t xdr_next(XDR* xdrs, int* next) {
  int value = (*next)++;
  return xdr_int(xdrs, &value);
}

TEST(Repeated, ADatagramsCallIsSentAgainUntilItIsAnswered) {
  for (const int times : {2, 4}) {
    Forked server([](int ready) { serve(ready, svcudp_create(RPC_ANYSOCK)); });
    Handle client = by_udp(server.port());
    ASSERT_TRUE(client);
    warm_up(client.get());
    set_retry(client.get(), {0, 150'000});
    const Paths before = paths();
    const auto begin = Clock::now();
    int value = times, result = 0, count_before = 0, count = 0;
    ASSERT_EQ(clnt_call(client.get(), kTaken, xdr_of(xdr_void), nullptr, xdr_of(xdr_int),
                        &count_before, kLong),
              RPC_SUCCESS);
    EXPECT_EQ(
        clnt_call(client.get(), kOften, xdr_of(xdr_next), &value, xdr_of(xdr_int), &result, kLong),
        RPC_SUCCESS);
    EXPECT_EQ(result, times);
    EXPECT_EQ(value, times + 1);
    EXPECT_GE(Clock::now() - begin, milliseconds(150 * (times - 1) - 10));
    ASSERT_EQ(
        clnt_call(client.get(), kTaken, xdr_of(xdr_void), nullptr, xdr_of(xdr_int), &count, kLong),
        RPC_SUCCESS);
    // Where the server is late, libtirpc's own takes the one that has been sent again as well.
    EXPECT_GE(count - count_before, times);
    EXPECT_TRUE(!preloaded() || count - count_before == times) << count - count_before;
    expect_clan(before, 3);
  }
}

// By its creation's rhythm, where nothing has been set: by_udp() says one second.
TEST(Repeated, ADatagramsCallIsSentAgainAsItsCreationSays) {
  Forked server([](int ready) { serve(ready, svcudp_create(RPC_ANYSOCK)); });
  Handle client = by_udp(server.port());
  ASSERT_TRUE(client);
  warm_up(client.get());
  const Paths before = paths();
  const auto begin = Clock::now();
  int value = 2, result = 0;
  EXPECT_EQ(
      clnt_call(client.get(), kOften, xdr_of(xdr_int), &value, xdr_of(xdr_int), &result, kLong),
      RPC_SUCCESS);
  EXPECT_GE(Clock::now() - begin, milliseconds(990));
  EXPECT_LT(Clock::now() - begin, milliseconds(10'000));
  expect_clan(before, 1);
}

/// Answers one request at a server's socket: the result is the argument.
void answer_one(int fd) {
  char request[1000];
  sockaddr_in from{};
  socklen_t length = sizeof from;
  pollfd ready{fd, POLLIN, 0};
  if (poll(&ready, 1, 10'000) != 1) return;
  const ssize_t n =
      recvfrom(fd, request, sizeof request, 0, reinterpret_cast<sockaddr*>(&from), &length);
  if (n < 8) return;
  // xid, REPLY, accepted, no verifier, success, result
  std::uint32_t reply[7] = {0, htonl(1), 0, 0, 0, 0, 0};
  std::memcpy(&reply[0], request, 4);
  std::memcpy(&reply[6], request + n - 4, 4);
  (void)sendto(fd, reply, sizeof reply, 0, reinterpret_cast<sockaddr*>(&from), length);
}

// The server's process goes with the call on it, and another one has its socket: the call is made
// there as it was encoded.
TEST(Repeated, ALostDatagramsCallGoesByTheSocketAsItWasEncoded) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const sockaddr_in any = at_port(0);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof any), 0);
  auto server = std::make_unique<Forked>([fd](int ready) { serve(ready, svcudp_create(fd)); });
  Handle client = by_udp(server->port());
  ASSERT_TRUE(client);
  warm_up(client.get());
  set_retry(client.get(), {0, 100'000});
  kill(server->pid(), SIGSTOP);
  std::thread next([&] {
    usleep(300'000);
    server.reset();
    answer_one(fd);
  });
  int value = 7, result = 0;
  EXPECT_EQ(clnt_call(client.get(), kOften, xdr_of(xdr_next), &value, xdr_of(xdr_int), &result,
                      (timeval{10, 0})),
            RPC_SUCCESS);
  EXPECT_EQ(result, 7);
  next.join();
  close(fd);
}

/// How long a handle's calls go by the socket, the longest of four times that its server has
/// stopped for a while.
void measure_trouble(milliseconds* longest) {
  Server server({"tcp"});
  Handle client = by_tcp(server.tcp());
  ASSERT_TRUE(client);
  ASSERT_NO_FATAL_FAILURE(warm_up(client.get()));
  *longest = milliseconds(0);
  for (int round = 0; round < 4; ++round) {
    kill(server.pid(), SIGSTOP);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(clnt_call(client.get(), NULLPROC, xdr_of(xdr_void), nullptr, xdr_of(xdr_void),
                          nullptr, (timeval{0, 50'000})),
                RPC_TIMEDOUT);
    }
    kill(server.pid(), SIGCONT);
    const auto begin = Clock::now();
    ASSERT_NO_FATAL_FAILURE(warm_up(client.get()));
    *longest = std::max(*longest, std::chrono::duration_cast<milliseconds>(Clock::now() - begin));
  }
}

// One second each time, and not 1, 2, 4, 8; a server that a busy machine keeps from answering when
// it is asked again is trouble that goes on, so that is checked again.
TEST(Trouble, ThatIsOverIsForgotten) {
  if (!preloaded()) GTEST_SKIP() << "after a time-out libtirpc passes over a reply";
  milliseconds longest(0);
  for (int trial = 0; trial < 4; ++trial) {
    ASSERT_NO_FATAL_FAILURE(measure_trouble(&longest));
    if (longest < milliseconds(6000)) return;
  }
  FAIL() << "calls went by the socket for " << longest.count() << " ms";
}

// libtirpc does not take such a time-out: it goes by the one before.
TEST(Trouble, ATimeOutOfManyYearsIsNotShort) {
  Server server({"tcp"});
  Handle client = by_tcp(server.tcp());
  ASSERT_TRUE(client);
  warm_up(client.get());
  const Paths before = paths();
  int ms = 700, result = 0;
  // in microseconds: 2^64 and 0.4 s
  EXPECT_EQ(clnt_call(client.get(), SLEEP, xdr_of(xdr_int), &ms, xdr_of(xdr_int), &result,
                      (timeval{18'446'744'073'710, 0})),
            RPC_SUCCESS);
  EXPECT_EQ(result, 700);
  expect_clan(before, 1);
}

// What comes by a socket is served although others' calls never end.
TEST(Trouble, OfClientsThatNeverStopDoesNotKeepTheSocketsWaiting) {
  Forked server([](int ready) { serve(ready, svctcp_create(RPC_ANYSOCK, 0, 0)); });
  Handle client = by_tcp(server.port());
  ASSERT_TRUE(client);
  warm_up(client.get());
  const Forked flood([&](int ready) {
    Handle endless = by_tcp(server.port());
    warm_up(endless.get());
    say_port(ready, 1);
    for (;;) {
      (void)clnt_call(endless.get(), kSlow, xdr_of(xdr_void), nullptr, nullptr, nullptr,
                      (timeval{0, 0}));
    }
  });
  usleep(300'000);
  AUTH odd = *client->cl_auth;  // its calls go by the socket
  odd.ah_cred.oa_flavor = AUTH_DES;
  AUTH* const none = std::exchange(client->cl_auth, &odd);
  int count = -1;
  EXPECT_EQ(
      clnt_call(client.get(), kTaken, xdr_of(xdr_void), nullptr, xdr_of(xdr_int), &count, kLong),
      RPC_SUCCESS);
  client->cl_auth = none;
}

}  // namespace
}  // namespace clan
