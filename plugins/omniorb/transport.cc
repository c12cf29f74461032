// How omniORB finds us: a transport in its list, a module that omniORB calls when an ORB begins and
// ends, and options. All of it is made when this library is loaded, which must be before ORB_init.
#include <clan/detail/log.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "address.h"
#include "endpoint.h"
#include "name.h"
#include "node.h"
#include "omni.h"
#include "reference.h"

namespace clan::orb {
namespace {

using omni::omniObjAdapter;
using omni::orbOptions;
using omni::transportRules;

class Transport final : public omni::giopTransportImpl {
 public:
  Transport() : giopTransportImpl("giop:clan") {}

  omni::giopEndpoint* toEndpoint(const char* param) override {
    const auto name = Name::of_endpoint(param != nullptr ? param : "");
    if (name) return new Endpoint(*name);
    Endpoint::refuse(std::string(kPrefix) + param,
                     "a name has letters, digits, '.' and '_', 48 of them at most");
    return nullptr;
  }
  omni::giopAddress* toAddress(const char* param) override {
    const auto name = Name::of_address(param != nullptr ? param : "");
    return name ? new Address(*name) : nullptr;
  }
  /// An address, or nothing: in the list of a POA that is the endpoint there is.
  _CORBA_Boolean isValid(const char* param) override {
    return param != nullptr && (*param == '\0' || Name::of_address(param));
  }

  // The lists of POAs (`eps`) are read when a reference is made.
  _CORBA_Boolean addToIOR(const char* param, omni::IORPublish* eps) override {
    if (eps != nullptr) return 1;
    const auto name = Name::of_address(param != nullptr ? param : "");
    if (!name || name->word.empty()) return 0;
    publish_in_references(*name);
    return 1;
  }
  const omnivector<const char*>* getInterfaceAddress() override {
    static const omnivector<const char*> none;
    return &none;
  }
};

// --- options -------------------------------------------------------------------------------------

class AddEndpoint final : public orbOptions::Handler {
 public:
  AddEndpoint()
      : Handler("clanEndPoint",
                "clanEndPoint = 0 or 1 (1: servers listen on giop:clan: beside their endpoints)", 1,
                "-ORBclanEndPoint < 0 | 1 >") {}
  void visit(const char* value, orbOptions::Source) override {
    CORBA::Boolean on;
    if (!orbOptions::getBoolean(value, on)) {
      throw orbOptions::BadParam(key(), value, orbOptions::expect_boolean_msg);
    }
    options().add_endpoint = on;
  }
  void dump(orbOptions::sequenceString& result) override {
    orbOptions::addKVBoolean(key(), options().add_endpoint, result);
  }
};

class Number final : public orbOptions::Handler {
 public:
  Number(const char* key, const char* usage, const char* arguments, const char* expected,
         bool (*fits)(CORBA::ULong), std::uint32_t* value)
      : Handler(key, usage, 1, arguments), expected_(expected), fits_(fits), value_(value) {}
  void visit(const char* value, orbOptions::Source) override {
    CORBA::ULong number;
    if (!orbOptions::getULong(value, number) || !fits_(number))
      throw orbOptions::BadParam(key(), value, expected_);
    *value_ = number;
  }
  void dump(orbOptions::sequenceString& result) override {
    orbOptions::addKVULong(key(), *value_, result);
  }

 private:
  const char* const expected_;
  bool (*const fits_)(CORBA::ULong);
  std::uint32_t* const value_;
};

/// The two of the link to other hosts: what the settings of the same meaning take.
class LinkOption final : public orbOptions::Handler {
 public:
  LinkOption(const char* key, const char* setting, const char* usage, const char* arguments)
      : Handler(key, usage, 1, arguments), setting_(setting) {}
  void visit(const char* value, orbOptions::Source) override {
    SettingFault fault;
    value_ = value;
    options().link.looks_at_key = false;  // the file may be another's: no reason to end a program
    if (!take_setting(setting_, value, &options().link, &fault)) {
      fault_ = fault.text;
      throw orbOptions::BadParam(key(), value, fault_.c_str());
    }
  }
  void dump(orbOptions::sequenceString& result) override {
    orbOptions::addKVString(key(), value_.c_str(), result);
  }

