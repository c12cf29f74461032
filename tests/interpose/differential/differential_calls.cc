// See differential_calls.h. Everything goes through the C library, where an interposer sees it.
#include "differential_calls.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>

namespace clan::interpose_test {

std::int64_t now_ms() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

// --- the stream's contents
// --------------------------------------------------------------------------

static std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9;
  return x ^ (x >> 32);
}

static std::uint8_t pattern(std::uint64_t key, std::int64_t at) {
  const auto position = static_cast<std::uint64_t>(at);
  return static_cast<std::uint8_t>(mix(key + position / 8) >> (position % 8 * 8));
}

Bytes make_pattern(std::uint64_t key, std::int64_t offset, std::size_t bytes) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    data[i] = pattern(key, offset + static_cast<std::int64_t>(i));
  return data;
}

std::string sum_of(const Bytes& data) {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (const std::uint8_t byte : data) sum = (sum ^ byte) * 0x100000001b3;
  char text[32];
  std::snprintf(text, sizeof text, " sum %016lx", static_cast<unsigned long>(sum));
  return text;
}

std::string judge(const Bytes& data, std::uint64_t key, std::int64_t offset) {
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (data[i] == pattern(key, offset + static_cast<std::int64_t>(i))) continue;
    return sum_of(data) + " WRONG DATA at +" + std::to_string(i);
  }
  return sum_of(data);
}

// --- saying
// ---------------------------------------------------------------------------------------

std::string error_name(int error) {
  const char* name = ::strerrorname_np(error);
  return name != nullptr ? name : std::to_string(error);
}

std::string outcome(std::int64_t result) {
  return result >= 0 ? std::to_string(result) : "-1 " + error_name(errno);
}

std::string events_text(int events) {
  static const struct {
    int bit;
    const char* name;
  } kNames[] = {{POLLIN, "IN"},   {POLLPRI, "PRI"},   {POLLOUT, "OUT"},    {POLLERR, "ERR"},
                {POLLHUP, "HUP"}, {POLLNVAL, "NVAL"}, {POLLRDHUP, "RDHUP"}};
  std::string text;
  for (const auto& name : kNames) {
    if ((events & name.bit) != 0) text += std::string(text.empty() ? "" : "|") + name.name;
  }
  return text.empty() ? "nothing" : text;
}

std::string flags_text(std::int64_t flags) {
  std::string text;
  if ((flags & MSG_PEEK) != 0) text += " PEEK";
  if ((flags & MSG_WAITALL) != 0) text += " WAITALL";
  if ((flags & MSG_DONTWAIT) != 0) text += " DONTWAIT";
  if ((flags & MSG_TRUNC) != 0) text += " TRUNC";
  if ((flags & MSG_NOSIGNAL) != 0) text += " NOSIGNAL";
  if ((flags & MSG_MORE) != 0) text += " MORE";
  if ((flags & MSG_WAITFORONE) != 0) text += " WAITFORONE";
  return text;
}

// --- waiting
// --------------------------------------------------------------------------------------

int poll_one(int fd, int events, int timeout_ms) {
  pollfd one = {fd, static_cast<short>(events), 0};
  const int ready = ::poll(&one, 1, timeout_ms);
  return ready < 0 ? -1 : one.revents;
}

int select_one(int fd, int events, int timeout_ms, bool with_mask) {
  fd_set in, out, except;
  FD_ZERO(&in);
  FD_ZERO(&out);
  FD_ZERO(&except);
  if ((events & POLLIN) != 0) FD_SET(fd, &in);
  if ((events & POLLOUT) != 0) FD_SET(fd, &out);
  int ready = 0;
  if (with_mask) {
    const timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
    sigset_t mask;
    sigemptyset(&mask);
    ready = ::pselect(fd + 1, &in, &out, &except, &timeout, &mask);
  } else {
    timeval timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000L};
    ready = ::select(fd + 1, &in, &out, &except, &timeout);
  }
  if (ready < 0) return -1;
  if (ready == 0) return 0;
  return (FD_ISSET(fd, &in) ? POLLIN : 0) | (FD_ISSET(fd, &out) ? POLLOUT : 0);
}

int wait_one(int fd, int how, int events, int timeout_ms) {
  switch (how) {
    case 0: return poll_one(fd, events, timeout_ms);
    case 1: {
      const timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
      pollfd one = {fd, static_cast<short>(events), 0};
      return ::ppoll(&one, 1, &timeout, nullptr) < 0 ? -1 : one.revents;
    }
    case 2: return select_one(fd, events, timeout_ms, false);
    case 3: return select_one(fd, events, timeout_ms, true);
    default: {
      EpollOf set(fd, static_cast<std::uint32_t>(events));
      return set.wait(timeout_ms, how - 4);
    }
  }
}

