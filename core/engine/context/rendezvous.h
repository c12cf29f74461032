// Rendezvous: socket names of services and nodes on this host, and how clients are accepted.
//
// A client connects and sends its hello (link/shm_handshake.h). The reactor never waits for one: a
// client that has connected and not spoken yet costs one descriptor until it speaks or closes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/fd.h"
#include "base/reactor.h"
#include "clan/cookie.h"

namespace clan::engine {

/// A service with a leading slash is a socket in the file system, for other network namespaces,
/// which do not see abstract names. Other hosts ask for what is behind the last slash.
inline bool is_file_service(const std::string& service) { return service.starts_with('/'); }
inline std::string far_name(const std::string& service) {
  return is_file_service(service) ? service.substr(service.rfind('/') + 1) : service;
}
/// The names of a user's service and of a node: abstract, or that of a file.
std::string service_name(uid_t uid, const std::string& service);
std::string node_name(uid_t uid, NodeId node);
Error service_name_too_long();

/// A socket that listens. `take` has each client, on the driver thread.
class Acceptor final : public Pollable {
 public:
  using Take = std::function<void(Fd client)>;
  Acceptor(Fd listener, Take take) : listener_(std::move(listener)), take_(std::move(take)) {}
  int fd() const { return listener_.get(); }
  void on_ready(std::uint32_t) override;
  void abandon_after_fork() override {
    listener_.reset();
    take_ = nullptr;
  }

 private:
  Fd listener_;
  Take take_;
};

}  // namespace clan::engine
