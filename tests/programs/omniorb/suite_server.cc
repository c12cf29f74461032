// The server of the tests. Prints its reference and serves until a client shuts it down; with
// SERVE_TWICE in the environment it then does so again, by a new ORB. Options are the ORB's.
#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "suite.hh"

namespace {

class LinkValue : public virtual OBV_Suite::Link, public virtual CORBA::DefaultValueRefCountBase {
 public:
  LinkValue() = default;
  LinkValue(CORBA::Long v, Suite::Link* n) : OBV_Suite::Link(v, n) {}
};

class LinkFactory : public virtual CORBA::ValueFactoryBase {
  CORBA::ValueBase* create_for_unmarshal() override { return new LinkValue; }
};

/// All of a thousand objects: which one, its id says.
class ItemServant : public POA_Suite::Item {
 public:
  explicit ItemServant(PortableServer::POA_ptr poa) : poa_(PortableServer::POA::_duplicate(poa)) {}
  CORBA::ULong number() override {
    PortableServer::Current_var current = PortableServer::Current::_narrow(
        CORBA::Object_var(orb->resolve_initial_references("POACurrent")));
    PortableServer::ObjectId_var id = current->get_object_id();
    CORBA::String_var text = PortableServer::ObjectId_to_string(id);
    return static_cast<CORBA::ULong>(std::strtoul(text, nullptr, 10));
  }
  CORBA::ULong number_after(CORBA::ULong ms) override {
    if (ms == 0) throw Suite::Refused(4711);
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    return number();
  }
  static CORBA::ORB_ptr orb;

 private:
  PortableServer::POA_var poa_;
};
CORBA::ORB_ptr ItemServant::orb;

class ServerServant : public POA_Suite::Server {
 public:
  ServerServant(CORBA::ORB_ptr orb, PortableServer::POA_ptr items, CORBA::Object_ptr elsewhere)
      : orb_(CORBA::ORB::_duplicate(orb)),
        items_(PortableServer::POA::_duplicate(items)),
        elsewhere_(CORBA::Object::_duplicate(elsewhere)) {}

  void null_call() override {}
  char* echo(const char* text) override { return CORBA::string_dup(text); }
  Suite::Bytes* turn(const Suite::Bytes& bytes) override {
    auto* out = new Suite::Bytes;
    out->length(bytes.length());
    for (CORBA::ULong i = 0; i < bytes.length(); ++i) (*out)[i] = bytes[bytes.length() - 1 - i];
    return out;
  }
  void put(const Suite::Bytes&) override {}
  Suite::Bytes* get(CORBA::ULong size) override {
    auto* out = new Suite::Bytes;
    out->length(size);
    for (CORBA::ULong i = 0; i < size; ++i) (*out)[i] = static_cast<CORBA::Octet>(i * 7);
    return out;
  }
  Suite::Rows* copy_rows(const Suite::Rows& rows) override { return new Suite::Rows(rows); }
  CORBA::Any* swap(const CORBA::Any& value) override { return new CORBA::Any(value); }
  Suite::Link* lengthen(Suite::Link* list) override {
    CORBA::add_ref(list);
    return new LinkValue(list == nullptr ? 1 : list->value() + 1, list);
  }
  void refuse(CORBA::Long code) override { throw Suite::Refused(code); }
  void note(CORBA::Long number) override {
    std::lock_guard lock(mutex_);
    notes_.push_back(static_cast<CORBA::Octet>(number));
  }
  Suite::Bytes* noted() override {
    std::lock_guard lock(mutex_);
    auto* out = new Suite::Bytes;
    out->length(static_cast<CORBA::ULong>(notes_.size()));
    for (CORBA::ULong i = 0; i < out->length(); ++i) (*out)[i] = notes_[i];
    return out;
  }
  void sleep(CORBA::ULong ms) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  }

  void wait_for_release() override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(20), [this] { return released_; })) {
      throw CORBA::NO_RESPONSE(0, CORBA::COMPLETED_NO);
    }
    released_ = false;
  }
  void release() override {
    std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

  CORBA::Long call_back(Suite::Listener_ptr listener, CORBA::Long times) override {
    CORBA::Long sum = 0;
    for (CORBA::Long i = 0; i < times; ++i) sum += listener->ask(i);
    return sum;
  }
  void notes_back(Suite::Listener_ptr listener, CORBA::Long times) override {
    for (CORBA::Long i = 0; i < times; ++i) listener->note(i);
  }

  Suite::Item_ptr item_of(CORBA::ULong number) override {
    PortableServer::ObjectId_var id =
        PortableServer::string_to_ObjectId(std::to_string(number).c_str());
    CORBA::Object_var object = items_->create_reference_with_id(id, "IDL:Suite/Item:1.0");
    return Suite::Item::_unchecked_narrow(object);
  }
  CORBA::Object_ptr published_elsewhere() override { return CORBA::Object::_duplicate(elsewhere_); }
  Suite::Server_ptr lasting() override { return Suite::Server::_unchecked_narrow(lasting_); }
  void is_lasting(CORBA::Object_ptr reference) { lasting_ = CORBA::Object::_duplicate(reference); }

  CORBA::Long process() override { return ::getpid(); }
  CORBA::ULong threads() override {
    CORBA::ULong count = 0;
    DIR* tasks = ::opendir("/proc/self/task");
    while (const dirent* entry = ::readdir(tasks)) count += entry->d_name[0] != '.';
    ::closedir(tasks);
    return count;
  }
  void shutdown() override { orb_->shutdown(0); }

 private:
  CORBA::ORB_var orb_;
  PortableServer::POA_var items_;
  CORBA::Object_var elsewhere_, lasting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool released_ = false;
  std::vector<CORBA::Octet> notes_;
};