bool settle(int fd, std::int64_t bytes) {
  const std::int64_t until = now_ms() + kWaitMs;
  for (;;) {
    int there = -1;
    if (::ioctl(fd, FIONREAD, &there) != 0) return false;
    if (there == bytes) return true;
    if (now_ms() > until) return false;
    ::usleep(200);
  }
}

bool would_block(ssize_t result) { return result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK); }

// --- single calls
// ---------------------------------------------------------------------------------

/// Cuts [base, base + bytes) into up to three pieces, one of them possibly empty.
static int cut(std::uint8_t* base, std::size_t bytes, iovec* pieces) {
  const std::size_t first = bytes / 3;
  const std::size_t second = bytes / 2 - first;
  pieces[0] = {base, first};
  pieces[1] = {base + first, second};
  pieces[2] = {base + first + second, bytes - first - second};
  return 3;
}

/// A memfd with these bytes, positioned at its start.
static int file_of(const Bytes& data) {
  const int file = ::memfd_create("differential", MFD_CLOEXEC);
  std::size_t done = 0;
  while (done < data.size()) {
    const ssize_t n =
        ::pwrite(file, data.data() + done, data.size() - done, static_cast<off_t>(done));
    if (n <= 0) std::abort();
    done += static_cast<std::size_t>(n);
  }
  return file;
}

/// Through a pipe into the socket; returns the bytes that went or -1.
static ssize_t splice_out(int fd, const std::uint8_t* data, std::size_t bytes) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return -1;
  std::size_t done = 0;
  ssize_t failed = 0;
  while (done < bytes && failed == 0) {
    const ssize_t in = ::write(ends[1], data + done, std::min<std::size_t>(bytes - done, 16384));
    ssize_t left = in;
    while (left > 0) {
      const ssize_t n = ::splice(ends[0], nullptr, fd, nullptr, static_cast<std::size_t>(left), 0);
      if (would_block(n)) {
        poll_one(fd, POLLOUT, kWaitMs);
      } else if (n <= 0) {
        failed = -1;
        break;
      } else {
        left -= n;
        done += static_cast<std::size_t>(n);
      }
    }
  }
  const int error = errno;
  ::close(ends[0]);
  ::close(ends[1]);
  errno = error;
  return done > 0 ? static_cast<ssize_t>(done) : failed;
}

/// Out of the socket through a pipe, until `bytes` have come or nothing more does.
static ssize_t splice_in(int fd, std::uint8_t* data, std::size_t bytes) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return -1;
  std::size_t done = 0;
  ssize_t n = 0;
  while (done < bytes) {
    n = ::splice(fd, nullptr, ends[1], nullptr, std::min<std::size_t>(bytes - done, 4096), 0);
    if (n <= 0) break;
    for (ssize_t left = n; left > 0;) {
      const ssize_t got = ::read(ends[0], data + done, static_cast<std::size_t>(left));
      if (got <= 0) std::abort();
      left -= got;
      done += static_cast<std::size_t>(got);
    }
  }
  const int error = errno;
  ::close(ends[0]);
  ::close(ends[1]);
  errno = error;
  return done > 0 ? static_cast<ssize_t>(done) : n;
}

