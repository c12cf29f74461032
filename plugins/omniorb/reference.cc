#include "reference.h"

#include <unistd.h>

#include <climits>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <clan/log.h>

#include "address.h"
#include "endpoint.h"
#include "omni.h"

namespace clan::orb {
namespace {

constexpr CORBA::ULong kVersion = 1;

struct Published {
  std::mutex mutex;
  std::vector<Name> names;
};
Published& published() {
  static Published* const published = new Published;
  return *published;
}

// --- ours ------------------------------------------------------------------------------------------

void add_component(IIOP::ProfileBody& profile, const Name& name) {
  cdrEncapsulationStream stream(CORBA::ULong(0), CORBA::Boolean(1));
  kVersion >>= stream;
  const CORBA::ULongLong host = host_id();
  host >>= stream;
  stream.marshalRawString(name.text().c_str());
  IOP::TaggedComponent& component = omniIOR::newIIOPtaggedComponent(profile.components);
  component.tag = kComponentTag;
  stream.setOctetSeq(component.component_data);
}

/// The list of a POA's EndPointPublishPolicy; null without one.
omniPolicy::EndPointPublishPolicy_ptr publish_policy(const omniIORHints& hints) {
  if (hints.policies == nullptr) return nullptr;
  for (CORBA::ULong i = 0; i < hints.policies->length(); ++i) {
    CORBA::Policy_ptr policy = (*hints.policies)[i];
    if (policy->policy_type() == omniPolicy::ENDPOINT_PUBLISH_POLICY_TYPE) {
      return omniPolicy::EndPointPublishPolicy::_narrow(policy);
    }
  }
  return nullptr;
}

CORBA::Boolean encode(omni::omniInterceptors::encodeIOR_T::info_T& info) {
  if (info.default_only || (info.iiop.version.major == 1 && info.iiop.version.minor == 0)) return 1;
  Endpoint::offer_ports();
  omniPolicy::EndPointPublishPolicy_var policy = publish_policy(info.hints);
  std::lock_guard lock(published().mutex);
  if (!CORBA::is_nil(policy.in())) {
    const auto& list = policy->value();
    for (CORBA::ULong i = 0; i < list.length(); ++i) {
      const std::string_view text(list[i]);
      if (text.substr(0, kPrefix.size()) != kPrefix) continue;
      const auto name = Name::of_address(text.substr(kPrefix.size()));
      if (name && !name->word.empty()) {
        add_component(info.iiop, *name);
      } else if (!published().names.empty()) {
        add_component(info.iiop, published().names[0]);  // "giop:clan:": the one there is
      }
    }
    return 1;
  }
  for (const Name& name : published().names) add_component(info.iiop, name);
  return 1;
}

// --- others' ---------------------------------------------------------------------------------------

/// Numeric if `host` is this machine, empty if not, or if only a name service knows.
std::string this_machine(const char* host) {
  if (std::strncmp(host, "127.", 4) == 0 || std::strcmp(host, "::1") == 0) return host;
  char own[HOST_NAME_MAX + 1] = {};
  if (std::strcmp(host, "localhost") == 0 || (::gethostname(own, sizeof own - 1) == 0 && std::strcmp(host, own) == 0)) {
    return std::string(kThisHost);
  }
  const auto* interfaces = omni::giopTransportImpl::getInterfaceAddress("giop:tcp");
  if (interfaces == nullptr) return {};
  for (std::size_t i = 0; i < interfaces->size(); ++i) {
    if (std::strcmp(host, (*interfaces)[i]) == 0) return host;
  }
  return {};
}

/// True if the reference has CLAN's components; their addresses on this host are added.
bool add_from_components(omni::omniInterceptors::decodeIOR_T::info_T& info) {
  const auto& components = info.iiop.components;
  bool any = false;
  for (CORBA::ULong i = 0; i < components.length(); ++i) {
    if (components[i].tag != kComponentTag) continue;
    any = true;
    try {
      cdrEncapsulationStream stream(components[i].component_data.get_buffer(), components[i].component_data.length(),
                                    1);
      CORBA::ULong version;
      CORBA::ULongLong host;
      version <<= stream;
      host <<= stream;
      const CORBA::String_var text = stream.unmarshalRawString();
      const auto name = Name::of_text(text.in());
      if (version == 0 || host != host_id() || !name) continue;
      info.ior.getIORInfo()->addresses().push_back(new Address(*name));
    } catch (...) {
      CLAN_INFO("a reference has a malformed CLAN component; it is ignored");
    }
  }
  return any;
}

CORBA::Boolean decode(omni::omniInterceptors::decodeIOR_T::info_T& info) {
  if (!info.has_iiop_body || add_from_components(info)) return 1;
  Name by_port;
  by_port.host = this_machine(info.iiop.address.host);
  by_port.number = info.iiop.address.port;
  if (by_port.host.empty() || by_port.number == 0) return 1;
  info.ior.getIORInfo()->addresses().push_back(new Address(by_port));
  return 1;
}

// --- paths, for --log info -------------------------------------------------------------------------

CORBA::Boolean opened(omni::omniInterceptors::clientOpenConnection_T::info_T& info) {
  const std::string_view peer(info.peeraddress());
  if (peer.substr(0, kPrefix.size()) != kPrefix) {
    CLAN_INFO("CORBA calls to %s go without CLAN", info.peeraddress());
  }
  return 1;
}

CORBA::Boolean accepted(omni::omniInterceptors::serverAcceptConnection_T::info_T& info) {
  const std::string_view peer(info.peeraddress());
  if (peer.substr(0, kPrefix.size()) != kPrefix) {
    CLAN_INFO("CORBA calls of %s come without CLAN", info.peeraddress());
  }
  return 1;
}

}  // namespace

void publish_in_references(const Name& name) {
  std::lock_guard lock(published().mutex);
  published().names.push_back(name);
}

void forget_published() {
  std::lock_guard lock(published().mutex);
  published().names.clear();
}

void install_interceptors() {
  auto* interceptors = omniORB::getInterceptors();
  interceptors->encodeIOR.add(encode);
  interceptors->decodeIOR.add(decode);
  if (log_level() >= LogLevel::kInfo) {
    interceptors->clientOpenConnection.add(opened);
    interceptors->serverAcceptConnection.add(accepted);
  }
}

}  // namespace clan::orb
