#include "base/fd.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

#include "base/wait_call.h"
#include "clan/detail/clock.h"
#include "clan/detail/system_call.h"

namespace clan {
namespace {

// An abstract socket's address; the length excludes the unused tail. A name with a slash is a file.
struct AbstractAddress {
  sockaddr_un address{};
  socklen_t length = 0;
  bool is_file() const { return address.sun_path[0] != 0; }
};

Result<AbstractAddress> abstract_address(std::string_view name) {
  AbstractAddress a;
  if (name.empty() || name.size() > sizeof(a.address.sun_path) - 1) {
    return Error{ENAMETOOLONG, "abstract socket name must have 1 to 107 bytes"};
  }
  a.address.sun_family = AF_UNIX;
  // A file's name has its zero behind it.
  std::memcpy(a.address.sun_path + (name.front() == '/' ? 0 : 1), name.data(), name.size());
  a.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return a;
}

// Serialises processes over the socket files of a directory: a socket bound under it is not taken
// for dead before it listens. Any reader of the directory can keep the lock: after a second we do
// without it, and remove no file.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& file)
      : fd_(static_cast<int>(sys::call(SYS_openat, AT_FDCWD,
                                       file.substr(0, file.rfind('/') + 1).c_str(),
                                       O_RDONLY | O_DIRECTORY | O_CLOEXEC))) {
    constexpr int kMostTries = 1000;
    const timespec moment{0, 1'000'000};
    for (int k = 0; fd_ && k < kMostTries && !locked_; ++k) {
      locked_ = sys::call(SYS_flock, fd_.get(), LOCK_EX | LOCK_NB) == 0;
      if (!locked_) sys::call(SYS_nanosleep, &moment, nullptr);
    }
  }
  // A child of fork may have the descriptor still.
  ~DirectoryLock() {
    if (locked_) sys::call(SYS_flock, fd_.get(), LOCK_UN);
  }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  explicit operator bool() const { return locked_; }

 private:
  Fd fd_;
  bool locked_ = false;
};

bool is_socket(const char* path) {
  struct stat st {};
  return sys::call(SYS_newfstatat, AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
         S_ISSOCK(st.st_mode);
}

// Removes the file of a listener that is no more. Under the directory's lock.
bool remove_dead(const std::string& file) {
  const auto probe = connect_abstract(file, 0);
  return !probe && probe.error().err == ECONNREFUSED && is_socket(file.c_str()) &&
         sys::call(SYS_unlink, file.c_str()) == 0;
}

// Binds to a file. One that a process left behind, which was killed, is taken over, under the lock.
bool bind_file(int fd, const AbstractAddress& a, bool locked) {
  const auto* const address = reinterpret_cast<const sockaddr*>(&a.address);
  if (::bind(fd, address, a.length) == 0) return true;
  if (errno != EADDRINUSE) return false;
  const char* const path = a.address.sun_path;
  if (!is_socket(path)) {
    errno = ENOTSOCK;  // it is somebody's file
    return false;
  }
  if (locked && remove_dead(path)) return ::bind(fd, address, a.length) == 0;
  errno = EADDRINUSE;
  return false;
}

}  // namespace

void Fd::reset() {
  if (fd_ >= 0) sys::close(fd_);
  fd_ = -1;
}

Result<Fd> duplicate(int fd) {
  int copy = sys::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return errno_error("fcntl(F_DUPFD_CLOEXEC)");
  return Fd(copy);
}

Result<Fd> create_memfd(const char* name, std::size_t bytes) {
  Fd fd(static_cast<int>(sys::call(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (!fd) return errno_error("memfd_create");
  rlimit most{};  // a signal would end the program
  if (::getrlimit(RLIMIT_FSIZE, &most) == 0 && bytes > most.rlim_cur)
    return Error{EFBIG, "shared memory, for the limit of file sizes (ulimit -f)"};
  if (sys::call(SYS_ftruncate, fd.get(), bytes) != 0) return errno_error("ftruncate(memfd)");
  if (sys::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return errno_error("fcntl(F_ADD_SEALS)");
  }
  return fd;
}

Status seal_future_write(int memfd) {
  if (sys::fcntl(memfd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0) {
    return errno_error("fcntl(F_ADD_SEALS, F_SEAL_FUTURE_WRITE)");
  }
  return {};
}

Status seal_seals(int memfd) {
  const int seals = sys::fcntl(memfd, F_GET_SEALS);
  if (seals >= 0 && (seals & F_SEAL_SEAL) != 0) return {};
  if (sys::fcntl(memfd, F_ADD_SEALS, F_SEAL_SEAL) != 0)
    return errno_error("fcntl(F_ADD_SEALS, F_SEAL_SEAL)");
  return {};
}

Result<Fd> create_eventfd() {
  Fd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) return errno_error("eventfd");
  return fd;
}

namespace {

// O_NONBLOCK belongs to the open file, which a peer may share and change: ask first.
bool ready_now(int fd, short events) {
  pollfd p{fd, events, 0};
  timespec none{};
  return sys::ppoll(&p, 1, &none) > 0 && (p.revents & events) != 0;
}

}  // namespace

void signal_eventfd(int fd) {
  std::uint64_t one = 1;
  // Not writable means that the counter is at its maximum: the reader is already going to wake.
  if (ready_now(fd, POLLOUT)) (void)!::write(fd, &one, sizeof one);
}

void drain_eventfd(int fd) {
  std::uint64_t count;
  // One call where the kernel has it (5.8), whatever a peer has made of O_NONBLOCK.
  iovec into{&count, sizeof count};
  if (::preadv2(fd, &into, 1, -1, RWF_NOWAIT) >= 0 || errno == EAGAIN) return;
  if (ready_now(fd, POLLIN)) (void)!::read(fd, &count, sizeof count);
}

bool may_be_eventfd(int fd) {
  struct stat st {};
  return sys::fstat(fd, &st) == 0 && (st.st_mode & S_IFMT) == 0;
}

Status send_datagram(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  if (fds.size() > kMaxPassedFds) return Error{EINVAL, "too many descriptors in one datagram"};
  iovec iov{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxPassedFds)] = {};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
  }
  for (;;) {
    if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
    if (errno != EINTR) return errno_error("sendmsg(control socket)");
  }
}

Result<Datagram> receive_datagram(int socket, std::span<std::byte> bytes) {
  iovec iov{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxPassedFds)];
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n;
  do {
    n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n < 0) {
    // For want of the kernel's memory the datagram stays where it is, and can be had later.
    if (errno == ENOMEM || errno == ENOBUFS) errno = EAGAIN;
    return errno_error("recvmsg(control socket)");
  }
  Datagram d;
  d.bytes = static_cast<std::size_t>(n);
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      Fd owned(fd);  // closes what does not fit
      if (d.fd_count < kMaxPassedFds) d.fds[d.fd_count++] = std::move(owned);
    }
  }
  const bool fds_cut = (message.msg_flags & MSG_CTRUNC) != 0;
  if ((message.msg_flags & MSG_TRUNC) != 0 || (fds_cut && d.fd_count == kMaxPassedFds)) {
    return Error{EMSGSIZE, "control datagram larger than its version allows"};
  }
  d.fds_lost = fds_cut;
  return d;
}

