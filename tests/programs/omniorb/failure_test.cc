// What happens when a process dies, is stopped, is late, ends its ORB or forks: what happens over
// TCP.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "plugins/omniorb/traffic_page.h"
#include "server.h"

namespace {

using namespace suite;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

template <typename Call>
long milliseconds_of(Call call) {
  const auto start = Clock::now();
  call();
  return std::chrono::duration_cast<milliseconds>(Clock::now() - start).count();
}

/// The name of the system exception that a call ends with, "" for none.
template <typename Call>
std::string exception_of(Call call) {
  try {
    call();
    return "";
  } catch (const CORBA::SystemException& problem) {
    return problem._name();
  }
}

TEST(Failure, AKilledServerIsCommFailureDuringACallAndTransientAfterwards) {
  Process process = start_server();
  Orb orb;
  Suite::Server_var server = orb.server(process.line());
  server->null_call();
  EXPECT_PATH();
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(200));
    process.end(SIGKILL);
  });
  EXPECT_THROW(server->sleep(20'000), CORBA::COMM_FAILURE);
  killer.join();
  EXPECT_THROW(server->null_call(), CORBA::TRANSIENT);
}

TEST(Failure, AServerKilledBetweenCallsIsTransientOrCommFailureAndTransientThen) {
  Process process = start_server();
  Orb orb;
  Suite::Server_var server = orb.server(process.line());
  server->null_call();
  process.end(SIGKILL);
  std::this_thread::sleep_for(milliseconds(100));
  // over TCP it depends on the kernel's timing
  const std::string first = exception_of([&] { server->null_call(); });
  EXPECT_TRUE(first == "TRANSIENT" || first == "COMM_FAILURE") << first;
  EXPECT_THROW(server->null_call(), CORBA::TRANSIENT);
}

TEST(Failure, ALateAnswerIsTimeoutAtItsDeadlineAndTheNextCallWorks) {
  Process process = start_server();
  Orb orb;
  Suite::Server_var server = orb.server(process.line());
  server->null_call();
  omniORB::setClientCallTimeout(server, 200);
  const long ms =
      milliseconds_of([&] { EXPECT_EQ(exception_of([&] { server->sleep(5000); }), "TIMEOUT"); });
  EXPECT_GE(ms, 190);
  EXPECT_LT(ms, 3000);
  omniORB::setClientCallTimeout(server, 0);
  server->null_call();
  EXPECT_PATH();
}

TEST(Failure, AStoppedServerIsTimeoutAtTheDeadlineAndGoesOnLater) {
  Process process = start_server();
  Orb orb;
  Suite::Server_var server = orb.server(process.line());
  server->null_call();
  process.stop();
  omniORB::setClientCallTimeout(server, 500);
  const long ms =
      milliseconds_of([&] { EXPECT_EQ(exception_of([&] { server->null_call(); }), "TIMEOUT"); });
  EXPECT_GE(ms, 490);
  EXPECT_LT(ms, 5000);
  // More than fits into the connection: the deadline ends the sending.
  Suite::Bytes bytes;
  bytes.length(1'500'000);
  EXPECT_EQ(exception_of([&] { server->put(bytes); }), "TIMEOUT");
  process.signal(SIGCONT);
  omniORB::setClientCallTimeout(server, 0);
  server->null_call();
}

TEST(Failure, AStoppedServerThatNobodyIsConnectedToIsTimeoutAtTheDeadline) {
  Process process = start_server();
  const std::string reference = process.line();
  process.stop();
  Orb orb;
  Suite::Server_var server = orb.server(reference);
  omniORB::setClientCallTimeout(server, 600);
  const long ms =
      milliseconds_of([&] { EXPECT_EQ(exception_of([&] { server->null_call(); }), "TIMEOUT"); });
  EXPECT_LT(ms, 5000);
  process.signal(SIGCONT);
  omniORB::setClientCallTimeout(server, 0);
  server->null_call();
}

/// Rows of a process's table of connections over CLAN that are in use; -1: it has no table.
int connections_of(pid_t pid) {
  const std::filesystem::path directory = "/proc/" + std::to_string(pid) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone).string().find(clan::orb::kTrafficName) ==
        std::string::npos)
      continue;
    std::ifstream file(entry.path(), std::ios::binary);
    clan::orb::TrafficHead head;
    file.read(reinterpret_cast<char*>(&head), sizeof head);
    int used = 0;
    for (std::uint32_t i = 0; file && i < head.used; ++i) {
      clan::orb::TrafficRow row;
      file.read(reinterpret_cast<char*>(&row), sizeof row);
      used += row.role != 0 ? 1 : 0;
    }
    return used;
  }
  return -1;
}

