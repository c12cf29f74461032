#include "engine/context/rendezvous.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace clan::engine {
namespace {

constexpr useconds_t kNoDescriptorUs = 10'000;

}  // namespace

std::string service_name(uid_t uid, const std::string& service) {
  if (is_file_service(service)) return service;
  return "clan/" + std::to_string(uid) + "/" + service;
}

std::string node_name(uid_t uid, NodeId node) {
  char hex[17];
  std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(node.value));
  return "clan/" + std::to_string(uid) + "/node/" + hex;
}

Error service_name_too_long() {
  return Error{ENAMETOOLONG, "the service name is too long (91 bytes always fit)"};
}

void Rendezvous::on_ready(std::uint32_t) {
  Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (client) {
    sink_.on_client(std::move(client), endpoint_);
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
    ::usleep(kNoDescriptorUs);  // the client waits in the kernel until there is a descriptor for it
  }
}

void Greeting::await(ClientSink& sink, Reactor& reactor, Fd socket, std::uint32_t endpoint) {
  const int fd = socket.get();
  (void)reactor.add(fd, std::make_shared<Greeting>(sink, reactor, std::move(socket), endpoint));
}

void Greeting::on_ready(std::uint32_t) {
  if (!socket_) return;
  reactor_.remove(socket_.get());
  sink_.on_client(std::move(socket_), endpoint_);
}

}  // namespace clan::engine
