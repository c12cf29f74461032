// Replies by the socket that come in two halves, from a child of the service, with a pause between:
// whatever ends the call meanwhile, later ones find the beginning of the next record.
#include <pthread.h>

#include <chrono>
#include <string>
#include <thread>

#include "forked.h"
#include "peers.h"

namespace clan {
namespace {

using namespace test;

enum Procedure : rpcproc_t { kNull, kNever, kHalf, kForked };

constexpr timeval kShort{0, 300'000};

/// One byte in a pipe: it is somebody's turn.
class Turn {
 public:
  Turn() {
    if (pipe2(ends_, O_CLOEXEC) != 0) std::abort();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    close(ends_[0]);
    close(ends_[1]);
  }
  void give() {
    const char byte = 0;
    if (write(ends_[1], &byte, 1) != 1) std::abort();
  }
  void take() {
    char byte;
    if (read(ends_[0], &byte, 1) != 1) _exit(1);
  }

 private:
  int ends_[2];
};

Turn* rest = nullptr;   ///< the second half may come
Turn* reply = nullptr;  ///< a child may write to the socket

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n <= 0) _exit(1);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

void reply_in_halves(int fd) {
  const std::string all(1 << 20, 'a');
  const std::uint32_t mark = htonl(0x8000'0000u | static_cast<std::uint32_t>(all.size()));
  const std::string_view bytes = all;
  write_all(fd, {reinterpret_cast<const char*>(&mark), sizeof mark});
  write_all(fd, bytes.substr(0, bytes.size() / 2));
  rest->take();
  write_all(fd, bytes.substr(bytes.size() / 2));
}

void dispatch(svc_req* request, SVCXPRT* xprt) {
  int value = 0;
  switch (request->rq_proc) {
    case kNever: return;
    case kHalf:
      reply->take();
      if (fork_of_test() != 0) return;
      reply_in_halves(xprt->xp_fd);
      reply->give();
      _exit(0);
    case kForked:
      if (svc_getargs(xprt, xdr_of(xdr_int), &value) == FALSE) return svcerr_decode(xprt);
      if (fork_of_test() != 0) return;
      reply->take();
      ++value;
      (void)svc_sendreply(xprt, xdr_of(xdr_int), &value);
      reply->give();
      _exit(0);
    default: (void)svc_sendreply(xprt, xdr_of(xdr_void), nullptr);
  }
}

void serve(int ready) {
  signal(SIGCHLD, SIG_IGN);
  Turn turn;
  reply = &turn;
  reply->give();
  SVCXPRT* const xprt = svctcp_create(RPC_ANYSOCK, 0, 0);
  if (xprt == nullptr || svc_reg(xprt, EVERY, EVERY_NEW, dispatch, nullptr) == FALSE) return;
  say_port(ready, xprt->xp_port);
  svc_run();
}

class HalfARecord : public testing::Test {
 protected:
  void SetUp() override {
    if (!preloaded()) GTEST_SKIP() << "after a time-out libtirpc's own passes over a reply";
    ASSERT_TRUE(client_);
    ASSERT_NO_FATAL_FAILURE(warm_up(client_.get()));
  }
  void TearDown() override {
    if (later_.joinable()) later_.join();
  }
  enum clnt_stat call(Procedure procedure, timeval timeout) {
    return clnt_call(client_.get(), procedure, xdr_of(xdr_void), nullptr, xdr_of(xdr_void), nullptr,
                     timeout);
  }
  enum clnt_stat forked(int value, timeval timeout = kLong) {
    int result = 0;
    const enum clnt_stat stat = clnt_call(client_.get(), kForked, xdr_of(xdr_int), &value,
                                          xdr_of(xdr_int), &result, timeout);
    EXPECT_TRUE(stat != RPC_SUCCESS || result == value + 1) << result;
    return stat;
  }
  /// While a call waits, probably.
  void give_the_rest_later() {
    later_ = std::thread([this] {
      usleep(300'000);
      rest_.give();
    });
  }
  void expect_replies() {
    for (int i = 0; i < 10; ++i) {
      ASSERT_EQ(forked(i), RPC_SUCCESS) << clnt_sperror(client_.get(), "");
      ASSERT_EQ(call(kNull, kLong), RPC_SUCCESS) << clnt_sperror(client_.get(), "");
    }
  }
  Turn rest_;
  Forked server_{[this](int ready) {
    rest = &rest_;
    serve(ready);
  }};
  Handle client_ = by_tcp(server_.port());
  std::thread later_;
};

TEST_F(HalfARecord, OfACallThatTimedOutIsPassedOverByTheNextCalls) {
  for (int round = 0; round < 3; ++round) {
    const Paths before = paths();
    ASSERT_EQ(call(kHalf, kShort), RPC_TIMEDOUT);
    give_the_rest_later();
    ASSERT_NO_FATAL_FAILURE(expect_replies());
    later_.join();
    expect_clan(before, 21);
  }
}

// After two time-outs in a row calls go by the socket for a second, and then the server is asked
// there again.
TEST_F(HalfARecord, OfACallThatTimedOutIsPassedOverBeforeCallsGoByTheSocket) {
  ASSERT_EQ(call(kHalf, kShort), RPC_TIMEDOUT);
  ASSERT_EQ(call(kNever, kShort), RPC_TIMEDOUT);
  const Paths before = paths();
  ASSERT_EQ(forked(1, kShort), RPC_TIMEDOUT);
  give_the_rest_later();
  ASSERT_NO_FATAL_FAILURE(expect_replies());
  EXPECT_GT(paths().stock, before.stock);
  ASSERT_NO_FATAL_FAILURE(warm_up(client_.get()));
  ASSERT_NO_FATAL_FAILURE(expect_replies());
}

TEST_F(HalfARecord, OfACallWhoseThreadIsCancelledIsPassedOverByTheNextCalls) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not see what a thread does that is cancelled in poll()";
#endif
  pthread_t thread;
  const auto wait = [](void* client) -> void* {
    (void)clnt_call(static_cast<CLIENT*>(client), kHalf, xdr_of(xdr_void), nullptr,
                    xdr_of(xdr_void), nullptr, kLong);
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, nullptr, wait, client_.get()), 0);
  usleep(300'000);
  ASSERT_EQ(pthread_cancel(thread), 0);
  void* ended = nullptr;
  ASSERT_EQ(pthread_join(thread, &ended), 0);
  EXPECT_EQ(ended, PTHREAD_CANCELED);
  const Paths before = paths();
  give_the_rest_later();
  ASSERT_NO_FATAL_FAILURE(expect_replies());
  expect_clan(before, 20);
}

}  // namespace
}  // namespace clan
