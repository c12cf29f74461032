#include "engine/context/endpoint_table.h"

#include <cerrno>
#include <utility>

namespace clan::engine {

Result<std::uint32_t> EndpointTable::add(std::weak_ptr<OobSink> sink) {
  std::lock_guard lock(mutex_);
  if (next_ == 0) return Error{ENOSPC, "2^32 endpoints have been used"};
  const std::uint32_t endpoint = next_++;
  endpoints_[endpoint] = std::move(sink);
  return endpoint;
}

void EndpointTable::remove(std::uint32_t endpoint) {
  std::shared_ptr<OobSink> gone;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  endpoints_.erase(endpoint);
  if (auto it = kept_.find(endpoint); it != kept_.end()) {
    gone = std::move(it->second);
    kept_.erase(it);
  }
}

void EndpointTable::keep(std::uint32_t endpoint, std::shared_ptr<OobSink> sink) {
  std::lock_guard lock(mutex_);
  endpoints_[endpoint] = sink;
  kept_[endpoint] = std::move(sink);
}

std::shared_ptr<OobSink> EndpointTable::find(std::uint32_t endpoint) {
  std::lock_guard lock(mutex_);
  auto it = endpoints_.find(endpoint);
  return it == endpoints_.end() ? nullptr : it->second.lock();
}

std::vector<std::shared_ptr<OobSink>> EndpointTable::all() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<OobSink>> alive;
  for (const auto& [endpoint, weak] : endpoints_) {
    if (auto sink = weak.lock()) alive.push_back(std::move(sink));
  }
  return alive;
}

}  // namespace clan::engine
