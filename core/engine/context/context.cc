// <clan/context.h>: the public face of ContextCore.
#include "clan/context.h"

#include "engine/context/context_core.h"
#include "engine/context/network.h"

namespace clan {

Context& Context::operator=(Context&& other) noexcept {
  if (this != &other) {
    if (core_) core_->shut_down();
    core_ = std::move(other.core_);
  }
  return *this;
}
Context::~Context() {
  if (core_) core_->shut_down();
}

Result<Context> Context::create(const ContextOptions& options) {
  auto core = engine::ContextCore::create(options);
  if (!core) return core.error();
  return Context(std::move(*core));
}

NodeId Context::node() const { return core_->node(); }
const ContextOptions& Context::options() const { return core_->options(); }
ContextCounters Context::counters() const { return core_->snapshot(); }
std::uint16_t Context::network_port() const {
  return core_->network() == nullptr ? 0 : core_->network()->port();
}

}  // namespace clan
