#include "engine/context/service_table.h"

#include <utility>

namespace clan::engine {

void ServiceTable::put(const std::string& name, OfferedService service) {
  std::lock_guard lock(mutex_);
  std::swap(services_[name], service);  // one of that name before is destroyed by the caller
}

bool ServiceTable::take(const std::string& name, OfferedService* service) {
  std::lock_guard lock(mutex_);
  auto it = services_.find(name);
  if (it == services_.end()) return false;
  *service = std::move(it->second);
  services_.erase(it);
  return true;
}

bool ServiceTable::find(const std::string& name, std::uint32_t* endpoint) {
  std::lock_guard lock(mutex_);
  auto it = services_.find(name);
  if (it == services_.end()) return false;
  *endpoint = it->second.endpoint;
  return true;
}

void ServiceTable::clear() {
  std::map<std::string, OfferedService> gone;
  std::lock_guard lock(mutex_);
  std::swap(services_, gone);
}

}  // namespace clan::engine
