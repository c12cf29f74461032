// What happens when somebody dies, stands still, is late, ends its ORB or forks: what happens over TCP.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

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
  const std::string first = exception_of([&] { server->null_call(); });  // over TCP it depends on the kernel's timing
  EXPECT_TRUE(first == "TRANSIENT" || first == "COMM_FAILURE") << first;
  EXPECT_THROW(server->null_call(), CORBA::TRANSIENT);
}

TEST(Failure, ALateAnswerIsTimeoutAtItsDeadlineAndTheNextCallWorks) {
  Process process = start_server();
  Orb orb;
  Suite::Server_var server = orb.server(process.line());
  server->null_call();
  omniORB::setClientCallTimeout(server, 200);
  const long ms = milliseconds_of([&] { EXPECT_EQ(exception_of([&] { server->sleep(5000); }), "TIMEOUT"); });
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
  const long ms = milliseconds_of([&] { EXPECT_EQ(exception_of([&] { server->null_call(); }), "TIMEOUT"); });
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
  const long ms = milliseconds_of([&] { EXPECT_EQ(exception_of([&] { server->null_call(); }), "TIMEOUT"); });
  EXPECT_LT(ms, 5000);
  process.signal(SIGCONT);
  omniORB::setClientCallTimeout(server, 0);
  server->null_call();
}

TEST(Failure, IdleConnectionsAreClosedAndMadeAgain) {
  Process process = start_server({"-ORBinConScanPeriod", "1", "-ORBscanGranularity", "1"});
  Orb orb({"-ORBoutConScanPeriod", "1", "-ORBscanGranularity", "1"});
  Suite::Server_var server = orb.server(process.line());
  server->null_call();
  std::this_thread::sleep_for(milliseconds(3500));
  for (int i = 0; i < 3; ++i) server->null_call();
  EXPECT_PATH();
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
      // TCP's connection is the parent's too: only without one in common is a call well-defined there.
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
