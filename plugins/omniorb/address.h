// Address: where a client connects to.
#pragma once

#include <string>

#include "name.h"
#include "omni.h"

namespace clan::orb {

class Address final : public omni::giopAddress {
 public:
  explicit Address(const Name& name) : name_(name), text_(name.address()) {}

  const char* type() const override { return "giop:clan"; }
  const char* address() const override { return text_.c_str(); }
  const char* host() const override {
    return name_.host.empty() ? kThisHost.data() : name_.host.c_str();
  }
  omni::giopActiveConnection* Connect(const omni_time_t& deadline, _CORBA_ULong strand_flags,
                                      _CORBA_Boolean& timed_out) const override;
  omni::giopAddress* duplicate() const override { return new Address(name_); }
  omni::giopAddress* duplicate(const char* host) const override;

 private:
  const Name name_;
  const std::string text_;
};

}  // namespace clan::orb
