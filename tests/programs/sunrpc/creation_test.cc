// Every call of libtirpc that makes a handle or a transport, old and new, by names and numbers that
// rpcbind tells. Needs a rpcbind that it may register with: the test sunrpc.programs runs these in
// a network of their own.
#include <netconfig.h>
#include <netdb.h>
#include <rpc/pmap_clnt.h>
#include <rpc/rpc_com.h>
#include <sys/prctl.h>

#include <functional>

#include "peers.h"

namespace clan {
namespace {

using namespace test;

constexpr rpcproc_t kNegate = 1;
/// Programs by the call that has made their transport.
enum Program : rpcprog_t {
  kSvcCreateTcp = 0x2fabd001,
  kSvcCreateUdp,
  kSvcTpCreate,
  kSvcTliCreate,
  kSvctcpCreate,
  kSvcudpCreate,
  kRpcReg,
  kRegisterrpc,
};
char localhost[] = "127.0.0.1", udp_name[] = "udp";

void dispatch(svc_req* request, SVCXPRT* xprt) {
  int value = 0;
  if (request->rq_proc == NULLPROC) {
    svc_sendreply(xprt, xdr_of(xdr_void), nullptr);
  } else if (svc_getargs(xprt, xdr_of(xdr_int), &value) == FALSE) {
    svcerr_decode(xprt);
  } else {
    value = -value;
    svc_sendreply(xprt, xdr_of(xdr_int), &value);
  }
}

char* negate_for_registered(char* argument) {
  static int result;
  std::memcpy(&result, argument, sizeof result);
  result = -result;
  return reinterpret_cast<char*>(&result);
}

netconfig* transport(const char* name) { return getnetconfigent(name); }

bool make_transports() {
  SVCXPRT* tcp = svctcp_create(RPC_ANYSOCK, 0, 0);
  SVCXPRT* udp = svcudp_create(RPC_ANYSOCK);
  SVCXPRT* tli = svc_tli_create(RPC_ANYFD, transport("tcp"), nullptr, 0, 0);
  if (tcp == nullptr || udp == nullptr || tli == nullptr) return false;
  return svc_create(dispatch, kSvcCreateTcp, 1, "tcp") > 0 &&
         svc_create(dispatch, kSvcCreateUdp, 1, "udp") > 0 &&
         svc_tp_create(dispatch, kSvcTpCreate, 1, transport("tcp")) != nullptr &&
         svc_reg(tli, kSvcTliCreate, 1, dispatch, transport("tcp")) != FALSE &&
         svc_register(tcp, kSvctcpCreate, 1, dispatch, IPPROTO_TCP) != FALSE &&
         svc_register(udp, kSvcudpCreate, 1, dispatch, IPPROTO_UDP) != FALSE &&
         rpc_reg(kRpcReg, 1, kNegate, negate_for_registered, xdr_of(xdr_int), xdr_of(xdr_int),
                 udp_name) == 0 &&
         registerrpc(kRegisterrpc, 1, kNegate, negate_for_registered, xdr_of(xdr_int),
                     xdr_of(xdr_int)) == 0;
}

class Creation : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("CLAN_TEST_RPCBIND") == nullptr)
      GTEST_SKIP() << "sunrpc.programs runs it beside a rpcbind";
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    server_ = fork();
    if (server_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const char answer = make_transports() ? 'y' : 'n';
      if (write(ready[1], &answer, 1) != 1) _exit(1);
      svc_run();
      _exit(0);
    }
    char answer = 0;
    EXPECT_EQ(read(ready[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y') << "a transport was not made, or rpcbind did not take it";
    close(ready[0]);
    close(ready[1]);
  }
  void TearDown() override {
    if (server_ <= 0) return;
    kill(server_, SIGKILL);
    waitpid(server_, nullptr, 0);
    for (rpcprog_t program = kSvcCreateTcp; program <= kRegisterrpc; ++program)
      rpcb_unset(program, 1, nullptr);
  }

  /// Calls by it until they go over CLAN, and some more.
  void expect_calls(const char* what, Handle client) {
    ASSERT_TRUE(client) << what << clnt_spcreateerror("");
    SCOPED_TRACE(what);
    int value = 7, result = 0;
    const auto call = [&] {
      return clnt_call(client.get(), kNegate, xdr_of(xdr_int), &value, xdr_of(xdr_int), &result,
                       kLong);
    };
    expect_path([&] { return call() == RPC_SUCCESS && result == -7; });
  }

  void expect_path(const std::function<bool()>& call) {
    for (int i = 0; i < 1000; ++i) {
      const std::uint64_t before = paths().clan;
      ASSERT_TRUE(call());
      if (!preloaded() || paths().clan > before) break;
      usleep(1000);
    }
    const Paths before = paths();
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(call());
    expect_clan(before, 10);
  }

  pid_t server_ = 0;
};

TEST_F(Creation, OfHandlesForStreams) {
  for (const rpcprog_t program : {kSvcCreateTcp, kSvcTpCreate, kSvcTliCreate, kSvctcpCreate}) {
    rpcvers_t found = 0;
    timeval wait{5, 0};
    expect_calls("clnt_create", Handle(clnt_create(localhost, program, 1, "tcp")));
    expect_calls("clnt_create_timed",
                 Handle(clnt_create_timed(localhost, program, 1, "tcp", &wait)));
    expect_calls("clnt_create_vers",
                 Handle(clnt_create_vers(localhost, program, &found, 1, 3, "tcp")));
    expect_calls("clnt_tp_create", Handle(clnt_tp_create(localhost, program, 1, transport("tcp"))));
    expect_calls("clnt_tp_create_timed",
                 Handle(clnt_tp_create_timed(localhost, program, 1, transport("tcp"), &wait)));
    sockaddr_in to = at_port(0);  // 0: it asks rpcbind
    int fd = RPC_ANYSOCK;
    expect_calls("clnttcp_create", Handle(clnttcp_create(&to, program, 1, &fd, 0, 0)));
    sockaddr_storage address{};
    netbuf where{sizeof address, 0, &address};
    ASSERT_TRUE(rpcb_getaddr(program, 1, transport("tcp"), &where, localhost));
    expect_calls("clnt_tli_create",
                 Handle(clnt_tli_create(RPC_ANYFD, transport("tcp"), &where, program, 1, 0, 0)));
  }
}

TEST_F(Creation, OfHandlesForDatagrams) {
  for (const rpcprog_t program : {kSvcCreateUdp, kSvcudpCreate, kRpcReg, kRegisterrpc}) {
    expect_calls("clnt_create", Handle(clnt_create(localhost, program, 1, "udp")));
    sockaddr_in to = at_port(0);
    int fd = RPC_ANYSOCK;
    expect_calls("clntudp_create", Handle(clntudp_create(&to, program, 1, timeval{1, 0}, &fd)));
    to = at_port(0), fd = RPC_ANYSOCK;
    expect_calls("clntudp_bufcreate",
                 Handle(clntudp_bufcreate(&to, program, 1, timeval{1, 0}, &fd, 4096, 4096)));
  }
}

TEST_F(Creation, WithinACall) {
  int value = 7, result = 0;
  char* const in = reinterpret_cast<char*>(&value);
  char* const out = reinterpret_cast<char*>(&result);
  for (const rpcprog_t program : {kSvcCreateUdp, kRpcReg, kRegisterrpc}) {
    expect_path([&] {
      return rpc_call(localhost, program, 1, kNegate, xdr_of(xdr_int), in, xdr_of(xdr_int), out,
                      "udp") == RPC_SUCCESS &&
             result == -7;
    });
    expect_path([&] {
      return callrpc(localhost, static_cast<int>(program), 1, kNegate, xdr_of(xdr_int), in,
                     xdr_of(xdr_int), out) == 0 &&
             result == -7;
    });
  }
}

}  // namespace
}  // namespace clan