/// Connections that this process has opened as a client.
std::atomic<int> opened{0};
CORBA::Boolean note_opened(omni::omniInterceptors::clientOpenConnection_T::info_T&) {
  ++opened;
  return 1;
}

// The side whose period it is has it closed, and the other lets go of it; the next call makes one.
void idle_connections_are_closed(const std::vector<std::string>& at_server,
                                 const std::vector<std::string>& at_client) {
  Process process = start_server(at_server);
  Orb orb(at_client);
  omniORB::getInterceptors()->clientOpenConnection.add(note_opened);
  Suite::Server_var server = orb.server(process.line());
  opened = 0;
  server->null_call();
  EXPECT_EQ(opened, 1);
  if (!stock()) {
    EXPECT_EQ(connections_of(process.pid()), 1);
  }
  const auto end = Clock::now() + std::chrono::seconds(20);
  const auto there = [&] {
    return stock() ? Clock::now() < end - std::chrono::seconds(16)
                   : connections_of(process.pid()) > 0;
  };
  while (there() && Clock::now() < end) std::this_thread::sleep_for(milliseconds(50));
  if (!stock()) {
    EXPECT_EQ(connections_of(process.pid()), 0) << "still there after 20 s";
  }
  for (int i = 0; i < 3; ++i) server->null_call();
  EXPECT_PATH();
  EXPECT_GE(opened, 2) << "more where a busy machine has made the calls idle in between";
}

TEST(Failure, IdleConnectionsAreClosedByTheServerAndMadeAgain) {
  idle_connections_are_closed({"-ORBinConScanPeriod", "1", "-ORBscanGranularity", "1"}, {});
}

TEST(Failure, IdleConnectionsAreClosedByTheClientAndMadeAgain) {
  idle_connections_are_closed({}, {"-ORBoutConScanPeriod", "1", "-ORBscanGranularity", "1"});
}

TEST(Failure, AServerThatShutsDownInGoodOrderIsTransient) {
  Process process = start_server();
  Orb orb;
  Suite::Server_var server = orb.server(process.line());
  server->null_call();
  server->shutdown();
  EXPECT_EQ(process.wait(), 0);
  EXPECT_THROW(server->null_call(), CORBA::TRANSIENT);
}

// Starts a client that makes one call and stays, and prints by which path it went, or what came of
// it.
Process stay(const std::string& reference) {
  return Process(
      {program("omniorb-suite-call"), reference, "600", "-ORBclientCallTimeOutPeriod", "3000"},
      {"LD_PRELOAD=" SUITE_PRELOAD});
}

// UndefinedBehaviorSanitizer asks by a pipe() of its own whether it may read an object: without
// descriptors it takes each for none. AddressSanitizer wants more address space than the limit.
#if defined(__SANITIZE_ADDRESS__)
#define NOT_SANITIZED() GTEST_SKIP() << "a sanitizer needs what the server is to be without"
#else
#define NOT_SANITIZED() static_assert(true)
#endif

// More clients than it has descriptors for. Over TCP they wait in the kernel until their time is
// over.
TEST(FullServer, ServesThoseItHasRefusesOthersAsOverTcpAndTakesThemWhenThereIsRoom) {
  NOT_SANITIZED();
  if (::access("/usr/bin/prlimit", X_OK) != 0) GTEST_SKIP() << "prlimit is not installed";
  Process process({"/usr/bin/prlimit", "--nofile=48", program("omniorb-suite-server"),
                   "-ORBendPoint", "giop:tcp:127.0.0.1:"},
                  {"LD_PRELOAD=" SUITE_PRELOAD, "ORBclanEndPoint=1"});
  const std::string reference = process.line();
  Orb orb;
  Suite::Server_var server = orb.server(reference);
  server->null_call();
  EXPECT_PATH();
  int refused = 0;
  {
    std::vector<Process> others;
    for (int i = 0; i < 60 && refused < 2; ++i) {
      others.push_back(stay(reference));
      const std::string outcome = others.back().line();
      if (outcome.substr(0, 5) == "giop:") continue;
      ++refused;
      EXPECT_TRUE(outcome == "TRANSIENT" || outcome == "TIMEOUT" || outcome == "COMM_FAILURE")
          << outcome;
    }
    EXPECT_EQ(refused, 2);
    // Over TCP a full server may leave those it has without an answer for a minute.
    if (!stock()) server->null_call();
    EXPECT_PATH();
  }
  std::string outcome;
  for (int i = 0; i < 10 && outcome.substr(0, 5) != "giop:"; ++i) outcome = stay(reference).line();
  EXPECT_EQ(outcome.substr(0, 5), "giop:") << outcome;
  if (!stock()) server->null_call();
  EXPECT_PATH();
}

