// Address: where a client connects to.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "name.h"
#include "omni.h"

namespace clan::orb {

/// Whether transport rules name clan for a host.
bool rules_allow(omni::transportRules& rules, const std::string& host);

class Address final : public omni::giopAddress {
 public:
  /// `by_port`: where to look when nobody has the name any more: references outlive servers, which
  /// begin again at their TCP port and with another name.
  explicit Address(const Name& name, std::optional<Name> by_port = std::nullopt)
      : name_(name),
        by_port_(std::move(by_port)),
        text_(name.address()),
        host_(name.link.empty() ? name.host : host_of(name.link)) {}

  const char* type() const override { return "giop:clan"; }
  const char* address() const override { return text_.c_str(); }
  const char* host() const override { return host_.empty() ? kThisHost.data() : host_.c_str(); }
  omni::giopActiveConnection* Connect(const omni_time_t& deadline, _CORBA_ULong strand_flags,
                                      _CORBA_Boolean& timed_out) const override;
  omni::giopAddress* duplicate() const override { return new Address(name_, by_port_); }
  omni::giopAddress* duplicate(const char* host) const override;

 private:
  const Name name_;
  const std::optional<Name> by_port_;
  const std::string text_, host_;
};

}  // namespace clan::orb
