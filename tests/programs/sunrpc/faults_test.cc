// Either side killed or stopped at each step of a call, a client without descriptors or memory, a
// child that has its parent's handle: calls end in time, nobody crashes, no call of a stream is
// made twice.
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>

#include "forked.h"
#include "peers.h"

namespace clan {
namespace {

using namespace test;

constexpr timeval kShort{0, 200'000};

/// What is under way when the fault comes.
enum class Step { kNothing, kShortCall, kLongArguments, kLongBothWays, kWaiting, kCallback };
constexpr Step kSteps[] = {Step::kNothing,      Step::kShortCall, Step::kLongArguments,
                           Step::kLongBothWays, Step::kWaiting,   Step::kCallback};

std::vector<char>& megabytes() {
  static std::vector<char> all(4 << 20, 'x');
  return all;
}

enum clnt_stat negate(CLIENT* client, int value, int* result, timeval timeout) {
  return clnt_call(client, NEGATE, xdr_of(xdr_int), &value, xdr_of(xdr_int), result, timeout);
}

/// One call. `callback`: the port of a server that this one calls.
enum clnt_stat make_call(CLIENT* client, Step step, u_int callback, timeval timeout) {
  blob bytes{static_cast<u_int>(megabytes().size()), megabytes().data()}, got{};
  int number = 20, result = 0;
  u_int count = 0;
  enum clnt_stat stat = RPC_SUCCESS;
  switch (step) {
    case Step::kNothing:
    case Step::kShortCall:
      stat = negate(client, number, &result, timeout);
      EXPECT_TRUE(stat != RPC_SUCCESS || result == -number);
      break;
    case Step::kLongArguments:
      stat = clnt_call(client, COUNT, xdr_of(xdr_blob), &bytes, xdr_of(xdr_u_int), &count, timeout);
      EXPECT_TRUE(stat != RPC_SUCCESS || count == bytes.blob_len * 'x');
      break;
    case Step::kLongBothWays:
      stat = clnt_call(client, ECHO, xdr_of(xdr_blob), &bytes, xdr_of(xdr_blob), &got, timeout);
      EXPECT_TRUE(stat != RPC_SUCCESS || got.blob_len == bytes.blob_len);
      xdr_free(xdr_of(xdr_blob), &got);
      break;
    case Step::kWaiting:
      stat = clnt_call(client, SLEEP, xdr_of(xdr_int), &number, xdr_of(xdr_int), &result, timeout);
      break;
    case Step::kCallback:
      stat = clnt_call(client, CALL_BACK, xdr_of(xdr_u_int), &callback, xdr_of(xdr_int), &result,
                       timeout);
      break;
  }
  return stat;
}

/// libtirpc writes for as long as it takes: to a server that has stopped, without end. Where a call
/// of 4 MB goes by the socket it is to fail instead.
void bound_writes(CLIENT* client) {
  int fd = -1;
  const timeval most{5, 0};
  ASSERT_TRUE(clnt_control(client, CLGET_FD, reinterpret_cast<char*>(&fd)));
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most), 0);
}

/// By then a fault has come, however busy the machine is.
std::chrono::steady_clock::time_point soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(20);
}

bool says_the_server_failed(enum clnt_stat stat) {
  return stat == RPC_TIMEDOUT || stat == RPC_CANTRECV || stat == RPC_CANTSEND;
}

bool is_long(Step step) { return step == Step::kLongArguments || step == Step::kLongBothWays; }

// libtirpc alone writes to one that has stopped for as long as it takes, and waits 35 seconds for
// one that has. So long calls do not begin before calls go over CLAN, either.
bool is_left_out(Step step, int fault) { return fault == SIGSTOP && !preloaded() && is_long(step); }

