// What a context counts, and what it knows by name: services that it offers, named apertures.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "clan/aperture.h"
#include "engine/context/rendezvous.h"
#include "nic/nic.h"

namespace clan::engine {

/// Counters that several threads raise; read by anyone.
struct CoreCounters {
  std::atomic<std::uint64_t> connections_opened{0}, connections_reset{0}, hostile_peers{0},
      oob_discarded{0}, sleeps{0}, wakeups{0};
};
inline void count(std::atomic<std::uint64_t>& counter) {
  counter.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
}

/// A service of this context.
struct OfferedService {
  std::shared_ptr<Acceptor> listener;
  std::uint32_t endpoint = 0;
  std::shared_ptr<Acceptor> teller;  ///< tells other processes at which UDP port it is
};

/// An aperture that has a name, for peers of the NIC that shows it.
struct ShownAperture {
  const nic::Nic* nic = nullptr;
  NamedAperture aperture;
};

/// Thread-safe. No function destroys a value with the lock held.
template <typename Key, typename Value>
class NameTable {
 public:
  /// False: the name is in use.
  bool add(const Key& name, Value value) {
    std::lock_guard lock(mutex_);
    return values_.try_emplace(name, std::move(value)).second;
  }
  std::optional<Value> find(const Key& name) {
    std::lock_guard lock(mutex_);
    const auto found = values_.find(name);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<Value> take(const Key& name) {
    std::lock_guard lock(mutex_);
    auto found = values_.extract(name);
    return found ? std::optional(std::move(found.mapped())) : std::nullopt;
  }
  void clear() {
    std::map<Key, Value> gone;
    std::lock_guard lock(mutex_);
    std::swap(values_, gone);
  }

  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
  std::map<Key, Value> values_;
};

}  // namespace clan::engine