 private:
  const char* const setting_;
  std::string value_, fault_;  ///< the ORB keeps the text of the fault
};

// --- the beginning and the end of an ORB ---------------------------------------------------------

class EveryAddress final : public transportRules::Rule {
 public:
  EveryAddress() : Rule("*") {}
  CORBA::Boolean match(const char*) override { return 1; }
};

/// -ORBhelp, the one option without a value: omniORB follows a null pointer when it is to say what
/// was given, and this was.
bool was_asked_for_help() {
  std::ifstream arguments("/proc/self/cmdline", std::ios::binary);
  for (std::string argument; std::getline(arguments, argument, '\0');) {
    if (argument == "-ORBhelp") return true;
  }
  return false;
}

bool was_specified(const char* option) {
  orbOptions::sequenceString_var given = orbOptions::singleton().dumpSpecified();
  const std::size_t size = std::strlen(option);
  for (CORBA::ULong i = 0; i < given->length(); ++i) {
    const char* text = given[i];
    if (std::strncmp(text, option, size) == 0 && (text[size] == ' ' || text[size] == '='))
      return true;
  }
  return false;
}

/// The ORB's default rules do not know us. Those that somebody has given stay.
void prepare_rules(transportRules& rules, const char* option) {
  if (was_specified(option)) return;
  rules.reset();
  CORBA::StringSeq actions;
  actions.length(4);
  const char* const order[] = {"clan", "unix", "ssl", "tcp"};
  for (CORBA::ULong i = 0; i < actions.length(); ++i) actions[i] = order[i];
  rules.addRule(new EveryAddress, actions);
}

/// False, and said, if rules keep processes of this host from using us.
bool allowed(transportRules& rules, const char* option) {
  if (rules_allow(rules, std::string(kThisHost))) return true;
  CLAN_INFO("%s does not name clan: no CORBA call goes by CLAN; \"* clan,unix,ssl,tcp\" would do",
            option);
  return false;
}

void add_endpoint() {
  auto& endpoints = omniObjAdapter::options.endpoints;
  const auto add = [&](const char* uri) {
    auto* endpoint = new omniObjAdapter::Options::EndpointURI;
    endpoint->uri = uri;
    endpoint->no_publish = 0;
    endpoints.push_back(endpoint);
  };
  for (auto* endpoint : endpoints) {
    if (std::strncmp(endpoint->uri, kPrefix.data(), kPrefix.size()) == 0) return;
  }
  if (endpoints.empty()) add("giop:tcp::");  // what the ORB does when there are none
  add("giop:clan:");
  options().added_endpoint = true;
}

class Module final : public omni::omniInitialiser {
 public:
  void attach() override {
    if (disabled() || was_asked_for_help()) return;
    prepare_rules(transportRules::clientRules(), "clientTransportRule");
    prepare_rules(transportRules::serverRules(), "serverTransportRule");
    (void)allowed(transportRules::clientRules(), "clientTransportRule");
    if (options().add_endpoint && allowed(transportRules::serverRules(), "serverTransportRule"))
      add_endpoint();
    install_interceptors();
  }
  void detach() override {
    forget_published();
    Node::release();
  }
};

/// Never deleted: the ORB keeps their addresses.
struct Parts {
  Transport transport;
  AddEndpoint add_endpoint;
  Number spin_time{"clanSpinTime",
                   "clanSpinTime = microseconds that a thread waits awake, at most",
                   "-ORBclanSpinTime < 0 to 1000000 >",
                   "Expect microseconds, at most 1000000",
                   [](CORBA::ULong us) { return us <= 1'000'000; },
                   &options().spin_us};
  Number ring_bytes{"clanRingBytes",
                    "clanRingBytes = bytes of a connection's receive buffer, a power of two",
                    "-ORBclanRingBytes < power of two, 4096 to 67108864 >",
                    "Expect a power of two from 4096 to 67108864",
                    [](CORBA::ULong bytes) {
                      return bytes >= 4096 && bytes <= 64u << 20 && std::has_single_bit(bytes);
                    },
                    &options().ring_bytes};
  LinkOption key{"clanKey", "CLAN_KEY",
                 "clanKey = file with the key of hosts that call each other by UDP",
                 "-ORBclanKey < file >"};
  LinkOption network_mode{
      "clanNetworkMode", "CLAN_NETWORK_MODE",
      "clanNetworkMode = encrypt (the default), integrity or off: calls between hosts",
      "-ORBclanNetworkMode < encrypt | integrity | off >"};
  Module module;
};

[[gnu::constructor]] void announce() {
  static bool once = false;
  if (std::exchange(once, true)) return;
  const char* version = omniORB::versionString();
  if (std::strcmp(version, CLAN_OMNIORB_VERSION) != 0) {
    omniORB::logger log;
    log << "libomniclanTP4 was built for omniORB " CLAN_OMNIORB_VERSION " and this is " << version
        << ": calls go without CLAN. Rebuild CLAN with this omniORB's headers.\n";
    return;
  }
  auto* parts = new Parts;
  auto& registry = orbOptions::singleton();
  registry.registerHandler(parts->add_endpoint);
  registry.registerHandler(parts->spin_time);
  registry.registerHandler(parts->ring_bytes);
  registry.registerHandler(parts->key);
  registry.registerHandler(parts->network_mode);
  omni::omniInitialiser::install(&parts->module);
}

}  // namespace
}  // namespace clan::orb
