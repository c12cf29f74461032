#include "attach/find_pipe.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "kernel/proc.h"
#include "os/config.h"
#include "os/sys.h"
#include "table/internal_fds.h"

namespace clan::preload {

namespace {

// By a glance: of a user that may give us a pipe, and one end of it is the socket's. Whether it is
// a pipe at all is seen when it is opened, by open_pipe_of().
bool is_of(int memfd, std::uint64_t cookie, int* end) {
  struct stat about {};
  if (sys::fstat(memfd, &about) != 0) return false;
  if (about.st_uid != 0 && !config().allows_uid(about.st_uid)) return false;
  for (int e = 0; e < 2; ++e) {
    std::uint64_t found = 0;
    const std::size_t place = PipePage::place_of_word(e, socket_face::kCookie);
    const long n = sys::call(SYS_pread64, memfd, &found, sizeof found, place);
    if (n != sizeof found || found != cookie) continue;
    *end = e;
    return true;
  }
  return false;
}

}  // namespace

int find_among(std::span<const int> memfds, std::uint64_t cookie, int* end) {
  for (const int memfd : memfds) {
    if (is_of(memfd, cookie, end)) return static_cast<int>(sys::fcntl(memfd, F_DUPFD_CLOEXEC, 0));
  }
  return -1;
}

int find_pipe(std::uint64_t cookie, int* end) {
  int found = -1;
  const auto is_wanted = [&](int memfd) {
    if (is_of(memfd, cookie, end)) return found = memfd, true;
    sys::close(memfd);
    return false;
  };
  (void)any_process([&](const char* pid) { return any_memfd_of(pid, kPipeLink, is_wanted); });
  return found;
}

Result<Pipe> open_pipe_of(int memfd, int end, std::uint64_t cookie) {
  if (memfd < 0) return Error{errno, "opening a pipe of another process"};
  auto pipe = open_high(memfd, end);
  if (pipe &&
      pipe->my_face().words[socket_face::kCookie].load(std::memory_order_relaxed) != cookie) {
    return Error{ENOENT, "the pipe of another connection"};
  }
  return pipe;
}

}  // namespace clan::preload
