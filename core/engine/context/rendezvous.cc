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

void Acceptor::on_ready(std::uint32_t) {
  Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (client) {
    take_(std::move(client));
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
    ::usleep(kNoDescriptorUs);  // the client waits in the kernel until there is a descriptor for it
  }
}

}  // namespace clan::engine
