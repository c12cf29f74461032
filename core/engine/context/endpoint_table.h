// EndpointTable: the endpoints of a context by number, to which out-of-band messages are delivered.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "clan/oob.h"
#include "clan/result.h"
#include "nic/link.h"

namespace clan::engine {

/// The payload of an out-of-band message as a record. False: it has another length.
template <typename T>
void put_payload(OobMessage& message, const T& value) {
  static_assert(sizeof(T) <= kOobPayload);
  message.length = sizeof value;
  std::memcpy(message.payload.data(), &value, sizeof value);
}

template <typename T>
bool get_payload(const OobMessage& message, T* value) {
  if (message.length != sizeof *value) return false;
  std::memcpy(value, message.payload.data(), sizeof *value);
  return true;
}

/// Takes one endpoint's out-of-band messages and deaths of peers. Driver thread, no lock held.
class OobSink {
 public:
  virtual ~OobSink() = default;
  virtual void on_oob(const std::shared_ptr<nic::Link>&, const OobMessage&) {}
  virtual void on_link_down(const std::shared_ptr<nic::Link>&) {}
};

/// Thread-safe. No function calls a sink, and none destroys one with the lock held.
class EndpointTable {
 public:
  /// The number of a new endpoint, never used again. ENOSPC.
  Result<std::uint32_t> add(std::weak_ptr<OobSink> sink) {
    std::lock_guard lock(mutex_);
    if (next_ == 0) return Error{ENOSPC, "2^32 endpoints have been used"};
    const std::uint32_t endpoint = next_++;
    endpoints_[endpoint] = std::move(sink);
    return endpoint;
  }
  void remove(std::uint32_t endpoint) {
    decltype(kept_)::node_type gone;  // destroyed outside the lock
    std::lock_guard lock(mutex_);
    endpoints_.erase(endpoint);
    gone = kept_.extract(endpoint);
  }
  /// Keeps the sink of an endpoint alive until remove().
  void keep(std::uint32_t endpoint, std::shared_ptr<OobSink> sink) {
    std::lock_guard lock(mutex_);
    kept_[endpoint] = std::move(sink);
  }
  /// The sink of an endpoint. Null: there is none, or it has ended.
  std::shared_ptr<OobSink> find(std::uint32_t endpoint) {
    std::lock_guard lock(mutex_);
    auto it = endpoints_.find(endpoint);
    return it == endpoints_.end() ? nullptr : it->second.lock();
  }
  std::vector<std::shared_ptr<OobSink>> all() {
    std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<OobSink>> alive;
    for (const auto& [endpoint, weak] : endpoints_) {
      if (auto sink = weak.lock()) alive.push_back(std::move(sink));
    }
    return alive;
  }

  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }
  /// In the child, which has one thread.
  void abandon_after_fork() { kept_.clear(); }

 private:
  std::mutex mutex_;
  std::map<std::uint32_t, std::weak_ptr<OobSink>> endpoints_;
  std::map<std::uint32_t, std::shared_ptr<OobSink>> kept_;
  std::uint32_t next_ = 1;  ///< 0: all have been used
};

}  // namespace clan::engine
