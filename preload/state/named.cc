#include "state/named.h"

#include <cstdio>

#include "clan/face/socket_face.h"
#include "kernel/sock_diag.h"
#include "os/sys.h"

namespace clan::preload {
namespace {

struct Program {
  char name[17];  ///< as /proc has it; "": it is not there
};
Program program_of(unsigned process) {
  Program program;
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%u/comm", process);
  const long n = sys::read_file(path, program.name, sizeof program.name);
  program.name[n > 0 ? n - 1 : 0] = 0;  // for the newline
  return program;
}

}  // namespace

Named::Named(int fd, const Socket& s) {
  KeepErrno keep;
  Route route;
  if (route_of(fd, &route)) port_ = s.client ? route.remote.port : route.local.port;
  // relaxed: for people to read
  const auto process =
      s.pipe ? static_cast<unsigned>(
                   s.theirs().words[socket_face::kProcess].load(std::memory_order_relaxed) >> 32)
             : 0;
  char with[48] = "";
  if (process != 0)
    std::snprintf(with, sizeof with, " with process %u (%s)", process, program_of(process).name);
  const auto own = static_cast<unsigned>(sys::call(SYS_getpid));
  std::snprintf(text_, sizeof text_, "%s: port %u%s, fd %d", program_of(own).name, port_, with, fd);
}

}  // namespace clan::preload