PortableServer::POA_ptr items_poa(PortableServer::POA_ptr root,
                                  PortableServer::POAManager_ptr manager) {
  CORBA::PolicyList policies(4);
  policies.length(4);
  policies[0] = root->create_id_assignment_policy(PortableServer::USER_ID);
  policies[1] = root->create_request_processing_policy(PortableServer::USE_DEFAULT_SERVANT);
  policies[2] = root->create_servant_retention_policy(PortableServer::NON_RETAIN);
  policies[3] = root->create_id_uniqueness_policy(PortableServer::MULTIPLE_ID);
  return root->create_POA("items", manager, policies);
}

/// A POA that publishes its own list, which names CLAN alone.
PortableServer::POA_ptr elsewhere_poa(PortableServer::POA_ptr root,
                                      PortableServer::POAManager_ptr manager) {
  omniPolicy::EndPointPublishPolicyValue list;
  list.length(2);
  list[0] = CORBA::string_dup("giop:tcp:192.0.2.1:9");  // nobody is there
  list[1] = CORBA::string_dup("giop:clan:");
  CORBA::PolicyList policies(1);
  policies.length(1);
  try {
    policies[0] = omniPolicy::create_endpoint_publish_policy(list);
  } catch (const CORBA::PolicyError&) {  // this ORB has no CLAN
    list.length(1);
    policies[0] = omniPolicy::create_endpoint_publish_policy(list);
  }
  return root->create_POA("elsewhere", manager, policies);
}

/// For bidirectional GIOP the objects must allow it.
PortableServer::POA_ptr server_poa(CORBA::ORB_ptr orb, PortableServer::POA_ptr root,
                                   PortableServer::POAManager_ptr manager) {
  CORBA::Any both;
  both <<= BiDirPolicy::BOTH;
  CORBA::PolicyList policies(1);
  policies.length(1);
  policies[0] = orb->create_policy(BiDirPolicy::BIDIRECTIONAL_POLICY_TYPE, both);
  return root->create_POA("server", manager, policies);
}

int serve(int argc, char** argv) {
  CORBA::ORB_var orb = CORBA::ORB_init(argc, argv);
  ItemServant::orb = orb;
  auto* factory = new LinkFactory;
  orb->register_value_factory("IDL:Suite/Link:1.0", factory);
  factory->_remove_ref();
  CORBA::Object_var object = orb->resolve_initial_references("RootPOA");
  PortableServer::POA_var root = PortableServer::POA::_narrow(object);
  PortableServer::POAManager_var manager = root->the_POAManager();
  PortableServer::POA_var items = items_poa(root, manager);
  PortableServer::Servant_var<ItemServant> any_item = new ItemServant(items);
  items->set_servant(any_item);
  PortableServer::POA_var other = elsewhere_poa(root, manager);
  PortableServer::Servant_var<ItemServant> elsewhere = new ItemServant(other);
  PortableServer::ObjectId_var elsewhere_id = other->activate_object(elsewhere);
  CORBA::Object_var elsewhere_object = elsewhere->_this();

  PortableServer::POA_var poa = server_poa(orb, root, manager);
  PortableServer::Servant_var<ServerServant> servant =
      new ServerServant(orb, items, elsewhere_object);
  PortableServer::ObjectId_var id = poa->activate_object(servant);
  CORBA::Object_var self = servant->_this();
  // For corbaloc: the same object under a key that people can write.
  object = orb->resolve_initial_references("omniINSPOA");
  PortableServer::POA_var named = PortableServer::POA::_narrow(object);
  PortableServer::ObjectId_var key = PortableServer::string_to_ObjectId("Suite");
  named->activate_object_with_id(key, servant);
  object = named->id_to_reference(key);
  servant->is_lasting(object);
  named->the_POAManager()->activate();
  manager->activate();
  CORBA::String_var text = orb->object_to_string(self);
  std::cout << text.in() << std::endl;
  try {
    orb->run();
    // a client that has read the reference may have ended the ORB already
  } catch (const CORBA::BAD_INV_ORDER&) {
  }
  orb->destroy();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // it does not outlive its test
  ::alarm(200);
  ::unsetenv("LD_PRELOAD");  // for the program that a sanitizer starts to name functions
  const char* twice = std::getenv("SERVE_TWICE");
  const int status = serve(argc, argv);
  return twice != nullptr && status == 0 ? serve(argc, argv) : status;
}
