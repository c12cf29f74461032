// Rendezvous: the names of sockets by which processes of this host find a service or a node, and
// how the driver thread takes their clients.
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

/// A service whose name begins with a slash is offered by a socket in the file system, for
/// processes of other network namespaces, which do not see abstract names. Other hosts ask for it
/// by what is behind the last slash.
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

/// A descriptor whose owner waits for its first input, or for its end: gives it back then.
class FirstInput final : public Pollable {
 public:
  using Then = std::function<void(Fd fd)>;
  /// Calls `then` once, on the driver thread.
  static Status await(Reactor& reactor, Fd fd, Then then);
  FirstInput(Reactor& reactor, Fd fd, Then then)
      : reactor_(reactor), fd_(std::move(fd)), then_(std::move(then)) {}
  void on_ready(std::uint32_t) override;
  void abandon_after_fork() override { fd_.reset(); }

 private:
  Reactor& reactor_;
  Fd fd_;
  const Then then_;
};

}  // namespace clan::engine
