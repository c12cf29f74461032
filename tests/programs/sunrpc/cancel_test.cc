// Threads that are cancelled within a call: they end, the process goes on, and so does the handle.
// Nothing can be expected of libtirpc's own handle then: it stays locked.
#include <pthread.h>

#include <functional>
#include <vector>

#include "forked.h"
#include "peers.h"

namespace clan {
namespace {

using namespace test;

enum Procedure : rpcproc_t { kNull, kNever, kLong8, kHalf };

std::vector<char> much(8 << 20);

/// Two halves, and a pause between.
bool_t xdr_halves(XDR* xdrs, void*) {
  for (int i = 0; i < 2; ++i) {
    if (xdr_opaque(xdrs, much.data(), 100'000) == FALSE) return FALSE;
    if (xdrs->x_op == XDR_ENCODE && i == 0) usleep(1'500'000);
  }
  return TRUE;
}

bool_t xdr_much(XDR* xdrs, void*) {
  return xdr_opaque(xdrs, much.data(), static_cast<u_int>(much.size()));
}

void dispatch(svc_req* request, SVCXPRT* xprt) {
  switch (request->rq_proc) {
    case kNever: return;
    case kHalf: (void)svc_sendreply(xprt, xdr_of(xdr_halves), nullptr); return;
    default: (void)svc_sendreply(xprt, xdr_of(xdr_void), nullptr);
  }
}

class Cancelled : public testing::Test {
 protected:
  static void serve(int ready) {
    signal(SIGPIPE, SIG_IGN);
    SVCXPRT* const xprt = svctcp_create(RPC_ANYSOCK, 0, 0);
    if (xprt == nullptr || svc_reg(xprt, EVERY, EVERY_NEW, dispatch, nullptr) == FALSE) return;
    say_port(ready, xprt->xp_port);
    svc_run();
  }
  static void* run(void* function) {
    (*static_cast<std::function<void()>*>(function))();
    return nullptr;
  }
  /// What becomes of a thread that is cancelled in the middle of it.
  static void cancel(std::function<void()> call) {
    pthread_t thread;
    ASSERT_EQ(pthread_create(&thread, nullptr, run, &call), 0);
    usleep(200'000);
    ASSERT_EQ(pthread_cancel(thread), 0);
    void* ended = nullptr;
    ASSERT_EQ(pthread_join(thread, &ended), 0);
    EXPECT_EQ(ended, PTHREAD_CANCELED);
  }
  /// The same handle's calls go on, over CLAN; stock: another one's.
  void expect_served(Handle* client) {
    if (!preloaded()) {
      (void)client->release();   // to destroy it is to wait for ever
      shutdown(fd_, SHUT_RDWR);  // nor is its descriptor's number to be used again
      *client = by_tcp(server_.port());
      ASSERT_TRUE(*client && clnt_control(client->get(), CLGET_FD, reinterpret_cast<char*>(&fd_)));
    }
    ASSERT_NO_FATAL_FAILURE(warm_up(client->get()));
  }
  Forked server_{serve};
  Handle client_ = by_tcp(server_.port());
  int fd_ = -1;
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ThreadSanitizer does not see what a thread does that is cancelled in poll()";
#endif
    ASSERT_TRUE(client_);
    ASSERT_TRUE(clnt_control(client_.get(), CLGET_FD, reinterpret_cast<char*>(&fd_)));
    ASSERT_NO_FATAL_FAILURE(warm_up(client_.get()));
  }
};

TEST_F(Cancelled, WhileItWaitsForTheReplyAThreadEnds) {
  for (int i = 0; i < 5; ++i) {
    cancel([&] {
      (void)clnt_call(client_.get(), kNever, xdr_of(xdr_void), nullptr, xdr_of(xdr_void), nullptr,
                      kLong);
    });
    ASSERT_NO_FATAL_FAILURE(expect_served(&client_));
  }
}

TEST_F(Cancelled, InTheMiddleOfAReplyAThreadEnds) {
  cancel([&] {
    (void)clnt_call(client_.get(), kHalf, xdr_of(xdr_void), nullptr, xdr_of(xdr_halves), nullptr,
                    kLong);
  });
  ASSERT_NO_FATAL_FAILURE(expect_served(&client_));
}

TEST_F(Cancelled, WhileItSendsAThreadEnds) {
  kill(server_.pid(), SIGSTOP);
  cancel([&] {
    (void)clnt_call(client_.get(), kLong8, xdr_of(xdr_much), nullptr, xdr_of(xdr_void), nullptr,
                    kLong);
  });
  kill(server_.pid(), SIGCONT);
  ASSERT_NO_FATAL_FAILURE(expect_served(&client_));
}

// A thread that must not be cancelled is not.
TEST_F(Cancelled, ButForbiddenAThreadIsNot) {
  int result = 0;
  void* ended = nullptr;
  std::function<void()> call = [&] {
    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    result = clnt_call(client_.get(), kNever, xdr_of(xdr_void), nullptr, xdr_of(xdr_void), nullptr,
                       (timeval{0, 400'000}));
  };
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, nullptr, run, &call), 0);
  ASSERT_EQ(pthread_cancel(thread), 0);
  ASSERT_EQ(pthread_join(thread, &ended), 0);
  EXPECT_EQ(result, RPC_TIMEDOUT);
}

}  // namespace
}  // namespace clan
