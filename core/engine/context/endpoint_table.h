// EndpointTable: the endpoints of a context by number, to which out-of-band messages are delivered.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "clan/oob.h"
#include "clan/result.h"
#include "nic/link.h"

namespace clan::engine {

/// What receives the out-of-band messages of one endpoint, and the news of dead peers. Called on
/// the driver thread, with no lock held.
class OobSink {
 public:
  virtual ~OobSink() = default;
  virtual void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) = 0;
  virtual void on_link_down(const std::shared_ptr<nic::Link>& link) = 0;
};

/// Thread-safe. No function calls a sink, and none destroys one with the lock held.
class EndpointTable {
 public:
  /// The number of a new endpoint, never used again. ENOSPC.
  Result<std::uint32_t> add(std::weak_ptr<OobSink> sink);
  void remove(std::uint32_t endpoint);
  /// Puts `sink` in the place of an endpoint's own and keeps it alive until remove().
  void keep(std::uint32_t endpoint, std::shared_ptr<OobSink> sink);
  /// The sink of an endpoint. Null: there is none, or it has ended.
  std::shared_ptr<OobSink> find(std::uint32_t endpoint);
  std::vector<std::shared_ptr<OobSink>> all();

  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
  std::map<std::uint32_t, std::weak_ptr<OobSink>> endpoints_;
  std::map<std::uint32_t, std::shared_ptr<OobSink>> kept_;
  std::uint32_t next_ = 1;  ///< 0: all have been used
};

}  // namespace clan::engine
