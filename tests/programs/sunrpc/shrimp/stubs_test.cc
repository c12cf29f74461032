// Calls by clan-rpcgen's stubs: results, errors, several under way, death.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/programs/sunrpc/shrimp/child.h"

namespace {

using clan::test::Child;

class Stubs : public testing::Test {
 protected:
  std::string name_ = "test-" + std::to_string(getpid()) + "-" + std::to_string(counter_++);
  Child server_{{SHRIMP_SERVER, name_}};
  clan_shrimp_client* client_ = nullptr;
  void SetUp() override {
    ASSERT_EQ(server_.line(), "ready\n");
    client_ = clan_shrimp_connect(name_.c_str(), &every_2_program, 10'000);
    ASSERT_NE(client_, nullptr) << std::strerror(errno);
  }
  void TearDown() override { clan_shrimp_close(client_); }

 private:
  static inline int counter_ = 0;
};

TEST_F(Stubs, ReturnWhatTheProcedureDoes) {
  for (int i = 0; i < 1000; ++i) {
    int result = 0;
    ASSERT_EQ(negate_2(&i, &result, client_), CLAN_SHRIMP_OK);
    ASSERT_EQ(result, -i);
  }
  credential who{};
  ASSERT_EQ(who_2(nullptr, &who, client_), CLAN_SHRIMP_OK);
  EXPECT_EQ(who.uid, geteuid());
  clan_free_credential(&who);
}

// The results of rpcgen's stubs over libtirpc, with CLAN in it and stock, and those of
// clan-rpcgen's stubs are the same text.
TEST_F(Stubs, GiveTheResultsOfRpcgensStubs) {
  int status = -1;
  const std::string ours = Child({SHRIMP_PRINT, name_}).all(&status);
  ASSERT_EQ(status, 0) << ours;
  EXPECT_GT(ours.size(), 1000u);
  EXPECT_EQ(ours.find("differs"), std::string::npos);
  Child rpc_server({SUNRPC_SERVER, "tcp"});
  int port = 0;
  ASSERT_EQ(std::sscanf(rpc_server.line().c_str(), "ready tcp=%d", &port), 1);
  EXPECT_EQ(Child({SUNRPC_PRINT, std::to_string(port)}).all(&status), ours);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Child({SUNRPC_PRINT, std::to_string(port)}, true).all(&status), ours);
}

TEST_F(Stubs, SeveralCallsMayBeUnderWay) {
  int values[CLAN_SHRIMP_SLOTS];
  uint64_t tickets[CLAN_SHRIMP_SLOTS + 1];
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < CLAN_SHRIMP_SLOTS; ++i) {
      values[i] = round * 100 + i;
      ASSERT_EQ(negate_2_send(&values[i], client_, &tickets[i]), CLAN_SHRIMP_OK);
    }
    int one = 1;
    EXPECT_EQ(negate_2_send(&one, client_, &tickets[CLAN_SHRIMP_SLOTS]), CLAN_SHRIMP_TOO_LARGE);
    for (int i = CLAN_SHRIMP_SLOTS - 1; i >= 0; --i) {
      int result = 0;
      ASSERT_EQ(negate_2_wait(&result, client_, tickets[i]), CLAN_SHRIMP_OK);
      ASSERT_EQ(result, -values[i]);
    }
  }
}

TEST_F(Stubs, LongMessagesGoThroughTheArena) {
  std::vector<char> bytes(5'000'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 13);
  for (int i = 0; i < 5; ++i) {
    blob in{}, out{};
    in.blob_len = static_cast<u_int>(bytes.size() - static_cast<std::size_t>(i));
    in.blob_val = bytes.data();
    ASSERT_EQ(echo_2(&in, &out, client_), CLAN_SHRIMP_OK);
    ASSERT_EQ(out.blob_len, in.blob_len);
    EXPECT_EQ(std::memcmp(out.blob_val, in.blob_val, in.blob_len), 0);
    clan_free_blob(&out);
  }
  std::vector<char> huge(std::size_t{9} << 20);
  blob in{}, out{};
  in.blob_len = static_cast<u_int>(huge.size());
  in.blob_val = huge.data();
  EXPECT_NE(echo_2(&in, &out, client_), CLAN_SHRIMP_OK);
  int result = 0, one = 1;
  EXPECT_EQ(negate_2(&one, &result, client_), CLAN_SHRIMP_OK);
}

TEST_F(Stubs, TimeOutsAreTold) {
  clan_shrimp_set_timeout(client_, 100);
  int ms = 400, result = 0;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(sleep_2(&ms, &result, client_), CLAN_SHRIMP_TIMED_OUT);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(95));
  clan_shrimp_set_timeout(client_, 10'000);
  for (int i = 0; i < 3 * CLAN_SHRIMP_SLOTS; ++i) {  // past the slot of the call that was given up
    ASSERT_EQ(negate_2(&i, &result, client_), CLAN_SHRIMP_OK);
    ASSERT_EQ(result, -i);
  }
}

