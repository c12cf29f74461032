// NamedApertures: the apertures of a context that have names.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "clan/aperture.h"
#include "nic/nic.h"

namespace clan::engine {

/// Thread-safe.
class NamedApertures {
 public:
  bool add(std::uint64_t name, const nic::Nic* nic, const NamedAperture& aperture) {
    std::lock_guard lock(mutex_);
    return names_.try_emplace(name, Entry{nic, aperture}).second;
  }
  void remove(std::uint64_t name) {
    std::lock_guard lock(mutex_);
    names_.erase(name);
  }
  /// Only for peers of the NIC that shows it.
  bool find(std::uint64_t name, const nic::Nic* nic, NamedAperture* aperture) {
    std::lock_guard lock(mutex_);
    auto it = names_.find(name);
    if (it == names_.end() || it->second.nic != nic) return false;
    *aperture = it->second.aperture;
    return true;
  }

 private:
  struct Entry {
    const nic::Nic* nic;
    NamedAperture aperture;
  };
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Entry> names_;
};

}  // namespace clan::engine