Result<Fd> listen_abstract(std::string_view name) {
  auto address = abstract_address(name);
  if (!address) return address.error();
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_error("socket(AF_UNIX)");
  std::optional<DirectoryLock> lock;
  if (address->is_file()) lock.emplace(std::string(name));
  const bool bound =
      lock ? bind_file(fd.get(), *address, static_cast<bool>(*lock))
           : ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address->address), address->length) == 0;
  if (!bound && errno == ENOTSOCK) return errno_error("there is a file of that name, no socket");
  if (!bound) return errno_error("bind(abstract socket)");
  if (::listen(fd.get(), SOMAXCONN) != 0) return errno_error("listen(abstract socket)");
  return fd;
}

void end_listener(int fd, const std::string& file) {
  const DirectoryLock lock(file);
  (void)sys::call(SYS_shutdown, fd, SHUT_RDWR);
  if (lock) (void)remove_dead(file);
}

Result<Fd> connect_abstract(std::string_view name, std::uint64_t deadline_ns) {
  auto address = abstract_address(name);
  if (!address) return address.error();
  const bool waits = deadline_ns != 0;
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | (waits ? 0 : SOCK_NONBLOCK), 0));
  if (!fd) return errno_error("socket(AF_UNIX)");
  for (;;) {
    if (waits && deadline_ns != kNoDeadline) {
      // connect() to a listener whose backlog is full waits as long as sending may.
      const std::uint64_t now = monotonic_ns();
      const std::uint64_t left_us = deadline_ns > now ? (deadline_ns - now) / 1000 + 1 : 1;
      const timeval limit{static_cast<time_t>(left_us / 1'000'000),
                          static_cast<suseconds_t>(left_us % 1'000'000)};
      if (::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0) {
        return errno_error("setsockopt(SO_SNDTIMEO)");
      }
    }
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address->address), address->length) == 0)
      return fd;
    if (errno == EAGAIN) {
      return Error{waits ? ETIMEDOUT : EAGAIN, "the peer accepts nobody: its backlog is full"};
    }
    if (errno == ENOENT && address->is_file()) errno = ECONNREFUSED;  // as where nobody listens
    if (errno != EINTR) return errno_error("connect(abstract socket)");
  }
}

Result<PeerCredentials> peer_credentials(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return errno_error("getsockopt(SO_PEERCRED)");
  }
  return PeerCredentials{credentials.pid, credentials.uid};
}

}  // namespace clan