TEST_F(Stubs, ALongCallThatWasGivenUpLeavesTheArenaToTheNext) {
  std::vector<char> bytes(100'000, 'x');
  blob in{}, out{};
  in.blob_len = static_cast<u_int>(bytes.size());
  in.blob_val = bytes.data();
  for (int i = 0; i < 2 * CLAN_SHRIMP_SLOTS; ++i) {
    kill(server_.pid, SIGSTOP);
    clan_shrimp_set_timeout(client_, 10);
    EXPECT_EQ(echo_2(&in, &out, client_), CLAN_SHRIMP_TIMED_OUT);
    EXPECT_EQ(echo_2(&in, &out, client_), CLAN_SHRIMP_TIMED_OUT);  // the server may read it yet
    kill(server_.pid, SIGCONT);
    clan_shrimp_set_timeout(client_, 20'000);
    ASSERT_EQ(echo_2(&in, &out, client_), CLAN_SHRIMP_OK);
    EXPECT_EQ(out.blob_len, in.blob_len);
    clan_free_blob(&out);
  }
}

TEST_F(Stubs, FailuresOfProceduresAreTold) {
  int one = 1, result = 0;
  EXPECT_EQ(forked_2(&one, &result, client_), CLAN_SHRIMP_REFUSED);
  EXPECT_EQ(negate_2(&one, &result, client_), CLAN_SHRIMP_OK);
}

// The signal comes anywhere in a round of the server, also between its last look and its sleep.
TEST(ShrimpServer, IsStoppedByAHandlerWheneverTheSignalComes) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer keeps a signal until the next call it knows; it knows no futex";
#endif
  constexpr int kRounds = 30'000;
  const std::string name = "test-stop-" + std::to_string(getpid());
  const clan_shrimp_program none{"none", 1, 0, nullptr};
  static clan_shrimp_server* server;
  server = clan_shrimp_listen(name.c_str(), &none);
  ASSERT_NE(server, nullptr) << std::strerror(errno);
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) { clan_shrimp_stop(server); };
  ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
  int late = -1;
  for (int i = 0; i < kRounds && late < 0; ++i) {
    const itimerval once{{}, {0, 1 + i % 100}};
    ASSERT_EQ(setitimer(ITIMER_REAL, &once, nullptr), 0);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(clan_shrimp_serve(server, 20'000), 0);
    if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(19)) late = i;
  }
  sigaction(SIGALRM, &before, nullptr);
  clan_shrimp_destroy(server);
  EXPECT_EQ(late, -1) << "the round that was not ended, of " << kRounds;
}

// There is always one to be served: while one client's is, the others ask.
TEST(ShrimpServer, ServesNoLongerThanItsTimeThoughCallsKeepComing) {
  const std::string name = "test-busy-" + std::to_string(getpid());
  const clan_shrimp_procedure procedure{1, [](clan_shrimp_call*) {
                                          usleep(1000);
                                          return CLAN_SHRIMP_OK;
                                        }};
  const clan_shrimp_program program{"busy", 1, 1, &procedure};
  clan_shrimp_server* const server = clan_shrimp_listen(name.c_str(), &program);
  ASSERT_NE(server, nullptr) << std::strerror(errno);
  pid_t children[4];
  for (pid_t& child : children) {
    child = fork();
    if (child != 0) continue;
    clan_shrimp_client* const client = clan_shrimp_connect(name.c_str(), &program, 20'000);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    clan_shrimp_request request{};
    request.number = 1;
    while (client != nullptr && std::chrono::steady_clock::now() < end)
      (void)clan_shrimp_do(client, &request);
    _exit(0);
  }
  EXPECT_EQ(clan_shrimp_serve(server, 2000), 0);
  for (const pid_t child : children) {
    EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "a client has come to its end before";
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  clan_shrimp_destroy(server);
}

TEST_F(Stubs, AnotherInterfaceIsRefused) {
  clan_shrimp_program other = every_2_program;
  other.hash ^= 1;
  EXPECT_EQ(clan_shrimp_connect(name_.c_str(), &other, 5000), nullptr);
  EXPECT_EQ(errno, EPROTOTYPE);
  EXPECT_EQ(clan_shrimp_connect("test-nobody", &every_2_program, 1000), nullptr);
  EXPECT_EQ(errno, ECONNREFUSED);
}

TEST_F(Stubs, AServerThatDiesIsTold) {
  for (const int how : {SIGKILL, 0}) {
    Child server({SHRIMP_SERVER, name_ + "-dies"});
    ASSERT_EQ(server.line(), "ready\n");
    clan_shrimp_client* client =
        clan_shrimp_connect((name_ + "-dies").c_str(), &every_2_program, 10'000);
    ASSERT_NE(client, nullptr);
    int argument = how, result = 0;
    const enum clan_shrimp_stat stat = leave_2(&argument, nullptr, client);
    EXPECT_EQ(stat, how == 0 ? CLAN_SHRIMP_OK : CLAN_SHRIMP_GONE);
    waitpid(server.pid, nullptr, 0);
    server.pid = 0;
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(negate_2(&argument, &result, client), CLAN_SHRIMP_GONE);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    clan_shrimp_close(client);
  }
}

TEST_F(Stubs, ThreadsShareAClientAndClientsAServer) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      clan_shrimp_client* own =
          t < 3 ? client_ : clan_shrimp_connect(name_.c_str(), &every_2_program, 10'000);
      for (int i = 0; i < 300; ++i) {
        int value = t * 1000 + i, result = 0;
        if (own == nullptr || negate_2(&value, &result, own) != CLAN_SHRIMP_OK || result != -value)
          ++wrong;
      }
      if (own != client_) clan_shrimp_close(own);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Stubs, AChildOfForkConnectsByItself) {
  const pid_t child = fork();
  if (child == 0) {
    int one = 1, result = 0;
    if (negate_2(&one, &result, client_) != CLAN_SHRIMP_GONE) _exit(1);
    clan_shrimp_client* own = clan_shrimp_connect(name_.c_str(), &every_2_program, 10'000);
    if (own == nullptr || negate_2(&one, &result, own) != CLAN_SHRIMP_OK || result != -1) _exit(2);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  int one = 1, result = 0;
  EXPECT_EQ(negate_2(&one, &result, client_), CLAN_SHRIMP_OK);
}

}  // namespace
