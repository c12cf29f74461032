// Rendezvous: abstract sockets by which processes of this host find a service or a node, and their
// clients.
//
// A client connects and sends its hello (link/shm_handshake.h). The reactor never waits for one: a
// client that has connected and not spoken yet is a Greeting, which costs one descriptor until it
// speaks or closes.
#pragma once

#include <cstdint>
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

/// Driver thread.
class ClientSink {
 public:
  /// A client of the rendezvous socket of `endpoint` has connected, or has sent its hello.
  virtual void on_client(Fd socket, std::uint32_t endpoint) = 0;

 protected:
  ~ClientSink() = default;
};

/// A rendezvous socket that listens.
class Rendezvous final : public Pollable {
 public:
  Rendezvous(ClientSink& sink, Fd listener, std::uint32_t endpoint)
      : sink_(sink), listener_(std::move(listener)), endpoint_(endpoint) {}
  int fd() const { return listener_.get(); }
  void on_ready(std::uint32_t) override;
  void abandon_after_fork() override { listener_.reset(); }

 private:
  ClientSink& sink_;
  Fd listener_;
  std::uint32_t endpoint_;
};

/// A client whose hello has not arrived.
class Greeting final : public Pollable {
 public:
  /// Under the reactor until the client speaks or closes; then its sink is called again.
  static void await(ClientSink& sink, Reactor& reactor, Fd socket, std::uint32_t endpoint);
  Greeting(ClientSink& sink, Reactor& reactor, Fd socket, std::uint32_t endpoint)
      : sink_(sink), reactor_(reactor), socket_(std::move(socket)), endpoint_(endpoint) {}
  void on_ready(std::uint32_t) override;
  void abandon_after_fork() override { socket_.reset(); }

 private:
  ClientSink& sink_;
  Reactor& reactor_;
  Fd socket_;
  std::uint32_t endpoint_;
};

}  // namespace clan::engine
