// ServiceTable: the services that others find at a context, by name, and what listens for their
// clients.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

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
  void put(const std::string& name, OfferedService service);
  /// Takes the service out of the table. False: there is none.
  bool take(const std::string& name, OfferedService* service);
  /// The endpoint behind it. False: there is none.
  bool find(const std::string& name, std::uint32_t* endpoint);
  void clear();

  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
  std::map<std::string, OfferedService> services_;
};

}  // namespace clan::engine
