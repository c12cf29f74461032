#include "migrate/directory_names.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "clan/detail/clock.h"
#include "kernel/proc.h"
#include "os/config.h"
#include "os/sys.h"
#include "state/withdraw.h"
#include "table/fd_table.h"

namespace clan::preload {
namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0xff51afd7ed558ccdu;
  return hash ^ (hash >> 32);
}

constexpr std::uint64_t kSweepNs = 5'000'000'000u;
constexpr int kMostNames = 1024, kMostProbes = 32;  ///< of one sweep
constexpr long kFreshSeconds = 2;                   ///< of a file whose process may not listen yet

// Opens the file of that name: a socket with no other name, and no link. -1, with errno.
int open_itself(const sockaddr_un& path, struct stat* st) {
  const int file = static_cast<int>(
      sys::call(SYS_openat, AT_FDCWD, path.sun_path, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (file < 0) return -1;
  if (sys::fstat(file, st) == 0 && S_ISSOCK(st->st_mode) && st->st_nlink == 1) return file;
  sys::close(file);
  errno = EADDRINUSE;
  return -1;
}

struct OfProc : sockaddr_un {
  explicit OfProc(int file) : sockaddr_un{} {
    sun_family = AF_UNIX;
    std::snprintf(sun_path, sizeof sun_path, "/proc/self/fd/%d", file);
  }
};

// Gives the file that has just been bound the mode, if possible. Not by its name: the directory's
// owner may have put another file there. False, with errno: it has.
bool give_mode(const sockaddr_un& path, mode_t mode) {
  struct stat st {};
  const int file = open_itself(path, &st);
  if (file < 0) {
    if (errno == ENOENT) errno = EADDRINUSE;
    return false;
  }
  const bool ours = st.st_uid == ::geteuid();
  if (ours && (st.st_mode & 0777) != mode)
    (void)sys::call(SYS_fchmodat, AT_FDCWD, OfProc(file).sun_path, mode);
  sys::close(file);
  if (!ours) errno = EADDRINUSE;
  return ours;
}

// To that very file: a user that may write the directory may put a link to another socket there.
bool connect_to_file(int socket, const sockaddr_un& path, socklen_t size) {
  struct stat st {};
  const int file = open_itself(path, &st);
  if (file < 0) return false;
  const OfProc itself(file);
  long rc = sys::call(SYS_connect, socket, &itself, sizeof(sockaddr_un));
  if (rc != 0 && errno == ENOENT) rc = sys::call(SYS_connect, socket, &path, size);  // no /proc
  const KeepErrno keep;
  sys::close(file);
  return rc == 0;
}

const char* last_part(const char* path) {
  const char* const slash = std::strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

}  // namespace

std::uint64_t name_of(const Endpoint& client, const Endpoint& server) {
  std::uint64_t hash = 0x9e3779b97f4a7c15u;
  for (const Endpoint* end : {&client, &server}) {
    std::uint64_t halves[2];
    std::memcpy(halves, &end->address, sizeof halves);
    hash = mix(mix(mix(hash, halves[0]), halves[1]), end->port);
  }
  return hash != 0 ? hash : 1;
}

int unix_socket(int type) {
  return static_cast<int>(sys::call(SYS_socket, AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

bool is_left_over(const sockaddr_un& path, socklen_t size) {
  const int probe = unix_socket(SOCK_STREAM);
  if (probe < 0) return false;
  const bool nobody = !connect_to_file(probe, path, size) && errno == ECONNREFUSED;
  sys::close(probe);
  return nobody;
}

bool connect_to_offer(int socket, std::uint64_t name) {
  sockaddr_un path{};
  const socklen_t size = path_of(name, &path);
  if (!connect_to_file(socket, path, size)) return false;
  // A socket keeps the name that it was bound to, even if its file is renamed.
  struct {
    sockaddr_un name{};
    char end = 0;
  } bound;
  socklen_t bound_size = sizeof bound.name;
  return sys::call(SYS_getpeername, socket, &bound.name, &bound_size) == 0 &&
         std::strcmp(last_part(bound.name.sun_path), last_part(path.sun_path)) == 0;
}

bool bind_offer(int listener, std::uint64_t name, mode_t mode) {
  sockaddr_un path{};
  const socklen_t size = path_of(name, &path);
  (void)sys::call(SYS_fchmod, listener, mode);  // the file's mode, but for the bits of the umask
  if (sys::call(SYS_bind, listener, &path, size) != 0) {
    if (errno != EADDRINUSE) return false;
    if (!is_left_over(path, size)) return errno = EADDRINUSE, false;
    unlink_offer(name);
    if (sys::call(SYS_bind, listener, &path, size) != 0) return false;
  }
  if (give_mode(path, mode) && sys::call(SYS_listen, listener, 1) == 0) return true;
  const KeepErrno keep;
  unlink_offer(name);
  return false;
}

std::optional<int> sweep() {
  static std::atomic<std::uint64_t> next_ns{0};
  static std::atomic<unsigned> turn{0};
  const std::uint64_t now = monotonic_ns();
  // relaxed: two threads that sweep at once do no harm
  if (now < next_ns.load(std::memory_order_relaxed)) return std::nullopt;
  next_ns.store(now + kSweepNs, std::memory_order_relaxed);
  const int directory = static_cast<int>(
      sys::call(SYS_openat, AT_FDCWD, config().directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory < 0) return 0;
  timespec clock{};
  ::clock_gettime(CLOCK_REALTIME, &clock);
  // Each sweep probes another part of many live names.
  const unsigned part = turn.fetch_add(1, std::memory_order_relaxed) % 4;
  DirectoryReader names(directory);
  int read = 0, seen = 0, probes = 0;
  while (read < kMostNamesRead && seen < kMostNames && probes < kMostProbes) {
    const char* const name = names.next();
    if (name == nullptr) break;
    ++read;
    if (std::strncmp(name, kOfferPrefix, kOfferPrefixSize) != 0 || std::strlen(name) != kOfferName)
      continue;
    ++seen;
    if (seen > kMostProbes && static_cast<unsigned char>(name[kOfferName - 1]) % 4 != part)
      continue;
    struct stat st {};
    if (::fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISSOCK(st.st_mode))
      continue;
    if (clock.tv_sec - st.st_mtim.tv_sec < kFreshSeconds) continue;
    ++probes;
    sockaddr_un path{};
    path.sun_family = AF_UNIX;
    std::snprintf(path.sun_path, sizeof path.sun_path, "%s/%.*s", config().directory,
                  static_cast<int>(kOfferName), name);
    if (is_left_over(path, sizeof path)) sys::call(SYS_unlinkat, AT_FDCWD, path.sun_path, 0);
  }
  sys::close(directory);
  return read;
}

}  // namespace clan::preload
