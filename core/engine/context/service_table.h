// ServiceTable: the services that others find at a context, by name, and what listens for their
// clients.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/reactor.h"

namespace clan::engine {

/// A service of this context.
struct OfferedService {
  std::shared_ptr<Pollable> listener;
  int fd = -1;
  std::uint32_t endpoint = 0;
  std::shared_ptr<Pollable> teller;  ///< tells other processes at which UDP port it is
};

/// Thread-safe. None of the functions destroys a service with the lock held.
class ServiceTable {
 public:
  void put(const std::string& name, OfferedService service) {
    std::lock_guard lock(mutex_);
    std::swap(services_[name], service);  // one of that name before is destroyed by the caller
  }
  /// Takes the service out of the table. False: there is none.
  bool take(const std::string& name, OfferedService* service) {
    std::lock_guard lock(mutex_);
    auto found = services_.extract(name);
    if (found) *service = std::move(found.mapped());
    return !found.empty();
  }
  /// The endpoint behind it. False: there is none.
  bool find(const std::string& name, std::uint32_t* endpoint) {
    std::lock_guard lock(mutex_);
    auto it = services_.find(name);
    if (it == services_.end()) return false;
    *endpoint = it->second.endpoint;
    return true;
  }
  void clear() {
    std::map<std::string, OfferedService> gone;
    std::lock_guard lock(mutex_);
    std::swap(services_, gone);
  }

  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
  std::map<std::string, OfferedService> services_;
};

}  // namespace clan::engine
