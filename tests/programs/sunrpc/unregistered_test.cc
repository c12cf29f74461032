// Servers that work on a call later, or by another thread, and take its transport out of libtirpc's
// sight until then: what its client sends meanwhile is served afterwards, in order.
#include <poll.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "forked.h"
#include "peers.h"

namespace clan {
namespace {

using namespace test;
using Clock = std::chrono::steady_clock;

enum Procedure : rpcproc_t { kNull, kAdd, kTotal };

struct Work {
  SVCXPRT* xprt;
  rpcproc_t proc;
  int bytes;
  Clock::time_point due;
};
std::chrono::milliseconds takes{200};
std::mutex mutex;
std::condition_variable changed;
std::deque<Work> waiting;
int total = 0;

void dispatch(svc_req* request, SVCXPRT* xprt) {
  if (request->rq_proc == kNull) {
    (void)svc_sendreply(xprt, xdr_of(xdr_void), nullptr);
    return;
  }
  blob value{};
  if (request->rq_proc == kAdd) {
    if (svc_getargs(xprt, xdr_of(xdr_blob), &value) == FALSE) return svcerr_decode(xprt);
    (void)svc_freeargs(xprt, xdr_of(xdr_blob), &value);
  }
  xprt_unregister(xprt);
  std::lock_guard lock(mutex);
  waiting.push_back(
      {xprt, request->rq_proc, static_cast<int>(value.blob_len), Clock::now() + takes});
  changed.notify_one();
}

void finish(const Work& work) {
  int sum = 0;
  {
    std::lock_guard lock(mutex);
    sum = total += work.bytes;
  }
  if (work.proc == kTotal) (void)svc_sendreply(work.xprt, xdr_of(xdr_int), &sum);
  xprt_register(work.xprt);
}

std::optional<Work> next_due() {
  std::lock_guard lock(mutex);
  if (waiting.empty() || Clock::now() < waiting.front().due) return std::nullopt;
  const Work work = waiting.front();
  waiting.pop_front();
  return work;
}

/// One thread: it works between two looks.
void loop() {
  for (;;) {
    std::vector<pollfd> fds(svc_pollfd, svc_pollfd + svc_max_pollfd);
    const int ready = poll(fds.data(), fds.size(), 10);
    if (ready > 0) svc_getreq_poll(fds.data(), ready);
    while (const auto work = next_due()) finish(*work);
  }
}

/// svc_run() looks again when something has come: nobody tells it that a transport has come back.
void loop_beside_workers() {
  const auto work = [] {
    for (;;) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [] { return !waiting.empty(); });
      const Work next = waiting.front();
      waiting.pop_front();
      lock.unlock();
      std::this_thread::sleep_until(next.due);
      finish(next);
    }
  };
  for (int i = 0; i < 3; ++i) std::thread(work).detach();
  svc_run();
}

// ThreadSanitizer may take a thread of a forked child for one that the parent had, and end it.
#if defined(__SANITIZE_THREAD__)
constexpr bool kChildrenHaveThreads = false;
#else
constexpr bool kChildrenHaveThreads = true;
#endif

class Unregistered : public testing::Test {
 protected:
  using Loop = void();
  static Forked server(Loop* run, int ms) {
    return Forked([run, ms](int ready) {
      takes = std::chrono::milliseconds(ms);
      SVCXPRT* const xprt = svctcp_create(RPC_ANYSOCK, 0, 0);
      if (xprt == nullptr || svc_reg(xprt, EVERY, EVERY_NEW, dispatch, nullptr) == FALSE) return;
      say_port(ready, xprt->xp_port);
      run();
    });
  }
  void SetUp() override {
    if (!preloaded()) {
      GTEST_SKIP() << "what libtirpc has read ahead waits until more comes by the socket";
    }
  }
  /// Without waiting.
  static void add(CLIENT* client, std::size_t bytes) {
    std::vector<char> all(bytes, 'x');
    blob value{static_cast<u_int>(bytes), all.data()};
    ASSERT_EQ(clnt_call(client, kAdd, xdr_of(xdr_blob), &value, nullptr, nullptr, (timeval{0, 0})),
              RPC_SUCCESS);
  }
  static int total_of(CLIENT* client) {
    int sum = -1;
    EXPECT_EQ(clnt_call(client, kTotal, xdr_of(xdr_void), nullptr, xdr_of(xdr_int), &sum, kLong),
              RPC_SUCCESS)
        << clnt_sperror(client, "");
    return sum;
  }
};

