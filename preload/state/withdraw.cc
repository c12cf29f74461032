#include "state/withdraw.h"

#include <fcntl.h>

#include <cstdio>

#include "clan/face/pipe.h"
#include "os/sys.h"
#include "state/hooks.h"
#include "state/remote.h"

namespace clan::preload {
static_assert(kOfferName + Config::kMostDirectory + 2 <= sizeof(sockaddr_un::sun_path));

socklen_t path_of(std::uint64_t name, sockaddr_un* path) {
  path->sun_family = AF_UNIX;
  const int n =
      std::snprintf(path->sun_path, sizeof path->sun_path, "%s/%s%016llx", config().directory,
                    kOfferPrefix, static_cast<unsigned long long>(name));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + static_cast<std::size_t>(n) + 1);
}

void unlink_offer(std::uint64_t name) {
  sockaddr_un path{};
  path_of(name, &path);
  sys::call(SYS_unlinkat, AT_FDCWD, path.sun_path, 0);
}

void drop_offer(Socket& s) {
  s.offer_name.keep(0);
  let_go_of_remote(s);
  for (auto* fd : {&s.offer_fd, &s.window_fd}) {
    if (const int number = fd->take(); number >= 0) sys::close(number);
  }
}

void withdraw_offer(Socket& s) {
  if (const std::uint64_t name = s.offer_name.take(); name != 0) unlink_offer(name);
  drop_offer(s);
}

void stay(int fd, Socket& s, reasons::Why why, std::uint32_t number) {
  say_why(fd, s, why, number);
  withdraw_offer(s);
  s.pipe = Pipe();
  s.Bells::reset();
  s.become(Socket::State::kKernel);
  if (s.is_watched()) hooks.pinned(s);
}

}  // namespace clan::preload