// No memory for one more ring, but for a socket and a thread.
TEST(FullServer, WithoutMemoryForARingTakesTheCallsByTcp) {
  NOT_SANITIZED();
  if (stock()) GTEST_SKIP() << "TCP has no rings";
  if (::access("/usr/bin/prlimit", X_OK) != 0) GTEST_SKIP() << "prlimit is not installed";
  Process process({"/usr/bin/prlimit", "--as=1000000000", program("omniorb-suite-server"),
                   "-ORBendPoint", "giop:tcp:127.0.0.1:", "-ORBclanRingBytes", "67108864"},
                  {"LD_PRELOAD=" SUITE_PRELOAD, "ORBclanEndPoint=1", "MALLOC_ARENA_MAX=1"});
  const std::string reference = process.line();
  std::vector<Process> clients;
  std::string outcome = "giop:clan:";
  int by_clan = -1;
  for (; by_clan < 40 && outcome.substr(0, 10) == "giop:clan:"; ++by_clan) {
    clients.push_back(stay(reference));
    outcome = clients.back().line();
  }
  EXPECT_GT(by_clan, 0);
  EXPECT_EQ(outcome.substr(0, 9), "giop:tcp:") << outcome << " after " << by_clan;
}

// Few descriptors, and an endpoint that it has not asked for itself: that takes none which TCP
// needs.
TEST(FullServer, WithoutRoomForItsEndpointBeginsAndTakesTheCallsByTcp) {
  NOT_SANITIZED();
  if (::access("/usr/bin/prlimit", X_OK) != 0) GTEST_SKIP() << "prlimit is not installed";
  int inherited = 0;
  for (int fd = 0; fd < 1000; ++fd) inherited += ::fcntl(fd, F_GETFD) == 0 ? 1 : 0;
  for (int own = 12; own < 32; ++own) {  // 12 are enough for TCP
    SCOPED_TRACE(own);
    Process process({"/usr/bin/prlimit", "--nofile=" + std::to_string(inherited + own),
                     program("omniorb-suite-server"), "-ORBendPoint", "giop:tcp:127.0.0.1:"},
                    {"LD_PRELOAD=" SUITE_PRELOAD, "ORBclanEndPoint=1"});
    const std::string reference = process.line();
    Process client = stay(reference);
    const std::string path = client.line();
    EXPECT_EQ(path.substr(0, 5), "giop:");
    if (own == 12) {
      EXPECT_EQ(path.substr(0, 9), "giop:tcp:");
    }
    Process by_tcp({program("omniorb-suite-call"), reference, "600"}, {"LD_PRELOAD="});
    EXPECT_EQ(by_tcp.line().substr(0, 5), "giop:");
  }
}

TEST(Orbs, BeginAgainAfterTheirEndOnBothSides) {
  Process process = start_server({}, {"SERVE_TWICE=1"});
  for (int round = 0; round < 2; ++round) {
    Orb orb;
    Suite::Server_var server = orb.server(process.line());
    server->null_call();
    EXPECT_PATH();
    if (round == 0) server->shutdown();
  }
}

TEST(Orbs, ClientsMayBeginAndEndManyOfThem) {
  Process process = start_server();
  const std::string reference = process.line();
  for (int round = 0; round < 10; ++round) {
    Orb orb;
    Suite::Server_var server = orb.server(reference);
    server->null_call();
    EXPECT_PATH();
  }
}

TEST(Fork, AChildCallsByAConnectionOfItsOwnAndTheParentGoesOn) {
  Process process = start_server();
  Orb orb;
  Suite::Server_var server = orb.server(process.line());
  CORBA::String_var before = server->echo("before");
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    int status = 1;
    try {
      omniORB::setClientCallTimeout(server, 10'000);
      // TCP's connection is the parent's too: only without one in common is a call well-defined
      // there.
      for (int i = 0; i < 20 && !stock(); ++i) CORBA::String_var answer = server->echo("child");
      status = stock() || went_by("giop:clan:") ? 0 : 2;
    } catch (...) {
    }
    ::_exit(status);
  }
  for (int i = 0; i < 200; ++i) {
    CORBA::String_var answer = server->echo("parent");
    EXPECT_STREQ(answer, "parent");
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  server->null_call();
  EXPECT_PATH();
}

TEST(Fork, AChildThatBeginsTheOrbItselfIsServed) {
  Process process = start_server();
  const std::string reference = process.line();
  for (int i = 0; i < 2; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(30);
      int status = 1;
      {
        Orb orb;
        Suite::Server_var server = orb.server(reference);
        server->null_call();
        status = went_by(expected_path()) ? 0 : 2;
      }
      ::_exit(status);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

}  // namespace