TEST_F(Unregistered, ATransportsCallsWaitUntilItIsRegistered) {
  for (Loop* const run : {loop, loop_beside_workers}) {
    if (run != loop && !kChildrenHaveThreads) continue;
    const Forked server = Unregistered::server(run, 200);
    const Handle client = by_tcp(server.port()), other = by_tcp(server.port());
    ASSERT_TRUE(client && other);
    ASSERT_NO_FATAL_FAILURE(warm_up(client.get()));
    ASSERT_NO_FATAL_FAILURE(warm_up(other.get()));
    const Paths before = paths();
    for (const std::size_t bytes : {10, 2000, 100'000}) {
      add(client.get(), bytes);
      add(client.get(), bytes + 1);
      const auto begin = Clock::now();
      ASSERT_NO_FATAL_FAILURE(warm_up(other.get()));  // others are served meanwhile
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
      total_of(client.get());
    }
    EXPECT_EQ(total_of(client.get()), 2 * (10 + 2000 + 100'000) + 3);
    expect_clan(before, 3 * 4 + 1);
  }
}

bool_t xdr_slowly(XDR* xdrs, blob* value) {
  u_int bytes = value->blob_len;
  if (xdr_u_int(xdrs, &bytes) == FALSE || xdr_opaque(xdrs, value->blob_val, bytes / 2) == FALSE)
    return FALSE;
  usleep(100'000);
  return xdr_opaque(xdrs, value->blob_val + bytes / 2, bytes - bytes / 2);
}

// Long calls of one that has stopped within a call are put together before they are dispatched.
TEST_F(Unregistered, ASlowClientsCallsWaitAsWell) {
  const Forked server = Unregistered::server(loop, 200);
  const Handle client = by_tcp(server.port());
  ASSERT_TRUE(client);
  ASSERT_NO_FATAL_FAILURE(warm_up(client.get()));
  std::vector<char> all(100'000, 'x');
  blob value{static_cast<u_int>(all.size()), all.data()};
  ASSERT_EQ(
      clnt_call(client.get(), kAdd, xdr_of(xdr_slowly), &value, nullptr, nullptr, (timeval{0, 0})),
      RPC_SUCCESS);
  EXPECT_EQ(total_of(client.get()), 100'000);
  const Paths before = paths();
  add(client.get(), 50);
  for (const std::size_t bytes : {40'000, 60, 70'000, 80'000}) add(client.get(), bytes);
  EXPECT_EQ(total_of(client.get()), 290'110);
  expect_clan(before, 6);
}

// It is registered at any time, also while its next call is being checked.
TEST_F(Unregistered, WorkersThatAreQuickLoseNoCall) {
  if (!kChildrenHaveThreads) GTEST_SKIP() << "ThreadSanitizer and threads of a forked server";
  const Forked server = Unregistered::server(loop_beside_workers, 0);
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back([&] {
      const Handle client = by_tcp(server.port());
      ASSERT_TRUE(client);
      ASSERT_NO_FATAL_FAILURE(warm_up(client.get()));
      for (int n = 0; n < 500; ++n) {
        add(client.get(), 1);
        add(client.get(), 1);
        ASSERT_GT(total_of(client.get()), 2 * n);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  const Handle client = by_tcp(server.port());
  ASSERT_TRUE(client);
  EXPECT_EQ(total_of(client.get()), 3 * 500 * 2);
}

// What a client sends just before it ends is served, though its transport is away.
TEST_F(Unregistered, ACallOfAClientThatHasGoneIsServed) {
  const Forked server = Unregistered::server(loop, 200);
  Handle client = by_tcp(server.port());
  const Handle other = by_tcp(server.port());
  ASSERT_TRUE(client && other);
  ASSERT_NO_FATAL_FAILURE(warm_up(client.get()));
  for (int i = 0; i < 3; ++i) add(client.get(), 7);
  client.reset();
  usleep(1'000'000);
  EXPECT_EQ(total_of(other.get()), 21);
}

}  // namespace
}  // namespace clan
