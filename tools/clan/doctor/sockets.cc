// `clan doctor`: how processes meet.
#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "finding.h"

namespace clan::tool {
namespace {

/// Sends a descriptor to ourselves over an abstract UNIX socket. Empty when all of it works.
std::string try_abstract_socket() {
  const Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const Descriptor client(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!listener.ok() || !client.ok()) return "socket(AF_UNIX): " + errno_text();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = fmt::format("clan-doctor-{}", getpid());
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // [0] stays 0: abstract
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.get(), generic, length) != 0)
    return "bind to an abstract name: " + errno_text();
  if (listen(listener.get(), 1) != 0) return "listen: " + errno_text();
  if (connect(client.get(), generic, length) != 0) return "connect: " + errno_text();
  const Descriptor server(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!server.ok()) return "accept: " + errno_text();

  ucred peer{};
  socklen_t peer_length = sizeof peer;
  if (getsockopt(server.get(), SOL_SOCKET, SO_PEERCRED, &peer, &peer_length) != 0 ||
      peer.pid != getpid()) {
    return "SO_PEERCRED does not name the peer";
  }
  char byte = 'x';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int sent = listener.get();
  std::memcpy(CMSG_DATA(header), &sent, sizeof sent);
  if (sendmsg(client.get(), &message, 0) != 1) return "passing a descriptor: " + errno_text();
  if (recvmsg(server.get(), &message, MSG_CMSG_CLOEXEC) != 1) return "recvmsg: " + errno_text();
  header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return "the descriptor did not arrive";
  int received = -1;
  std::memcpy(&received, CMSG_DATA(header), sizeof received);
  close(received);
  return "";
}

}  // namespace

Finding check_unix_sockets() {
  Finding f{.name = "unix_sockets"};
  const std::string trouble = try_abstract_socket();
  if (trouble.empty()) {
    f.state = State::kOk;
    f.seen = "abstract names, SO_PEERCRED, descriptor passing";
    f.effect = "peers of one network namespace find each other without files or a daemon";
  } else {
    f.seen = trouble;
    f.effect = "processes cannot meet: CLAN cannot be used here";
    f.fatal = true;
  }
  return f;
}

}  // namespace clan::tool
