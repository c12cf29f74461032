// What calls carry: data of all kinds and sizes, exceptions, calls without answers, calls back.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "server.h"

namespace {

using namespace suite;

class LinkValue : public virtual OBV_Suite::Link, public virtual CORBA::DefaultValueRefCountBase {};
class LinkFactory : public virtual CORBA::ValueFactoryBase {
  CORBA::ValueBase* create_for_unmarshal() override { return new LinkValue; }
};

class ListenerServant : public POA_Suite::Listener {
 public:
  CORBA::Long ask(CORBA::Long number) override { return number * 2; }
  void note(CORBA::Long number) override {
    sum_ += number;  // with several threads omniORB promises no order
    ++next_;
  }
  std::atomic<CORBA::Long> next_{0}, sum_{0};
};

Suite::Bytes bytes_of(CORBA::ULong size) {
  Suite::Bytes bytes;
  bytes.length(size);
  for (CORBA::ULong i = 0; i < size; ++i) bytes[i] = static_cast<CORBA::Octet>(i * 7);
  return bytes;
}

class Calls : public ::testing::Test {
 protected:
  void begin(std::vector<std::string> client = {}, std::vector<std::string> servers = {}) {
    process = std::make_unique<Process>(start_server(std::move(servers)));
    orb = std::make_unique<Orb>(std::move(client));
    server = orb->server(process->line());
  }
  void TearDown() override {
    server = Suite::Server::_nil();
    orb.reset();
  }
  std::unique_ptr<Process> process;
  std::unique_ptr<Orb> orb;
  Suite::Server_var server;
};

TEST_F(Calls, EchoesByTheExpectedPath) {
  begin();
  CORBA::String_var answer = server->echo("a word");
  EXPECT_STREQ(answer, "a word");
  EXPECT_PATH();
}

TEST_F(Calls, QuestionsAboutTheObjectGoByTheSamePath) {
  begin();
  EXPECT_FALSE(server->_non_existent());
  EXPECT_TRUE(server->_is_a("IDL:Suite/Server:1.0"));
  EXPECT_PATH();
}

TEST_F(Calls, CarriesOctetsOfEverySizeBothWays) {
  begin();
  for (const CORBA::ULong size :
       {0u, 1u, 1023u, 1024u, 1025u, 8191u, 8192u, 16383u, 16384u, 65536u, 1000000u, 2000000u}) {
    const Suite::Bytes sent = bytes_of(size);
    Suite::Bytes_var got = server->turn(sent);
    ASSERT_EQ(got->length(), size);
    for (CORBA::ULong i = 0; i < size; ++i)
      ASSERT_EQ(got[i], sent[size - 1 - i]) << i << " of " << size;
    Suite::Bytes_var made = server->get(size);
    ASSERT_EQ(made->length(), size);
    for (CORBA::ULong i = 0; i < size; ++i) ASSERT_EQ(made[i], static_cast<CORBA::Octet>(i * 7));
  }
  EXPECT_PATH();
}

TEST_F(Calls, ALargerMessageThanAllowedIsMarshalAndTheNextCallWorks) {
  begin();
  const Suite::Bytes large = bytes_of(3 << 20);  // giopMaxMsgSize is 2 MB
  EXPECT_THROW(server->put(large), CORBA::MARSHAL);
  server->null_call();
  EXPECT_PATH();
}

TEST_F(Calls, CarriesLargeMessagesWhereTheyAreAllowed) {
  begin({"-ORBgiopMaxMsgSize", "50000000"}, {"-ORBgiopMaxMsgSize", "50000000"});
  const Suite::Bytes sent = bytes_of(20'000'000);
  Suite::Bytes_var got = server->turn(sent);
  ASSERT_EQ(got->length(), sent.length());
  for (CORBA::ULong i = 0; i < sent.length(); i += 997)
    ASSERT_EQ(got[i], sent[sent.length() - 1 - i]);
  EXPECT_PATH();
}

TEST_F(Calls, FragmentsLongStructuredMessages) {
  begin();
  Suite::Rows rows;
  rows.length(20000);
  for (CORBA::ULong i = 0; i < rows.length(); ++i) {
    rows[i].number = static_cast<CORBA::Long>(i);
    rows[i].text = CORBA::string_dup(("row " + std::to_string(i)).c_str());
    if (i % 2 == 0) {
      rows[i].pick.number(i * 0.5);
    } else {
      rows[i].pick.text("odd");
    }
  }
  Suite::Rows_var back = server->copy_rows(rows);
  ASSERT_EQ(back->length(), rows.length());
  for (CORBA::ULong i = 0; i < rows.length(); ++i) {
    ASSERT_EQ(back[i].number, rows[i].number);
    ASSERT_STREQ(back[i].text, rows[i].text);
    ASSERT_EQ(back[i].pick._d(), rows[i].pick._d());
  }
  EXPECT_PATH();
}

TEST_F(Calls, CarriesExceptionsAnysAndValuetypes) {
  begin();
  try {
    server->refuse(4711);
    FAIL() << "no exception";
  } catch (const Suite::Refused& refused) {
    EXPECT_EQ(refused.code, 4711);
  }
  CORBA::Any sent;
  sent <<= static_cast<CORBA::Double>(2.5);
  CORBA::Any_var got = server->swap(sent);
  CORBA::Double number = 0;
  ASSERT_TRUE(got.in() >>= number);
  EXPECT_EQ(number, 2.5);
  auto* factory = new LinkFactory;
  (*orb)->register_value_factory("IDL:Suite/Link:1.0", factory);
  factory->_remove_ref();
  Suite::Link_var list = server->lengthen(nullptr);
  for (int i = 0; i < 10; ++i) list = server->lengthen(list);
  EXPECT_EQ(list->value(), 11);
  EXPECT_EQ(list->next()->value(), 10);
  EXPECT_PATH();
}

TEST_F(Calls, OnewaysArriveInOrderAndComplete) {
  begin({"-ORBmaxGIOPConnectionPerServer", "1"}, {"-ORBmaxServerThreadPerConnection", "1"});
  for (int i = 0; i < 5000; ++i) server->note(i);
  Suite::Bytes_var noted = server->noted();
  ASSERT_EQ(noted->length(), 5000u);
  for (CORBA::ULong i = 0; i < 5000; ++i) ASSERT_EQ(noted[i], static_cast<CORBA::Octet>(i));
  EXPECT_PATH();
}

void call_back_works(Suite::Server_ptr server, Orb& orb) {
  CORBA::Object_var object = orb->resolve_initial_references("RootPOA");
  PortableServer::POA_var root = PortableServer::POA::_narrow(object);
  PortableServer::POAManager_var manager = root->the_POAManager();
  manager->activate();
  CORBA::Any both;
  both <<= BiDirPolicy::BOTH;
  CORBA::PolicyList policies(1);
  policies.length(1);
  policies[0] = orb->create_policy(BiDirPolicy::BIDIRECTIONAL_POLICY_TYPE, both);
  PortableServer::POA_var poa = root->create_POA("both", manager, policies);
  PortableServer::Servant_var<ListenerServant> servant = new ListenerServant;
  PortableServer::ObjectId_var id = poa->activate_object(servant);
  Suite::Listener_var listener = servant->_this();
  EXPECT_EQ(server->call_back(listener, 100), 9900);
  EXPECT_PATH();
  // Several come into the ORB's buffer at once, and a thread that is about to end may be the one
  // that learns of them.
  for (int round = 1; round <= 8; ++round) {
    server->notes_back(listener, 1000);
    for (int i = 0; i < 2000 && servant->next_ < 1000 * round; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(servant->next_, 1000 * round);
  }
  EXPECT_EQ(servant->sum_, 8 * 499'500);
  server->null_call();
}

TEST_F(Calls, ServersCallBackDuringACall) {
  begin({"-ORBendPoint", "giop:tcp:127.0.0.1:", "-ORBclanEndPoint", "1",
         "-ORBmaxServerThreadPerConnection", "1"},
        {"-ORBmaxGIOPConnectionPerServer", "1"});
  call_back_works(server, *orb);
}

// Without an endpoint of the client's that the server could connect to.
void begin_both_ways(std::vector<std::string>* client, std::vector<std::string>* server) {
  const std::string rule = stock() ? "* tcp,bidir" : "* clan,tcp,bidir";
  *client = {"-ORBofferBiDirectionalGIOP", "1",     "-ORBclientTransportRule", rule,
             "-ORBserverTransportRule",    "* none"};
  *server = {"-ORBacceptBiDirectionalGIOP", "1", "-ORBserverTransportRule", rule};
}

TEST_F(Calls, ServersCallBackOnTheClientsOwnConnection) {
  std::vector<std::string> client, other;
  begin_both_ways(&client, &other);
  begin(client, other);
  call_back_works(server, *orb);
}

/// Open descriptors, and shared memory that is mapped.
int held() {
  int count = 0;
  for (int fd = 0; fd < 4096; ++fd) count += ::fcntl(fd, F_GETFD) == 0 ? 1 : 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    count += line.find("/memfd:") != std::string::npos ? 1 : 0;
  return count;
}

TEST_F(Calls, BackOnTheClientsOwnConnectionLeaveNothingBehindTheirOrb) {
  std::vector<std::string> client, other;
  begin_both_ways(&client, &other);
  int first = 0;
  for (int round = 0; round < 4; ++round) {
    begin(client, other);
    call_back_works(server, *orb);
    TearDown();
    process.reset();
    if (round == 0) first = held();
    for (int i = 0; i < 4000 && held() > first; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_LE(held(), first);
  }
}

TEST_F(Calls, ServersWithAPoolOfThreadsCallBackOnTheClientsOwnConnection) {
  std::vector<std::string> client, other;
  begin_both_ways(&client, &other);
  for (auto* side : {&client, &other})
    side->insert(side->end(), {"-ORBthreadPerConnectionPolicy", "0"});
  begin(client, other);
  call_back_works(server, *orb);
}

}  // namespace
