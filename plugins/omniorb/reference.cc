#include "reference.h"

#include <arpa/inet.h>
#include <clan/detail/log.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "address.h"
#include "endpoint.h"
#include "omni.h"

namespace clan::orb {
namespace {

constexpr CORBA::ULong kVersion = 2;  ///< 1: without links to other hosts
constexpr CORBA::ULong kMostLinks = 8;

struct Published {
  std::mutex mutex;
  std::vector<Name> names;
};
Published& published() {
  static Published* const published = new Published;
  return *published;
}

// --- ours ----------------------------------------------------------------------------------------

/// The rules of a server, for another host of this one's network: the address beside ours. A call
/// that they refuse is lost, so a link that they refuse is not named.
bool neighbours_allowed(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool v6 = host.find(':') != std::string::npos;
  if (::inet_pton(v6 ? AF_INET6 : AF_INET, host.c_str(), address.data()) != 1) return false;
  address[v6 ? 15 : 3] ^= 1;
  ::inet_ntop(v6 ? AF_INET6 : AF_INET, address.data(), text.data(), text.size());
  return rules_allow(omni::transportRules::serverRules(),
                     v6 ? "[" + std::string(text.data()) + "]" : text.data());
}

/// Where other hosts reach this process by UDP: at the host by which they would reach it by TCP, if
/// that is a number and not of this machine alone. Empty: they do not.
std::string own_link(const char* tcp_host) {
  const auto node =
      network_options().enabled ? Node::get() : Result<std::shared_ptr<Node>>(nullptr);
  const std::uint16_t port = node.ok() && *node ? (*node)->context().network_port() : 0;
  if (port == 0 || tcp_host == nullptr) return {};
  std::string host = tcp_host;
  if (!is_numeric(host)) {  // a name, which rules would have to look up
    const auto* interfaces = omni::giopTransportImpl::getInterfaceAddress("giop:tcp");
    const bool any = interfaces != nullptr && !interfaces->empty();
    host = any ? (*interfaces)[0] : "";
  }
  if (!is_numeric(host) || host.compare(0, 4, "127.") == 0 || host == "::1" ||
      !neighbours_allowed(host)) {
    return {};
  }
  return (host.find(':') != std::string::npos ? "[" + host + "]" : host) + ":" +
         std::to_string(port);
}

void add_component(IIOP::ProfileBody& profile, const Name& name) {
  cdrEncapsulationStream stream(CORBA::ULong(0), CORBA::Boolean(1));
  kVersion >>= stream;
  const CORBA::ULongLong host = host_id();
  host >>= stream;
  stream.marshalRawString(name.text().c_str());
  const std::string link = own_link(profile.address.host);
  CORBA::ULong(!link.empty()) >>= stream;
  if (!link.empty()) stream.marshalRawString(("udp:" + link).c_str());
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

// --- others' -------------------------------------------------------------------------------------

/// Numeric if `host` is this machine, empty if not, or if only a name service knows.
std::string this_machine(const char* host) {
  if (std::strncmp(host, "127.", 4) == 0 || std::strcmp(host, "::1") == 0) return host;
  char own[HOST_NAME_MAX + 1] = {};
  if (std::strcmp(host, "localhost") == 0 ||
      (::gethostname(own, sizeof own - 1) == 0 && std::strcmp(host, own) == 0)) {
    return std::string(kThisHost);
  }
  const auto* interfaces = omni::giopTransportImpl::getInterfaceAddress("giop:tcp");
  if (interfaces == nullptr) return {};
  for (std::size_t i = 0; i < interfaces->size(); ++i) {
    if (std::strcmp(host, (*interfaces)[i]) == 0) return host;
  }
  return {};
}

/// Adds the addresses of the links that a reference from another host names, as far as this process
/// has such links.
void add_links(omni::omniInterceptors::decodeIOR_T::info_T& info, cdrEncapsulationStream& stream,
               const char* text) {
  CORBA::ULong count;
  count <<= stream;
  for (CORBA::ULong i = 0; i < std::min(count, kMostLinks); ++i) {
    const CORBA::String_var link = stream.unmarshalRawString();
    if (std::strncmp(link.in(), "udp:", 4) != 0) continue;
    if (const auto name = Name::of_text(text, link.in() + 4)) {
      info.ior.getIORInfo()->addresses().push_back(new Address(*name));
    }
  }
}

/// The process that listens at the TCP port of a reference, if it is one of this machine's.
std::optional<Name> name_by_port(const IIOP::Address& address) {
  Name by_port;
  by_port.host = this_machine(address.host);
  by_port.number = address.port;
  if (by_port.host.empty() || by_port.number == 0) return std::nullopt;
  return by_port;
}

/// True if the reference has CLAN's components that say how it is reached; those addresses are
/// added. One that names this machine's port and another host is of a boot before this one, or of a
/// server in another container: which process listens at the port now, the port says.
bool add_from_components(omni::omniInterceptors::decodeIOR_T::info_T& info,
                         const std::optional<Name>& by_port) {
  const auto& components = info.iiop.components;
  bool any = false;
  for (CORBA::ULong i = 0; i < components.length(); ++i) {
    if (components[i].tag != kComponentTag) continue;
    try {
      cdrEncapsulationStream stream(components[i].component_data.get_buffer(),
                                    components[i].component_data.length(), 1);
      CORBA::ULong version;
      CORBA::ULongLong host;
      version <<= stream;
      host <<= stream;
      const CORBA::String_var text = stream.unmarshalRawString();
      if (version == 0) continue;
      if (host != host_id()) {
        if (by_port) continue;
        if (version > 1 && network_options().enabled) add_links(info, stream, text.in());
        any = true;
        continue;
      }
      const auto name = Name::of_text(text.in());
      if (!name) continue;
      info.ior.getIORInfo()->addresses().push_back(new Address(*name, by_port));
      any = true;
    } catch (...) {
      CLAN_INFO("a reference has a malformed CLAN component; it is ignored");
    }
  }
  return any;
}

CORBA::Boolean decode(omni::omniInterceptors::decodeIOR_T::info_T& info) {
  if (!info.has_iiop_body) return 1;
  const auto by_port = name_by_port(info.iiop.address);
  if (add_from_components(info, by_port) || !by_port) return 1;
  info.ior.getIORInfo()->addresses().push_back(new Address(*by_port));
  return 1;
}

// --- paths, for --log info -----------------------------------------------------------------------

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