class Faults : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { signal(SIGPIPE, SIG_IGN); }  // libtirpc writes to sockets that have ended
};
INSTANTIATE_TEST_SUITE_P(By, Faults, testing::Values(SIGKILL, SIGSTOP),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Stop"; });

TEST_P(Faults, OfTheServerAtAnyStepEndTheCall) {
  Server callback({"tcp"});
  for (const Step step : kSteps) {
    if (is_left_out(step, GetParam())) continue;
    for (const int after_us : {0, 1000, 4000, 15'000}) {
      Server server({"tcp"});
      Handle client = by_tcp(server.tcp());
      ASSERT_TRUE(client);
      ASSERT_NO_FATAL_FAILURE(bound_writes(client.get()));
      if (step != Step::kNothing) {
        ASSERT_NO_FATAL_FAILURE(warm_up(client.get()));
      }
      std::thread fault([&] {
        usleep(static_cast<useconds_t>(after_us));
        kill(server.pid(), GetParam());
      });
      enum clnt_stat stat = RPC_SUCCESS;
      for (const auto end = soon();
           stat == RPC_SUCCESS && std::chrono::steady_clock::now() < end;) {
        stat = make_call(client.get(), step, static_cast<u_int>(callback.tcp()), kShort);
      }
      fault.join();
      EXPECT_TRUE(says_the_server_failed(stat))
          << clnt_sperror(client.get(), "") << " step " << static_cast<int>(step);
      if (GetParam() == SIGKILL) {
        EXPECT_NE(make_call(client.get(), Step::kShortCall, 0, kShort), RPC_SUCCESS);
        continue;
      }
      kill(server.pid(), SIGCONT);
      // after a time-out libtirpc's own client passes over a reply
      Handle next = by_tcp(server.tcp());
      ASSERT_TRUE(next);
      EXPECT_EQ(make_call(preloaded() ? client.get() : next.get(), Step::kShortCall, 0, kLong),
                RPC_SUCCESS);
      EXPECT_EQ(make_call(next.get(), Step::kLongBothWays, 0, kLong), RPC_SUCCESS);
    }
  }
}

TEST_P(Faults, OfTheServerEndCallsByDatagrams) {
  for (const Step step : {Step::kNothing, Step::kShortCall, Step::kWaiting}) {
    Server server({"udp"});
    Handle client = by_udp(server.udp());
    ASSERT_TRUE(client);
    if (step != Step::kNothing) warm_up(client.get());
    std::thread fault([&] {
      usleep(3000);
      kill(server.pid(), GetParam());
    });
    enum clnt_stat stat = RPC_SUCCESS;
    for (const auto end = soon(); stat == RPC_SUCCESS && std::chrono::steady_clock::now() < end;) {
      stat = make_call(client.get(), step, 0, kShort);
    }
    fault.join();
    EXPECT_TRUE(says_the_server_failed(stat)) << clnt_sperror(client.get(), "");
    if (GetParam() == SIGKILL) continue;
    kill(server.pid(), SIGCONT);
    EXPECT_EQ(make_call(client.get(), Step::kShortCall, 0, kLong), RPC_SUCCESS);
  }
}

TEST_P(Faults, OfAClientAtAnyStepLeaveTheOthersServed) {
  Server callback({"tcp"}), server({"tcp"});
  Handle other = by_tcp(server.tcp());
  ASSERT_TRUE(other);
  warm_up(other.get());
  for (const Step step : kSteps) {
    if (is_left_out(step, GetParam())) continue;
    for (const int after_us : {0, 2000, 15'000}) {
      int ends[2];
      ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
      const pid_t child = fork_of_test();
      if (child == 0) {
        close(ends[0]);
        Handle client = by_tcp(server.tcp());
        if (is_long(step)) {
          warm_up(client.get());
          if (HasFatalFailure() || write(ends[1], "", 1) != 1) _exit(1);
        }
        if (step == Step::kNothing) pause();
        const timeval limit = is_long(step) ? kLong : kShort;  // time-outs move calls to the socket
        for (;;) (void)make_call(client.get(), step, static_cast<u_int>(callback.tcp()), limit);
      }
      close(ends[1]);
      char begun;
      if (is_long(step)) {
        EXPECT_EQ(read(ends[0], &begun, 1), 1);
      }
      close(ends[0]);
      usleep(static_cast<useconds_t>(after_us));
      kill(child, GetParam());
      // Where a busy machine has kept a client on its socket, the rest of a record is waited for
      // there as libtirpc does: 35 s.
      constexpr timeval kLongerThanARecord{60, 0};
      for (int i = 0; i < 20; ++i) {
        EXPECT_EQ(make_call(other.get(), Step::kShortCall, 0, kLongerThanARecord), RPC_SUCCESS);
      }
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
  EXPECT_EQ(make_call(other.get(), Step::kLongBothWays, 0, kLong), RPC_SUCCESS);
}

// Time-outs, stops and what comes too late: each call is made once.
TEST(Fault, NoCallOfAStreamIsMadeTwiceByAServerThatStopsAgainAndAgain) {
  Server server({"tcp"});
  Handle client = by_tcp(server.tcp()), counting = by_tcp(server.tcp());
  ASSERT_TRUE(client && counting);
  warm_up(client.get());
  warm_up(counting.get());
  const quad_t before = *served_2(nullptr, counting.get());
  std::atomic<bool> end{false};
  std::thread stopping([&] {
    while (!end) {
      usleep(2000);
      kill(server.pid(), SIGSTOP);
      usleep(30'000);
      kill(server.pid(), SIGCONT);
    }
  });
  constexpr int kCalls = 2000;
  int sent = 0;
  for (int i = 0; i < kCalls; ++i) {
    int result = 0;
    const enum clnt_stat stat =
        negate(client.get(), i, &result, i % 3 == 0 ? timeval{0, 3000} : kLong);
    if (stat != RPC_CANTSEND) ++sent;
    if (stat == RPC_SUCCESS) {
      EXPECT_EQ(result, -i);
    } else {
      EXPECT_EQ(stat, RPC_TIMEDOUT) << clnt_sperror(client.get(), "");
      if (!preloaded()) client = by_tcp(server.tcp());
    }
  }
  end = true;
  stopping.join();
  int result = 0;
  if (!preloaded()) usleep(300'000);  // what was sent by the sockets that are closed now
  EXPECT_EQ(negate(client.get(), 1, &result, kLong), RPC_SUCCESS);
  const quad_t* const after = served_2(nullptr, counting.get());
  ASSERT_NE(after, nullptr);
  EXPECT_LE(*after - before, sent + 2);
  EXPECT_TRUE(!preloaded() || *after - before == sent + 2) << *after - before;
}

/// Runs it in a child; what it returns, or 1000 and the signal that has ended it.
int status_of_child(const std::function<int()>& function) {
  const pid_t child = fork_of_test();
  if (child == 0) [&]() noexcept { _exit(function()); }();
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

enum Ended { kServed = 0, kNoHandle, kFailed, kWrong };

int two_calls(int port) {
  Handle client = by_tcp(port);
  if (!client) return kNoHandle;
  for (int i = 1; i <= 2; ++i) {
    int result = 0;
    if (negate(client.get(), i, &result, kLong) != RPC_SUCCESS) return kFailed;
    if (result != -i) return kWrong;
  }
  return kServed;
}

TEST(Fault, AClientWithoutDescriptorsIsServedByTheSocket) {
  Server server({"tcp"});
  int served = 0;
  for (int spare = 0; spare < 24; ++spare) {
    const int status = status_of_child([&] {
      const int next = dup(0);
      rlimit limit{};
      limit.rlim_cur = limit.rlim_max = static_cast<rlim_t>(next) + static_cast<rlim_t>(spare);
      close(next);
      if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return -1;
      return two_calls(server.tcp());
    });
    EXPECT_TRUE(status == kServed || (status == kNoHandle && served == 0))
        << "spare " << spare << ": " << status;
    if (status == kServed) ++served;
  }
  EXPECT_GT(served, 20);
}

std::size_t address_space() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

TEST(Fault, AClientWithoutAddressSpaceIsServedByTheSocket) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer needs the address space";
#endif
  Server server({"tcp"});
  for (int i = 0; i < 128; ++i) {
    const bool tight = i < 64;  // libtirpc's own needs more: it follows null pointers then
    const std::size_t spare =
        tight ? static_cast<std::size_t>(i) << 13 : static_cast<std::size_t>(i - 63) << 20;
    const int status = status_of_child([&] {
      rlimit limit{};
      limit.rlim_cur = limit.rlim_max = address_space() + spare;
      if (setrlimit(RLIMIT_AS, &limit) != 0) return -1;
      return two_calls(server.tcp());
    });
    EXPECT_TRUE(status == kServed || (tight && (status == kNoHandle || status == 1000 + SIGSEGV)))
        << "spare " << spare << ": " << status;
  }
}

void* volatile last_taken = nullptr;  ///< a chain: else the compiler leaves malloc() out

/// Takes all memory that malloc() has.
void take_all_memory() {
  for (std::size_t size = 1 << 20; size >= 16; size /= 2) {
    while (void* block = std::malloc(size)) {
      *static_cast<void**>(block) = last_taken;
      last_taken = block;
    }
  }
}

// No exception comes out of a call: its program may be in C.
TEST(Fault, AClientWithoutMemoryBehindItsHandleIsServedByTheSocket) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer needs the address space";
#endif
  Server server({"tcp"});
  for (std::size_t spare = 16; spare < 200'000; spare += spare / 8 + 16) {
    const int status = status_of_child([&] {
      Handle client = by_tcp(server.tcp());
      if (!client) return static_cast<int>(kNoHandle);
      void* const later = std::malloc(spare);
      rlimit limit{};
      limit.rlim_cur = limit.rlim_max = address_space();
      if (setrlimit(RLIMIT_AS, &limit) != 0) return -1;
      take_all_memory();
      std::free(later);
      int result = 0;
      for (int i = 1; i <= 3; ++i) {
        if (negate(client.get(), i, &result, kLong) != RPC_SUCCESS)
          return static_cast<int>(kFailed);
        if (result != -i) return static_cast<int>(kWrong);
      }
      _exit(kServed);  // what ends the handle may need memory
    });
    EXPECT_EQ(status, kServed) << "spare " << spare;
  }
}

TEST(Fault, AChildThatDestroysItsParentsHandleDoesNotEndIt) {
  Server server({"tcp", "udp"});
  Handle tcp = by_tcp(server.tcp()), udp = by_udp(server.udp());
  ASSERT_TRUE(tcp && udp);
  for (Handle* handle : {&tcp, &udp}) {
    warm_up(handle->get());
    const Paths before = paths();
    int result = 0;
    for (const bool use : {false, true}) {
      EXPECT_EQ(status_of_child([&] {
                  int got = 0;
                  if (use && negate(handle->get(), 3, &got, kLong) != RPC_SUCCESS) return 1;
                  handle->reset();
                  return 0;
                }),
                0);
      for (int i = 0; i < 20; ++i) ASSERT_EQ(negate(handle->get(), i, &result, kLong), RPC_SUCCESS);
    }
    expect_clan(before, 40);
  }
}

int open_descriptors() {
  int count = 0;
  DIR* const entries = opendir("/proc/self/fd");
  while (entries != nullptr && readdir(entries) != nullptr) ++count;
  if (entries != nullptr) closedir(entries);
  return count;
}

TEST(Fault, TransportsThatAreDestroyedLeaveNoDescriptor) {
  EXPECT_EQ(status_of_child([] {
              int before = 0;
              for (int i = 0; i < 1000; ++i) {
                SVCXPRT* const tcp = svctcp_create(RPC_ANYSOCK, 0, 0);
                SVCXPRT* const udp = svcudp_create(RPC_ANYSOCK);
                if (tcp == nullptr || udp == nullptr) return 1;
                svc_destroy(tcp);
                svc_destroy(udp);
                if (i == 0) before = open_descriptors();
              }
              return open_descriptors() == before ? 0 : 2;
            }),
            0);
}

/// CLAN's memory in this process that others have as well.
std::set<std::string> shared_memory() {
  std::set<std::string> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(" rw-s ") != std::string::npos && line.find("clan") != std::string::npos)
      found.insert(line);
  }
  return found;
}

void write_over_shared_memory(const std::set<std::string>& but_for) {
  for (const std::string& line : shared_memory()) {
    unsigned long from = 0, to = 0;
    if (but_for.count(line) > 0 || std::sscanf(line.c_str(), "%lx-%lx", &from, &to) != 2) continue;
    std::memset(reinterpret_cast<void*>(from), 0xff, to - from);
  }
}

// Nothing keeps a child from it. Its parent's next call may fail for that; the others are answered,
// and the server goes on with others.
TEST(Fault, AChildThatWritesOverItsParentsSharedMemoryCostsOneCall) {
  Server server({"tcp"});
  Handle other = by_tcp(server.tcp());
  ASSERT_TRUE(other);
  warm_up(other.get());
  EXPECT_EQ(status_of_child([&] {
              const std::set<std::string> of_the_test = shared_memory();
              Handle client = by_tcp(server.tcp());
              if (!client) return 1;
              warm_up(client.get());
              const int status = status_of_child([&] {
                write_over_shared_memory(of_the_test);
                return 0;
              });
              if (status != 0) return 2;
              int result = 0, failed = 0;
              for (int i = 0; i < 20; ++i) {
                if (negate(client.get(), i, &result, kLong) != RPC_SUCCESS) ++failed;
              }
              if (failed > 1) return 10 + failed;
              // The handle of a client that begins now.
              return two_calls(server.tcp());
            }),
            0);
  int result = 0;
  for (int i = 0; i < 20; ++i) ASSERT_EQ(negate(other.get(), i, &result, kLong), RPC_SUCCESS);
}

}  // namespace
}  // namespace clan
