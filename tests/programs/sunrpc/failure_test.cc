// Peers that die, stop, fork, restart or mean no good.
#include <clan/message.h>

#include <chrono>
#include <thread>

#include "peers.h"

namespace clan {
namespace {

using namespace test;

enum clnt_stat negate(CLIENT* client, int value, int* result, timeval timeout = kLong) {
  return clnt_call(client, NEGATE, xdr_of(xdr_int), &value, xdr_of(xdr_int), result, timeout);
}

TEST(Failure, OfTheServerInACallIsToldAtOnce) {
  for (const int how : {SIGKILL, 0}) {
    Server server({"tcp"});
    Handle client = by_tcp(server.tcp());
    ASSERT_TRUE(client);
    warm_up(client.get());
    const auto begin = std::chrono::steady_clock::now();
    int argument = how;
    EXPECT_EQ(clnt_call(client.get(), LEAVE, xdr_of(xdr_int), &argument, xdr_of(xdr_void), nullptr,
                        kLong),
              RPC_CANTRECV);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    rpc_err error{};
    clnt_geterr(client.get(), &error);
    EXPECT_EQ(error.re_status, RPC_CANTRECV);
    EXPECT_EQ(error.re_errno, ECONNRESET);
    int result = 0;
    EXPECT_NE(negate(client.get(), 1, &result), RPC_SUCCESS);
  }
}

TEST(Failure, OfTheServerBetweenCallsIsTold) {
  Server server({"tcp"});
  Handle client = by_tcp(server.tcp());
  ASSERT_TRUE(client);
  warm_up(client.get());
  server.stop(SIGKILL);
  int result = 0;
  const enum clnt_stat stat = negate(client.get(), 1, &result);
  EXPECT_TRUE(stat == RPC_CANTRECV || stat == RPC_CANTSEND) << stat;
}

TEST(Failure, AServerThatDestroysTheTransportEndsIt) {
  Server server({"tcp"});
  Handle client = by_tcp(server.tcp()), other = by_tcp(server.tcp());
  ASSERT_TRUE(client && other);
  warm_up(client.get());
  warm_up(other.get());
  int how = 1;
  int result = 0;
  EXPECT_EQ(clnt_call(other.get(), LEAVE, xdr_of(xdr_int), &how, nullptr, nullptr, (timeval{0, 0})),
            RPC_SUCCESS);
  EXPECT_EQ(negate(other.get(), 1, &result), RPC_SUCCESS);
  EXPECT_NE(negate(client.get(), 1, &result), RPC_SUCCESS);
  EXPECT_EQ(negate(other.get(), 1, &result), RPC_SUCCESS);
}

// One look of its loop finds that a client's socket has ended and that another client has called,
// whose service destroys the first one's transport (1), or looks by itself and finds the end (3).
// With libtirpc alone the end comes first, and nothing is left to be destroyed.
TEST(Failure, AServiceMayEndATransportWhoseSocketHasEnded) {
  for (const char* loop : {"loop:run", "loop:select", "loop:poll"}) {
    for (int how : {1, 3}) {
      if (how == 1 && !preloaded()) continue;
      Server server({"tcp", loop});
      Handle first = by_tcp(server.tcp()), second = by_tcp(server.tcp());
      ASSERT_TRUE(first && second);
      warm_up(first.get());
      warm_up(second.get());
      kill(server.pid(), SIGSTOP);
      siginfo_t stopped{};
      ASSERT_EQ(waitid(P_PID, static_cast<id_t>(server.pid()), &stopped, WSTOPPED | WNOWAIT), 0);
      first.reset();
      EXPECT_EQ(
          clnt_call(second.get(), LEAVE, xdr_of(xdr_int), &how, nullptr, nullptr, (timeval{0, 0})),
          RPC_SUCCESS);
      kill(server.pid(), SIGCONT);
      int result = 0;
      EXPECT_EQ(negate(second.get(), 5, &result), RPC_SUCCESS) << loop << ", " << how;
      EXPECT_EQ(result, -5);
      Handle third = by_tcp(server.tcp());  // the look has ended when it has been accepted
      ASSERT_TRUE(third);
      EXPECT_EQ(negate(third.get(), 6, &result), RPC_SUCCESS) << loop << ", " << how;
    }
  }
}

TEST(Failure, SvcExitEndsTheLoopWhileAClientIsThere) {
  Server server({"tcp"});
  Handle client = by_tcp(server.tcp());
  ASSERT_TRUE(client);
  warm_up(client.get());
  int how = 2;
  EXPECT_EQ(
      clnt_call(client.get(), LEAVE, xdr_of(xdr_int), &how, nullptr, nullptr, (timeval{0, 0})),
      RPC_SUCCESS);
  // libtirpc holds a batched call back until another one follows.
  int result = 0;
  (void)negate(client.get(), 1, &result, {2, 0});
  siginfo_t ended{};
  for (int i = 0; i < 4000 && ended.si_pid == 0; ++i) {
    waitid(P_PID, static_cast<id_t>(server.pid()), &ended, WEXITED | WNOWAIT | WNOHANG);
    usleep(5000);
  }
  EXPECT_EQ(ended.si_pid, server.pid());
}

TEST(Failure, AStoppedServerTimesOutAndGoesOnLater) {
  Server server({"tcp", "udp"});
  Handle tcp = by_tcp(server.tcp()), udp = by_udp(server.udp());
  ASSERT_TRUE(tcp && udp);
  warm_up(tcp.get());
  warm_up(udp.get());
  kill(server.pid(), SIGSTOP);
  int result = 0;
  EXPECT_EQ(negate(tcp.get(), 1, &result, {0, 200'000}), RPC_TIMEDOUT);
  EXPECT_EQ(negate(udp.get(), 1, &result, {0, 200'000}), RPC_TIMEDOUT);
  kill(server.pid(), SIGCONT);
  EXPECT_EQ(negate(tcp.get(), 2, &result), RPC_SUCCESS);
  EXPECT_EQ(result, -2);
  EXPECT_EQ(negate(udp.get(), 3, &result), RPC_SUCCESS);
  EXPECT_EQ(result, -3);
}

TEST(Failure, AStoppedServerDoesNotKeepANewClientLonger) {
  Server server({"tcp"});
  kill(server.pid(), SIGSTOP);
  Handle client = by_tcp(server.tcp());
  ASSERT_TRUE(client);
  int result = 0;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(negate(client.get(), 1, &result, {0, 500'000}), RPC_TIMEDOUT);
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, std::chrono::milliseconds(490));
  EXPECT_LT(took, std::chrono::seconds(10));
  kill(server.pid(), SIGCONT);
  EXPECT_EQ(negate(client.get(), 2, &result), RPC_SUCCESS);
  EXPECT_EQ(result, -2);
}

std::uint64_t servers_met() {
  const auto page = page_of(getpid());
  return page ? page->met.load() : 0;
}

// As on a busy machine: its answer to the program's own call would not come sooner.
TEST(Failure, AServerThatAnswersLateIsMetAllTheSame) {
  if (!preloaded()) GTEST_SKIP() << "the client has not the library";
  Server server({"tcp"});
  Handle client = by_tcp(server.tcp());
  ASSERT_TRUE(client);
  const std::uint64_t before = servers_met();
  int result = 0;
  for (int i = 0; i < 3; ++i) {
    kill(server.pid(), SIGSTOP);
    std::thread later([&] {
      usleep(400'000);
      kill(server.pid(), SIGCONT);
    });
    EXPECT_EQ(negate(client.get(), i, &result), RPC_SUCCESS) << clnt_sperror(client.get(), "");
    later.join();
  }
  EXPECT_EQ(negate(client.get(), 4, &result), RPC_SUCCESS) << clnt_sperror(client.get(), "");
  EXPECT_GT(servers_met(), before);
}

TEST(Fork, AChildOfTheServerAnswersItsClient) {
  Server server({"tcp", "udp"});
  Handle tcp = by_tcp(server.tcp()), udp = by_udp(server.udp());
  ASSERT_TRUE(tcp && udp);
  for (CLIENT* client : {tcp.get(), udp.get()}) {
    warm_up(client);
    const Paths before = paths();
    for (int i = 0; i < 10; ++i) {
      int* result = forked_2(&i, client);
      ASSERT_NE(result, nullptr) << clnt_sperror(client, "");
      EXPECT_EQ(*result, i + 1);
      int negated = 0;
      ASSERT_EQ(negate(client, i, &negated), RPC_SUCCESS);
      EXPECT_EQ(negated, -i);
    }
    expect_clan(before, 20);
  }
}

TEST(Fork, AChildOfTheClientUsesItsHandleAndTheParentGoesOn) {
  Server server({"tcp"});
  Handle client = by_tcp(server.tcp());
  ASSERT_TRUE(client);
  warm_up(client.get());
  const pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < 50; ++i) {
      int result = 0;
      if (negate(client.get(), i, &result) != RPC_SUCCESS || result != -i) _exit(1);
    }
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  const Paths before = paths();
  int result = 0;
  EXPECT_EQ(negate(client.get(), 9, &result), RPC_SUCCESS);
  EXPECT_EQ(result, -9);
  expect_clan(before, 1);
}

TEST(Clients, ThatAreKilledLeaveTheServerServing) {
  Server server({"tcp"});
  for (int round = 0; round < 10; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      Handle client = by_tcp(server.tcp());
      for (int i = 0;; ++i) {
        int result = 0;
        if (negate(client.get(), i, &result) != RPC_SUCCESS) _exit(1);
      }
    }
    usleep(20'000);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  Handle client = by_tcp(server.tcp());
  ASSERT_TRUE(client);
  warm_up(client.get());
  int result = 0;
  EXPECT_EQ(negate(client.get(), 4, &result), RPC_SUCCESS);
}

// What a client sends just before it ends arrives, as with TCP.
TEST(Clients, ThatEndBehindABatchHaveItServed) {
  Server server({"tcp"});
  const pid_t child = fork();
  if (child == 0) {
    Handle client = by_tcp(server.tcp());
    warm_up(client.get());
    int one = 1;
    for (int i = 0; i < 500; ++i) {
      (void)clnt_call(client.get(), TELL, xdr_of(xdr_int), &one, nullptr, nullptr, (timeval{0, 0}));
    }
    (void)told_2(nullptr, client.get());
    for (int i = 0; i < 500; ++i) {
      (void)clnt_call(client.get(), TELL, xdr_of(xdr_int), &one, nullptr, nullptr, (timeval{0, 0}));
    }
    // stock ones lie in its buffer until then
    if (!preloaded()) (void)told_2(nullptr, client.get());
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  Handle client = by_tcp(server.tcp());
  ASSERT_TRUE(client);
  int told = 0;
  for (int i = 0; i < 20'000 && told < 1000; ++i) {
    const int* const answer = told_2(nullptr, client.get());
    ASSERT_NE(answer, nullptr) << clnt_sperror(client.get(), "");
    told = *answer;
    usleep(1000);
  }
  EXPECT_EQ(told, 1000);
}

// A datagram's server that is started again answers the same handle, as it would by UDP.
TEST(Failure, AClientOfDatagramsOutlivesItsServer) {
  auto server = std::make_unique<Server>(std::vector<std::string>{"udp"});
  Handle client = by_udp(server->udp());
  ASSERT_TRUE(client);
  warm_up(client.get());
  server->stop(SIGKILL);
  int result = 0;
  EXPECT_NE(negate(client.get(), 1, &result, {0, 300'000}), RPC_SUCCESS);
}

}  // namespace
}  // namespace clan
