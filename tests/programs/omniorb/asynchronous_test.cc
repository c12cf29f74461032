// Calls whose answers come later: AMI's handlers and pollers, and deferred requests of the dynamic
// interface. The ORB makes them from threads of its own.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server.h"

namespace {

using namespace suite;
using std::chrono::milliseconds;
using std::chrono::seconds;

class Handler : public POA_Suite::AMI_ItemHandler {
 public:
  void number(CORBA::ULong value) override { note(std::to_string(value)); }
  void number_after(CORBA::ULong value) override { note(std::to_string(value)); }
  void number_excep(Messaging::ExceptionHolder* holder) override { note_exception(holder); }
  void number_after_excep(Messaging::ExceptionHolder* holder) override { note_exception(holder); }

  /// The first `count` answers, or those that have come in 20 s.
  std::vector<std::string> wait(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, seconds(20), [&] { return answers_.size() >= count; });
    return answers_;
  }

 private:
  void note(std::string answer) {
    std::lock_guard lock(mutex_);
    answers_.push_back(std::move(answer));
    changed_.notify_all();
  }
  void note_exception(Messaging::ExceptionHolder* holder) {
    try {
      holder->raise_exception();
    } catch (const CORBA::Exception& problem) {
      note(problem._name());
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> answers_;
};

class Asynchronous : public ::testing::Test {
 protected:
  void SetUp() override {
    process = std::make_unique<Process>(start_server());
    orb = std::make_unique<Orb>(std::vector<std::string>{"-ORBmaxGIOPConnectionPerServer", "20"});
    server = orb->server(process->line());
    server->null_call();
    others_before = replies(false);
    before = replies(true);
  }
  void TearDown() override {
    server = Suite::Server::_nil();
    orb.reset();
  }
  Suite::AMI_ItemHandler_ptr activate(Handler* handler) {
    CORBA::Object_var object = (*orb)->resolve_initial_references("RootPOA");
    PortableServer::POA_var root = PortableServer::POA::_narrow(object);
    PortableServer::POAManager_var manager = root->the_POAManager();
    manager->activate();
    PortableServer::ObjectId_var id = root->activate_object(handler);
    return handler->_this();
  }
  void expect_replies_by_the_path(int most) {
    EXPECT_EQ(replies(false) - others_before, 0);
    EXPECT_GE(replies(true) - before, most);
  }
  std::unique_ptr<Process> process;
  std::unique_ptr<Orb> orb;
  Suite::Server_var server;
  int before = 0, others_before = 0;
};

TEST_F(Asynchronous, HandlersGetTheAnswersOfCallsUnderWayAtOnce) {
  PortableServer::Servant_var<Handler> servant = new Handler;
  Suite::AMI_ItemHandler_var handler = activate(servant);
  const auto start = std::chrono::steady_clock::now();
  for (CORBA::ULong i = 0; i < 10; ++i) {
    Suite::Item_var item = server->item_of(7);
    item->sendc_number_after(handler, 1000);
  }
  EXPECT_EQ(servant->wait(10), std::vector<std::string>(10, "7"));
  // one by one they take 10 s
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(9));
  for (CORBA::ULong i = 0; i < 500; ++i) {
    Suite::Item_var item = server->item_of(i);
    item->sendc_number(handler);
  }
  EXPECT_EQ(servant->wait(510).size(), 510u);
  expect_replies_by_the_path(510);
}

TEST_F(Asynchronous, HandlersGetExceptions) {
  PortableServer::Servant_var<Handler> servant = new Handler;
  Suite::AMI_ItemHandler_var handler = activate(servant);
  Suite::Item_var item = server->item_of(1);
  item->sendc_number_after(handler, 0);
  EXPECT_EQ(servant->wait(1), std::vector<std::string>{"Refused"});
  item->sendc_number_after(handler, 20'000);
  std::this_thread::sleep_for(milliseconds(300));
  process->end(SIGKILL);
  EXPECT_EQ(servant->wait(2).back(), "COMM_FAILURE");
}

TEST_F(Asynchronous, PollersAreAsked) {
  Suite::AMI_ServerPoller_var held = server->sendp_wait_for_release();
  EXPECT_FALSE(held->is_ready(0));
  server->release();
  EXPECT_TRUE(held->is_ready(20'000));
  held->wait_for_release(20'000);
  Suite::Item_var item = server->item_of(42);
  Suite::AMI_ItemPoller_var poller = item->sendp_number_after(1);
  CORBA::ULong value = 0;
  poller->number_after(20'000, value);
  EXPECT_EQ(value, 42u);
  poller = item->sendp_number_after(0);
  EXPECT_THROW(poller->number_after(20'000, value), Suite::Refused);
  expect_replies_by_the_path(4);
}

TEST_F(Asynchronous, DeferredRequestsOfTheDynamicInterfaceAreFetched) {
  std::vector<CORBA::Request_var> requests;
  for (int i = 0; i < 10; ++i) {
    requests.push_back(server->_request("echo"));
    requests.back()->add_in_arg() <<= ("word " + std::to_string(i)).c_str();
    requests.back()->set_return_type(CORBA::_tc_string);
    requests.back()->send_deferred();
  }
  for (int i = 0; i < 10; ++i) {
    requests[i]->get_response();
    const char* text = nullptr;
    ASSERT_TRUE(requests[i]->return_value() >>= text);
    EXPECT_EQ(text, "word " + std::to_string(i));
  }
  CORBA::Request_var oneway = server->_request("note");
  oneway->add_in_arg() <<= static_cast<CORBA::Long>(9);
  oneway->send_oneway();
  Suite::Bytes_var noted = server->noted();
  for (int i = 0; i < 400 && noted->length() < 1; ++i) {  // it may have had a connection of its own
    std::this_thread::sleep_for(milliseconds(5));
    noted = server->noted();
  }
  EXPECT_EQ(noted->length(), 1u);
  expect_replies_by_the_path(11);
}

}  // namespace
