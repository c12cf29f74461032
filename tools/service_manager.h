// What a program tells the service manager that has started it (sd_notify).
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace clan::tool {

/// Sends `state`, as "READY=1", to the socket that NOTIFY_SOCKET names, where it does.
inline void notify(std::string_view state) {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un to{};
  const std::size_t size = path != nullptr ? std::strlen(path) : 0;
  if (size == 0 || size >= sizeof to.sun_path) return;
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, path, size);
  if (path[0] == '@') to.sun_path[0] = 0;  // an abstract name
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size);
  (void)::sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&to), length);
  ::close(fd);
}

}  // namespace clan::tool