static ssize_t send_many(int fd, std::uint8_t* data, std::size_t bytes, int flags, Said* said) {
  mmsghdr messages[3] = {};
  iovec pieces[3];
  cut(data, bytes, pieces);
  for (int i = 0; i < 3; ++i) {
    messages[i].msg_hdr.msg_iov = &pieces[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const int sent = ::sendmmsg(fd, messages, 3, flags);
  ssize_t total = 0;
  for (int i = 0; i < sent; ++i) {
    total += messages[i].msg_len;
    if (said != nullptr) *said << (i == 0 ? " [" : ",") << std::to_string(messages[i].msg_len);
  }
  if (sent > 0 && said != nullptr) *said << "]";
  return sent < 0 ? -1 : total;
}

static ssize_t receive_many(int fd, std::uint8_t* data, std::size_t bytes, int flags, Said* said) {
  mmsghdr messages[3] = {};
  iovec pieces[3];
  cut(data, bytes, pieces);
  for (int i = 0; i < 3; ++i) {
    if (pieces[i].iov_len == 0) return ::recv(fd, data, bytes, flags);
    messages[i].msg_hdr.msg_iov = &pieces[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const int got = ::recvmmsg(fd, messages, 3, flags | MSG_WAITFORONE, nullptr);
  ssize_t total = 0;
  for (int i = 0; i < got; ++i) {
    std::memmove(data + total, pieces[i].iov_base, messages[i].msg_len);  // each may be short
    total += messages[i].msg_len;
    if (said != nullptr) *said << (i == 0 ? " [" : ",") << std::to_string(messages[i].msg_len);
  }
  if (got > 0 && said != nullptr) *said << "]";
  return got < 0 ? -1 : total;
}

const char* const kSendNames[kSendMethods] = {"send",      "write",    "writev",         "sendmsg",
                                              "sendto",    "sendmmsg", "pwritev2",       "sendfile",
                                              "sendfile+", "splice",   "syscall(sendto)"};

bool takes_flags(int how) { return how == 0 || how == 3 || how == 4 || how == 5 || how == 10; }

ssize_t send_by(int fd, int how, Bytes& data, int flags, Said* said) {
  iovec pieces[3];
  switch (how) {
    case 1: return ::write(fd, data.data(), data.size());
    case 2: return ::writev(fd, pieces, cut(data.data(), data.size(), pieces));
    case 3: {
      msghdr message = {};
      message.msg_iov = pieces;
      message.msg_iovlen = static_cast<std::size_t>(cut(data.data(), data.size(), pieces));
      return ::sendmsg(fd, &message, flags);
    }
    case 4: {
      sockaddr_in ignored = {};
      ignored.sin_family = AF_INET;
      return ::sendto(fd, data.data(), data.size(), flags, reinterpret_cast<sockaddr*>(&ignored),
                      sizeof ignored);
    }
    case 5: return send_many(fd, data.data(), data.size(), flags, said);
    case 6: return ::pwritev2(fd, pieces, cut(data.data(), data.size(), pieces), -1, 0);
    case 7:
    case 8: {
      const int file = file_of(data);
      off_t at = 0;
      const ssize_t sent = ::sendfile(fd, file, how == 8 ? &at : nullptr, data.size());
      const int error = errno;
      const off_t where = how == 8 ? at : ::lseek(file, 0, SEEK_CUR);
      if (said != nullptr) *said << " file at " << std::to_string(where);
      ::close(file);
      errno = error;
      return sent;
    }
    case 9: return splice_out(fd, data.data(), data.size());
    case 10: return ::syscall(SYS_sendto, fd, data.data(), data.size(), flags, nullptr, 0);
    default: return ::send(fd, data.data(), data.size(), flags);
  }
}

const char* const kReceiveNames[kReceiveMethods] = {"recv",     "read",    "readv",
                                                    "recvfrom", "recvmsg", "recvmmsg",
                                                    "preadv2",  "splice",  "syscall(read)"};

bool receives_with_flags(int how) { return how == 0 || (how >= 3 && how <= 5); }

ssize_t receive_by(int fd, int how, Bytes& data, int flags, Said* said) {
  iovec pieces[3];
  switch (how) {
    case 1: return ::read(fd, data.data(), data.size());
    case 2: return ::readv(fd, pieces, cut(data.data(), data.size(), pieces));
    case 3: {
      sockaddr_storage from = {};
      socklen_t length = sizeof from;
      const ssize_t n = ::recvfrom(fd, data.data(), data.size(), flags,
                                   reinterpret_cast<sockaddr*>(&from), &length);
      if (n >= 0 && said != nullptr) *said << " address " << std::to_string(length);
      return n;
    }
    case 4: {
      char control[256];
      sockaddr_storage from = {};
      msghdr message = {};
      message.msg_name = &from;
      message.msg_namelen = sizeof from;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      message.msg_iov = pieces;
      message.msg_iovlen = static_cast<std::size_t>(cut(data.data(), data.size(), pieces));
      const ssize_t n = ::recvmsg(fd, &message, flags);
      if (n >= 0 && said != nullptr) {
        *said << " name " << std::to_string(message.msg_namelen) << " control "
              << std::to_string(message.msg_controllen) << " flags"
              << flags_text(message.msg_flags);
      }
      return n;
    }
    case 5: return receive_many(fd, data.data(), data.size(), flags, said);
    case 6: return ::preadv2(fd, pieces, cut(data.data(), data.size(), pieces), -1, 0);
    case 7: return splice_in(fd, data.data(), data.size());
    case 8: return ::syscall(SYS_read, fd, data.data(), data.size());
    default: return ::recv(fd, data.data(), data.size(), flags);
  }
}

// --- whole transfers: only totals are printed
// ----------------------------------------------------------

ssize_t transfer_out(int fd, int how, Bytes& data, std::size_t chunk) {
  const int file = how == 4 ? file_of(data) : -1;
  const auto set = how == 7 ? std::make_unique<EpollOf>(fd, EPOLLOUT | EPOLLET) : nullptr;
  std::size_t done = 0;
  int error = 0;
  while (done < data.size()) {
    std::uint8_t* const at = data.data() + done;
    const std::size_t size = std::min(chunk, data.size() - done);
    iovec pieces[3];
    msghdr message = {};
    message.msg_iov = pieces;
    ssize_t n = -1;
    switch (how) {
      case 0: n = ::write(fd, at, size); break;
      case 1: n = ::send(fd, at, size, MSG_DONTWAIT | MSG_NOSIGNAL); break;
      case 2: n = ::writev(fd, pieces, cut(at, size, pieces)); break;
      case 3:
        message.msg_iovlen = static_cast<std::size_t>(cut(at, size, pieces));
        n = ::sendmsg(fd, &message, 0);
        break;
      case 4: n = ::sendfile(fd, file, nullptr, size); break;
      case 5: n = splice_out(fd, at, size); break;
      case 6: n = ::send(fd, at, size, done + size < data.size() ? MSG_MORE : 0); break;
      default: n = ::send(fd, at, size, MSG_DONTWAIT); break;  // 7 waits for edges, 8 spins
    }
    if (n >= 0) {
      done += static_cast<std::size_t>(n);
    } else if (would_block(n)) {
      const int ready = how == 8         ? 1
                        : set != nullptr ? set->wait(kWaitMs)
                                         : poll_one(fd, POLLOUT, kWaitMs);
      if (ready == 0) {
        error = ETIMEDOUT;
        break;
      }
    } else {
      error = errno;
      break;
    }
  }
  if (file >= 0) ::close(file);
  errno = error;
  return error == 0 ? static_cast<ssize_t>(done) : -1;
}

ssize_t transfer_in(int fd, int how, Bytes& data, std::size_t chunk) {
  const auto set = how == 3   ? std::make_unique<EpollOf>(fd, EPOLLIN | EPOLLET)
                   : how == 8 ? std::make_unique<EpollOf>(fd, EPOLLIN)
                              : nullptr;
  std::size_t done = 0;
  int error = 0;
  while (done < data.size()) {
    std::uint8_t* const at = data.data() + done;
    const std::size_t size = std::min(chunk, data.size() - done);
    iovec pieces[3];
    msghdr message = {};
    message.msg_iov = pieces;
    ssize_t n = -1;
    switch (how) {
      case 1: n = ::recv(fd, at, size, MSG_WAITALL); break;
      case 2:
      case 3:
      case 10: n = ::recv(fd, at, size, MSG_DONTWAIT); break;  // 10 spins
      case 4: n = ::readv(fd, pieces, cut(at, size, pieces)); break;
      case 5:
        message.msg_iovlen = static_cast<std::size_t>(cut(at, size, pieces));
        n = ::recvmsg(fd, &message, 0);
        break;
      case 6:
        if (select_one(fd, POLLIN, kWaitMs, false) != 0)
          n = ::read(fd, at, size);
        else
          errno = EAGAIN;
        break;
      case 7: n = splice_in(fd, at, size); break;
      case 8:
        n = set->wait(kWaitMs, 1) != 0 ? ::recv(fd, at, size, 0) : (errno = EAGAIN, -1);
        break;
      case 9: n = receive_many(fd, at, size, 0, nullptr); break;
      default: n = ::read(fd, at, size); break;
    }
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    } else if (n == 0) {
      error = ENODATA;
      break;
    } else if (would_block(n)) {
      const int ready = how == 10  ? 1
                        : how == 3 ? set->wait(kWaitMs, 2)
                                   : poll_one(fd, POLLIN, kWaitMs);
      if (ready == 0) {
        error = ETIMEDOUT;
        break;
      }
    } else {
      error = errno;
      break;
    }
  }
  data.resize(done);
  errno = error;
  return error == 0 ? static_cast<ssize_t>(done) : -1;
}

}  // namespace clan::interpose_test
