// By which references objects are found over CLAN, and when calls stay on TCP.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "server.h"

namespace {

using namespace suite;

/// The first address of a reference that begins so, or nothing.
std::string address_in(CORBA::Object_ptr object, const std::string& prefix) {
  omniIOR_var ior = object->_PR_getobj()->_getIOR();
  for (auto* address : ior->getIORInfo()->addresses()) {
    if (std::string(address->address()).substr(0, prefix.size()) == prefix)
      return address->address();
  }
  return {};
}

/// corbaloc of a server that has printed its reference.
std::string corbaloc(Suite::Server_ptr server, const std::string& host) {
  const std::string tcp = address_in(server, "giop:tcp:127.0.0.1:");
  return "corbaloc::" + host + tcp.substr(tcp.rfind(':')) + "/Suite";
}

/// A server at the TCP port that a corbaloc names.
Process start_at_port_of(const std::string& corbaloc) {
  const std::string port =
      corbaloc.substr(corbaloc.rfind(':'), corbaloc.rfind('/') - corbaloc.rfind(':'));
  return Process({program("omniorb-suite-server"), "-ORBendPoint", "giop:tcp:127.0.0.1" + port},
                 {"LD_PRELOAD=" SUITE_PRELOAD, "ORBclanEndPoint=1"});
}

TEST(References, HaveOurComponentAndTheTcpAddress) {
  Process process = start_server();
  Orb orb;
  Suite::Server_var server = orb.server(process.line());
  EXPECT_NE(address_in(server, "giop:tcp:"), "");
  EXPECT_EQ(address_in(server, "giop:clan:").empty(), stock());
}

TEST(References, ThatNameAPortOfThisHostAreFound) {
  Process process = start_server();
  const std::string reference = process.line();
  for (const char* host : {"127.0.0.1", "localhost"}) {
    Orb orb;
    Suite::Server_var server = orb.server(reference);
    const std::string by_port = corbaloc(server, host);
    server = orb.server(by_port);
    server->null_call();
    EXPECT_PATH();
  }
}

TEST(References, ThatNameAPortWhereSomebodyElseListensGoByTcp) {
  Process plain({program("omniorb-suite-server"), "-ORBendPoint", "giop:tcp:127.0.0.1:"},
                {"CLAN_DISABLE=1"});
  Process ours = start_server();
  Orb orb;
  Suite::Server_var server = orb.server(ours.line());
  server->null_call();
  EXPECT_PATH();
  server = orb.server(plain.line());
  const std::string by_port = corbaloc(server, "127.0.0.1");
  server = orb.server(by_port);
  EXPECT_EQ(server->process(), plain.pid());
  EXPECT_TRUE(went_by("giop:tcp:"));
}

TEST(References, OfAServerThatWasStartedAgainAtItsPortAreFound) {
  Process process = start_server();
  Orb orb;
  Suite::Server_var server = orb.server(process.line());
  const std::string by_port = corbaloc(server, "127.0.0.1");
  process.end(SIGKILL);
  Process again = start_at_port_of(by_port);
  ASSERT_NE(again.line(), "");
  Suite::Server_var other = orb.server(by_port);
  other->null_call();
  EXPECT_PATH();
}

// A server that begins again has another name, and its references name the one before.
TEST(References, ThatOutliveTheirServerAreFoundByTheirPort) {
  if (stock()) GTEST_SKIP() << "its port is taken for a minute after a connection by TCP";
  Process process = start_server();
  Orb orb;
  Suite::Server_var server = orb.server(process.line());
  server = server->lasting();
  server->null_call();
  EXPECT_PATH();
  const std::string by_port = corbaloc(server, "127.0.0.1");
  process.end(SIGKILL);
  Process again = start_at_port_of(by_port);
  ASSERT_NE(again.line(), "");
  try {
    server->null_call();
  } catch (const CORBA::SystemException&) {  // by the connection that was there
  }
  EXPECT_EQ(server->process(), again.pid());
  EXPECT_PATH();
}

TEST(References, OfABootBeforeThisOneAreFoundByTheirPort) {
  Process process = start_server();
  std::string reference = process.line();
  const bool little = reference.find("4e414c43") != std::string::npos;  // "CLAN", as a number
  const std::size_t at = reference.find(little ? "4e414c43" : "434c414e");
  if (stock()) GTEST_SKIP() << "its references name no boot";
  ASSERT_NE(at, std::string::npos);
  // the host
  reference.replace(at + 2 * 16, 4, reference.substr(at + 2 * 16, 4) == "0000" ? "1111" : "0000");
  Orb orb;
  Suite::Server_var server = orb.server(reference);
  server->null_call();
  EXPECT_PATH();
}

TEST(References, OfAPoaWithEndpointsOfItsOwnNameThose) {
  if (stock()) GTEST_SKIP() << "its list names CLAN";
  Process process = start_server();
  Orb orb;
  Suite::Server_var server = orb.server(process.line());
  CORBA::Object_var object = server->published_elsewhere();
  EXPECT_EQ(address_in(object, "giop:tcp:"), "giop:tcp:192.0.2.1:9");
  Suite::Item_var item = Suite::Item::_unchecked_narrow(object);
  EXPECT_FALSE(item->_non_existent());
  EXPECT_PATH();
}

TEST(References, OfEndpointsWithANameAreFoundAndItIsTakenThen) {
  if (stock()) GTEST_SKIP() << "without CLAN there is no such endpoint";
  const std::string name = "suite." + std::to_string(::getpid());
  Process process = start_server({"-ORBendPoint", "giop:clan:" + name});
  Orb orb;
  Suite::Server_var server = orb.server(process.line());
  server->null_call();
  EXPECT_PATH();
  // As with a TCP port that is taken.
  Process second = start_server({"-ORBendPoint", "giop:clan:" + name});
  EXPECT_EQ(second.line(), "");
  EXPECT_NE(second.wait(), 0);
}

TEST(References, OfAServerWithoutTcpWorkForThoseWhoHaveClan) {
  if (stock()) GTEST_SKIP() << "without CLAN there is no such endpoint";
  Process process({program("omniorb-suite-server"), "-ORBendPoint", "giop:clan:"},
                  {"LD_PRELOAD=" SUITE_PRELOAD});
  Orb orb;
  Suite::Server_var server = orb.server(process.line());
  server->null_call();
  EXPECT_PATH();
}

TEST(Rules, OfAUserThatDoNotNameUsKeepCallsOnTcp) {
  Process process = start_server();
  Orb orb({"-ORBclientTransportRule", "* unix,tcp"});
  Suite::Server_var server = orb.server(process.line());
  server->null_call();
  EXPECT_TRUE(went_by("giop:tcp:"));
}

TEST(Rules, OfAServerThatDoNotNameUsKeepCallsOnTcp) {
  Process process = start_server({"-ORBserverTransportRule", "* unix,tcp"});
  Orb orb;
  Suite::Server_var server = orb.server(process.line());
  server->null_call();
  EXPECT_TRUE(went_by("giop:tcp:"));
}

TEST(Rules, ForThisHostApplyToUs) {
  Process process = start_server();
  Orb orb({"-ORBclientTransportRule", "localhost clan,tcp", "-ORBclientTransportRule", "* none"});
  Suite::Server_var server = orb.server(process.line());
  server->null_call();
  EXPECT_PATH();
}

TEST(Peers, WithoutTheTransportAreServedByTcp) {
  Process process = start_server();
  Process client({program("omniorb-suite-call"), process.line()}, {"CLAN_DISABLE=1"});
  EXPECT_EQ(client.line().substr(0, 9), "giop:tcp:");
  EXPECT_EQ(client.wait(), 0);
}

TEST(Peers, WithAServerWithoutTheTransportGoByTcp) {
  Process process({program("omniorb-suite-server"), "-ORBendPoint", "giop:tcp:127.0.0.1:"},
                  {"LD_PRELOAD="});
  Orb orb;
  Suite::Server_var server = orb.server(process.line());
  server->null_call();
  EXPECT_TRUE(went_by("giop:tcp:"));
}

}  // namespace
