// What calls mean: time-outs, controls, batches, errors, credentials. The same with the library and
// without.
#include <chrono>

#include "peers.h"

namespace clan {
namespace {

using namespace test;

enum clnt_stat negate(CLIENT* client, int value, int* result, timeval timeout = kLong) {
  return clnt_call(client, NEGATE, xdr_of(xdr_int), &value, xdr_of(xdr_int), result, timeout);
}

enum clnt_stat sleep_there(CLIENT* client, int ms, timeval timeout) {
  int result = 0;
  return clnt_call(client, SLEEP, xdr_of(xdr_int), &ms, xdr_of(xdr_int), &result, timeout);
}

class Semantics : public testing::Test {
 protected:
  Server server_{{"tcp", "udp"}};
  Handle tcp_ = by_tcp(server_.tcp());
  Handle udp_ = by_udp(server_.udp());
  void SetUp() override {
    ASSERT_TRUE(tcp_ && udp_);
    warm_up(tcp_.get());
    warm_up(udp_.get());
  }
  std::vector<CLIENT*> both() { return {tcp_.get(), udp_.get()}; }
  /// A call whose time runs out because the server answers it only later: it has been stopped until
  /// then, as a reply that is there when a busy machine lets the client look is taken.
  enum clnt_stat negate_too_late(CLIENT* client, timeval timeout) {
    int result = 0;
    kill(server_.pid(), SIGSTOP);
    const enum clnt_stat stat = negate(client, 1234, &result, timeout);
    kill(server_.pid(), SIGCONT);
    return stat;
  }
};

TEST_F(Semantics, ACallThatTakesTooLongTimesOutAndTheNextGetsItsOwnReply) {
  for (CLIENT* client : both()) {
    const Paths before = paths();
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(negate_too_late(client, {0, 100'000}), RPC_TIMEDOUT);
    const auto took = std::chrono::steady_clock::now() - begin;
    EXPECT_GE(took, std::chrono::milliseconds(95));
    rpc_err error{};
    clnt_geterr(client, &error);
    EXPECT_EQ(error.re_status, RPC_TIMEDOUT);
    int result = 0;
    EXPECT_EQ(negate(client, 7, &result), RPC_SUCCESS);
    EXPECT_EQ(result, -7);
    expect_clan(before, 2);
  }
}

// By UDP libtirpc sends a call again that is not answered in time, and its server makes it again.
TEST_F(Semantics, ACallThatTakesLongerThanTheTimeToSendItAgainIsMadeOnce) {
  for (CLIENT* client : both()) {
    timeval retry{0, 100'000};
    // of a datagram's alone
    (void)clnt_control(client, CLSET_RETRY_TIMEOUT, reinterpret_cast<char*>(&retry));
    const Paths paths_before = paths();
    const quad_t before = *served_2(nullptr, client);
    ASSERT_EQ(sleep_there(client, 700, kLong), RPC_SUCCESS);
    const quad_t* after = served_2(nullptr, client);
    ASSERT_NE(after, nullptr);
    if (preloaded() || client == tcp_.get()) {
      EXPECT_EQ(*after - before, 2);
    } else {
      EXPECT_GE(*after - before, 2);
    }
    expect_clan(paths_before, 3);
  }
}

TEST_F(Semantics, ATimeoutSetByControlWinsOverTheCalls) {
  for (CLIENT* client : both()) {
    timeval set{0, 100'000}, got{};
    ASSERT_TRUE(clnt_control(client, CLSET_TIMEOUT, reinterpret_cast<char*>(&set)));
    ASSERT_TRUE(clnt_control(client, CLGET_TIMEOUT, reinterpret_cast<char*>(&got)));
    EXPECT_EQ(got.tv_usec, 100'000);
    EXPECT_EQ(negate_too_late(client, kLong), RPC_TIMEDOUT);
    timeval wrong{-5, 0};
    EXPECT_FALSE(clnt_control(client, CLSET_TIMEOUT, reinterpret_cast<char*>(&wrong)));
  }
}

// A stream takes no such time, and goes on with the one before; a datagram's call has none.
TEST_F(Semantics, ATimeBelowZeroIsNoTimeWithoutEnd) {
  for (CLIENT* client : both()) {
    int result = 0;
    ASSERT_EQ(negate(client, 1, &result, {5, 0}), RPC_SUCCESS);
    EXPECT_EQ(negate_too_late(client, {-1, -1}), RPC_TIMEDOUT);
    EXPECT_EQ(negate(client, 2, &result), RPC_SUCCESS);
    timeval set{-1, 0};
    const bool stream = client == tcp_.get();
    EXPECT_EQ(clnt_control(client, CLSET_TIMEOUT, reinterpret_cast<char*>(&set)) == FALSE, stream);
    if (stream) continue;
    EXPECT_EQ(negate_too_late(client, kLong), RPC_TIMEDOUT);
  }
}

TEST_F(Semantics, ControlsTellAndSetWhatTheyDoInTheStockLibrary) {
  for (CLIENT* client : both()) {
    u_int32_t version = 0, program = 0;
    ASSERT_TRUE(clnt_control(client, CLGET_VERS, reinterpret_cast<char*>(&version)));
    EXPECT_EQ(version, static_cast<u_int32_t>(EVERY_NEW));
    ASSERT_TRUE(clnt_control(client, CLGET_PROG, reinterpret_cast<char*>(&program)));
    EXPECT_EQ(program, static_cast<u_int32_t>(EVERY));
    int fd = -1;
    ASSERT_TRUE(clnt_control(client, CLGET_FD, reinterpret_cast<char*>(&fd)));
    sockaddr_in name{};
    socklen_t length = sizeof name;
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length), 0);
    netbuf address{};
    ASSERT_TRUE(clnt_control(client, CLGET_SVC_ADDR, reinterpret_cast<char*>(&address)));
    EXPECT_EQ(static_cast<sockaddr_in*>(address.buf)->sin_family, AF_INET);
    // Another version for the same handle: the old one has fewer procedures.
    u_int32_t old = EVERY_OLD;
    ASSERT_TRUE(clnt_control(client, CLSET_VERS, reinterpret_cast<char*>(&old)));
    int result = 0;
    EXPECT_EQ(negate(client, 3, &result), RPC_SUCCESS);
    EXPECT_EQ(result, -3);
    EXPECT_EQ(sleep_there(client, 1, kLong), RPC_PROCUNAVAIL);
    EXPECT_FALSE(clnt_control(client, 12345, reinterpret_cast<char*>(&old)));
  }
}

TEST_F(Semantics, XidsCountAsTheyDoInTheStockLibrary) {
  for (CLIENT* client : both()) {
    u_int32_t xid = 5000, got = 0;
    ASSERT_TRUE(clnt_control(client, CLSET_XID, reinterpret_cast<char*>(&xid)));
    int result = 0;
    ASSERT_EQ(negate(client, 1, &result), RPC_SUCCESS);
    ASSERT_TRUE(clnt_control(client, CLGET_XID, reinterpret_cast<char*>(&got)));
    // libtirpc counts down in network byte order, for streams.
    const bool stream = client == tcp_.get();
    const u_int32_t first = stream ? ntohl(htonl(5001) - 1) : 5000;
    EXPECT_EQ(got, first);
    ASSERT_EQ(negate(client, 1, &result), RPC_SUCCESS);
    ASSERT_TRUE(clnt_control(client, CLGET_XID, reinterpret_cast<char*>(&got)));
    EXPECT_EQ(got, stream ? ntohl(htonl(first) - 1) : 5001u);
  }
}

TEST_F(Semantics, AnXidThatIsSetBeforeTheFirstCallIsThatOfTheFirstCall) {
  const Handle tcp = by_tcp(server_.tcp()), udp = by_udp(server_.udp());
  for (CLIENT* client : {tcp.get(), udp.get()}) {
    ASSERT_NE(client, nullptr);
    u_int32_t xid = 5000, got = 0;
    ASSERT_TRUE(clnt_control(client, CLSET_XID, reinterpret_cast<char*>(&xid)));
    int result = 0;
    ASSERT_EQ(negate(client, 1, &result), RPC_SUCCESS);
    ASSERT_TRUE(clnt_control(client, CLGET_XID, reinterpret_cast<char*>(&got)));
    EXPECT_EQ(got, client == tcp.get() ? ntohl(htonl(5001) - 1) : 5000);
  }
}

TEST_F(Semantics, BatchedCallsArriveInOrderBeforeTheCallThatFlushesThem) {
  const Paths before = paths();
  int sum = 0;
  for (int i = 1; i <= 1000; ++i) {
    ASSERT_EQ(clnt_call(tcp_.get(), TELL, xdr_of(xdr_int), &i, nullptr, nullptr, (timeval{0, 0})),
              RPC_SUCCESS);
    sum += i;
  }
  int* told = told_2(nullptr, tcp_.get());
  ASSERT_NE(told, nullptr);
  EXPECT_EQ(*told, sum);
  expect_clan(before, 1001);
}

TEST_F(Semantics, ACallWithoutTimeToWaitIsSentAndTimesOut) {
  int value = 5, result = 0;
  EXPECT_EQ(clnt_call(tcp_.get(), TELL, xdr_of(xdr_int), &value, xdr_of(xdr_void), &result,
                      (timeval{0, 0})),
            RPC_TIMEDOUT);
  int* told = told_2(nullptr, tcp_.get());
  ASSERT_NE(told, nullptr);
  EXPECT_EQ(*told, 5);
  // An answer by the socket has come: the next goes over CLAN again.
  const Paths before = paths();
  EXPECT_EQ(negate(tcp_.get(), 5, &result), RPC_SUCCESS);
  expect_clan(before, 1);
}

TEST_F(Semantics, ErrorsOfTheServerAreTold) {
  for (const bool datagram : {false, true}) {
    Handle wrong_version = datagram ? by_udp(server_.udp(), 7) : by_tcp(server_.tcp(), 7);
    ASSERT_TRUE(wrong_version);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(clnt_call(wrong_version.get(), NULLPROC, xdr_of(xdr_void), nullptr,
                          xdr_of(xdr_void), nullptr, kLong),
                RPC_PROGVERSMISMATCH);
      rpc_err error{};
      clnt_geterr(wrong_version.get(), &error);
      EXPECT_EQ(error.re_vers.low, 1u);
      EXPECT_EQ(error.re_vers.high, 2u);
    }
  }
  Handle wrong_program = by_tcp(server_.tcp(), 1, 0x2fabcfff);
  ASSERT_TRUE(wrong_program);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(clnt_call(wrong_program.get(), NULLPROC, xdr_of(xdr_void), nullptr, xdr_of(xdr_void),
                        nullptr, kLong),
              RPC_PROGUNAVAIL);
  }
  const Paths before = paths();
  EXPECT_EQ(clnt_call(tcp_.get(), 999, xdr_of(xdr_void), nullptr, xdr_of(xdr_void), nullptr, kLong),
            RPC_PROCUNAVAIL);
  // Invalid arguments: the server cannot decode them.
  EXPECT_EQ(clnt_call(tcp_.get(), TURN, xdr_of(xdr_void), nullptr, xdr_of(xdr_everything), nullptr,
                      kLong),
            RPC_CANTDECODEARGS);
  // Results of another type than the program expects.
  int one = 1;
  answer reply{};
  EXPECT_EQ(
      clnt_call(tcp_.get(), NEGATE, xdr_of(xdr_int), &one, xdr_of(xdr_everything), &reply, kLong),
      RPC_CANTDECODERES);
  expect_clan(before, 3);
}

bool_t encode_nothing(XDR*, void*) { return FALSE; }

TEST_F(Semantics, ArgumentsThatCannotBeEncodedAreNotSent) {
  for (CLIENT* client : both()) {
    int result = 0;
    EXPECT_EQ(
        clnt_call(client, NEGATE, xdr_of(encode_nothing), &result, xdr_of(xdr_int), &result, kLong),
        RPC_CANTENCODEARGS);
    EXPECT_EQ(negate(client, 1, &result), RPC_SUCCESS);
  }
}

TEST_F(Semantics, CredentialsAreThoseOfTheCallAndChangeWithIt) {
  for (CLIENT* client : both()) {
    const Paths before = paths();
    credential* who = who_2(nullptr, client);
    ASSERT_NE(who, nullptr);
    EXPECT_EQ(who->flavor, AUTH_NONE);
    gid_t groups[] = {11, 22, 33};
    AUTH* const none = client->cl_auth;
    AUTH* const first = authunix_create(const_cast<char*>("here"), 1234, 567, 3, groups);
    AUTH* const second = authunix_create(const_cast<char*>("here"), 4321, 567, 3, groups);
    for (int i = 0; i < 4; ++i) {
      client->cl_auth = i % 2 == 0 ? first : second;
      who = who_2(nullptr, client);
      ASSERT_NE(who, nullptr) << clnt_sperror(client, "");
      EXPECT_EQ(who->flavor, AUTH_SYS);
      EXPECT_EQ(who->uid, i % 2 == 0 ? 1234u : 4321u);
      EXPECT_EQ(who->gid, 567u);
      ASSERT_EQ(who->groups.groups_len, 3u);
      EXPECT_EQ(who->groups.groups_val[2], 33u);
      EXPECT_STREQ(who->machine, "here");
    }
    client->cl_auth = none;
    auth_destroy(first);
    auth_destroy(second);
    who = who_2(nullptr, client);
    ASSERT_NE(who, nullptr);
    EXPECT_EQ(who->flavor, AUTH_NONE);
    expect_clan(before, 6);
  }
}

bool_t encode_some(XDR* xdrs, std::string* bytes) {
  auto size = static_cast<u_int>(bytes->size());
  char* at = bytes->data();
  (void)xdr_bytes(xdrs, &at, &size, size);
  return FALSE;
}

// A part of the call has been sent, with its credential.
TEST_F(Semantics, TheCredentialOfACallThatWasGivenUpIsNotThatOfTheNext) {
  for (CLIENT* client : both()) {
    AUTH* const none = client->cl_auth;
    AUTH* const first = authunix_create(const_cast<char*>("here"), 1234, 567, 0, nullptr);
    AUTH* const second = authunix_create(const_cast<char*>("here"), 4321, 567, 0, nullptr);
    for (int i = 0; i < 2; ++i) {
      client->cl_auth = first;
      const credential* who = who_2(nullptr, client);
      ASSERT_NE(who, nullptr) << clnt_sperror(client, "");
      EXPECT_EQ(who->uid, 1234u);
      client->cl_auth = second;
      std::string bytes(100'000, 'x');
      u_int count = 0;
      EXPECT_EQ(
          clnt_call(client, COUNT, xdr_of(encode_some), &bytes, xdr_of(xdr_u_int), &count, kLong),
          RPC_CANTENCODEARGS);
    }
    client->cl_auth = none;
    auth_destroy(first);
    auth_destroy(second);
  }
}

// What a client says of itself does not matter: the transport is the one it is connected to.
TEST_F(Semantics, TheCallerIsWhoTheKernelSays) {
  for (CLIENT* client : both()) {
    int fd = -1;
    ASSERT_TRUE(clnt_control(client, CLGET_FD, reinterpret_cast<char*>(&fd)));
    sockaddr_in mine{};
    socklen_t length = sizeof mine;
    ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &length), 0);
    const Paths before = paths();
    credential* who = who_2(nullptr, client);
    ASSERT_NE(who, nullptr);
    sockaddr_in seen{};
    ASSERT_GE(who->caller.caller_len, sizeof seen);
    std::memcpy(&seen, who->caller.caller_val, sizeof seen);
    EXPECT_EQ(seen.sin_port, mine.sin_port);
    EXPECT_EQ(seen.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
    expect_clan(before, 1);
  }
}

TEST(Local, TheKernelNamesTheCallersProcess) {
  const std::string path = "/tmp/clan-sunrpc-who-" + std::to_string(getpid());
  Server server({"unix:" + path});
  Handle client = by_unix(path);
  ASSERT_TRUE(client);
  warm_up(client.get());
  const Paths before = paths();
  credential* who = who_2(nullptr, client.get());
  ASSERT_NE(who, nullptr);
  EXPECT_EQ(who->pid, getpid());
  expect_clan(before, 1);
  unlink(path.c_str());
}

// Flavours that CLAN does not serve: their calls go by the socket, and those around them over CLAN.
class Flavours : public Semantics, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Of, Flavours, testing::Values(RPCSEC_GSS, AUTH_DES, 390'000));

TEST_P(Flavours, OfOtherAuthenticationStayOnTheSocket) {
  AUTH odd = *tcp_->cl_auth;
  odd.ah_cred.oa_flavor = GetParam();
  AUTH* const none = tcp_->cl_auth;
  int result = 0;
  const Paths before = paths();
  tcp_->cl_auth = &odd;  // authnone marshals its own bytes: the server sees AUTH_NONE
  EXPECT_EQ(negate(tcp_.get(), 2, &result), RPC_SUCCESS);
  EXPECT_EQ(result, -2);
  tcp_->cl_auth = none;
  if (preloaded()) {
    EXPECT_EQ(paths().stock - before.stock, 1u);
    EXPECT_EQ(paths().clan, before.clan);
  }
  EXPECT_EQ(negate(tcp_.get(), 3, &result), RPC_SUCCESS);
  if (preloaded()) {
    EXPECT_EQ(paths().clan - before.clan, 1u);
  }
}

// A server may give a client a short name for its credential. libtirpc's server does not recognise
// it: the call is refused, and repeated with the whole credential.
TEST_F(Semantics, AShortCredentialThatIsRefusedIsRefreshed) {
  for (CLIENT* client : both()) {
    AUTH* const none = client->cl_auth;
    client->cl_auth = authunix_create_default();
    int on = 1;
    ASSERT_NE(shorten_2(&on, client), nullptr);
    EXPECT_EQ(client->cl_auth->ah_cred.oa_flavor, AUTH_SHORT);
    const Paths before = paths();
    credential* who = who_2(nullptr, client);
    ASSERT_NE(who, nullptr) << clnt_sperror(client, "who");
    EXPECT_EQ(who->flavor, AUTH_SYS);
    EXPECT_EQ(who->uid, geteuid());
    expect_clan(before, 1);
    auth_destroy(client->cl_auth);
    client->cl_auth = none;
  }
}

volatile sig_atomic_t alarms = 0;

TEST_F(Semantics, SignalsDuringACallDoNotHarmIt) {
  struct sigaction action {};
  action.sa_handler = [](int) { alarms = alarms + 1; };
  sigaction(SIGALRM, &action, nullptr);
  itimerval often{{0, 2000}, {0, 2000}};
  setitimer(ITIMER_REAL, &often, nullptr);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(sleep_there(tcp_.get(), 5, kLong), RPC_SUCCESS);
  }
  itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
  EXPECT_GT(alarms, 0);
}

}  // namespace
}  // namespace clan
