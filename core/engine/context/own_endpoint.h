// OwnEndpoint: an endpoint of a context while its owner lives, and the service name it is found by.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "engine/context/context_core.h"

namespace clan::engine {

/// Not thread-safe: its owner begins and ends it.
class OwnEndpoint {
 public:
  explicit OwnEndpoint(std::shared_ptr<ContextCore> context) : context_(std::move(context)) {}
  ~OwnEndpoint() { end(); }
  OwnEndpoint(const OwnEndpoint&) = delete;
  OwnEndpoint& operator=(const OwnEndpoint&) = delete;

  /// Its out-of-band messages go to `sink`.
  Status begin(std::weak_ptr<OobSink> sink) {
    auto number = context_->add_endpoint(std::move(sink));
    if (!number) return number.error();
    number_ = *number;
    return {};
  }
  /// The same, and others reach it by its address, and by `service` unless that is empty.
  Status offer(std::weak_ptr<OobSink> sink, const std::string& service) {
    if (auto s = begin(std::move(sink)); !s) return s;
    if (!service.empty()) {
      if (auto s = context_->add_service(service, number_); !s) return s;
      service_ = service;
    }
    return context_->listen_as_node();
  }
  void end() {
    if (!service_.empty()) context_->remove_service(std::exchange(service_, {}));
    if (number_ != 0) context_->endpoints().remove(std::exchange(number_, 0));
  }

  ContextCore& context() const { return *context_; }
  /// 0: it has not begun.
  std::uint32_t number() const { return number_; }
  Address address() const { return context_->address_of(number_); }

 private:
  const std::shared_ptr<ContextCore> context_;
  std::string service_;
  std::uint32_t number_ = 0;
};

}  // namespace clan::engine
