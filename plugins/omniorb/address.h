// Address: where a client connects to.
#pragma once

#include <string>

#include "name.h"
#include "omni.h"

namespace clan::orb {

/// Whether transport rules name clan for a host.
bool rules_allow(omni::transportRules& rules, const std::string& host);

class Address final : public omni::giopAddress {
 public:
  explicit Address(const Name& name) : name_(name), text_(name.address()), host_(name.link.empty() ? name.host : host_of(name.link)) {}

  const char* type() const override { return "giop:clan"; }
  const char* address() const override { return text_.c_str(); }
  const char* host() const override {
    return host_.empty() ? kThisHost.data() : host_.c_str();
  }
  omni::giopActiveConnection* Connect(const omni_time_t& deadline, _CORBA_ULong strand_flags,
                                      _CORBA_Boolean& timed_out) const override;
  omni::giopAddress* duplicate() const override { return new Address(name_); }
  omni::giopAddress* duplicate(const char* host) const override;

 private:
  const Name name_;
  const std::string text_, host_;
};

}  // namespace clan::orb
