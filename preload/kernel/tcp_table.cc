#include "kernel/tcp_table.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernel/sock_diag.h"
#include "os/scratch.h"
#include "os/sys.h"

namespace clan::preload {
namespace {

constexpr int kMostRows = 16384;
constexpr unsigned kListen = 10;

// One of the two files, line by line, without memory of our own.
class Table {
 public:
  explicit Table(const char* path)
      : fd_(static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC))) {
    struct statfs about {};
    if (fd_ >= 0 && (::fstatfs(fd_, &about) != 0 || about.f_type != PROC_SUPER_MAGIC)) {
      sys::close(fd_);
      fd_ = -1;
    }
  }
  ~Table() {
    if (fd_ >= 0) sys::close(fd_);
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  explicit operator bool() const { return fd_ >= 0; }

  /// The next line, null-terminated; null at the end.
  const char* next() {
    for (;;) {
      if (text_ == nullptr) return nullptr;
      char* end = static_cast<char*>(std::memchr(text_ + at_, '\n', size_ - at_));
      if (end != nullptr) {
        *end = 0;
        const char* line = text_ + at_;
        at_ = static_cast<std::size_t>(end - text_) + 1;
        return line;
      }
      if (at_ == 0 && size_ == Scratch::kUsual) return nullptr;  // no line is that long
      std::memmove(text_, text_ + at_, size_ - at_);
      size_ -= at_;
      at_ = 0;
      const long n = sys::call(SYS_read, fd_, text_ + size_, Scratch::kUsual - size_);
      if (n <= 0) return nullptr;
      size_ += static_cast<std::size_t>(n);
    }
  }

 private:
  int fd_;
  std::size_t at_ = 0, size_ = 0;
  const Scratch memory_{Scratch::kUsual};
  char* const text_ = memory_.as<char>();
};

// "0100007F:1F90", or 32 digits: each word is printed as a number, and in network order in memory.
bool parse(const char*& at, bool v6, Endpoint* to) {
  at += std::strspn(at, " ");
  std::uint32_t words[4];
  const int count = v6 ? 4 : 1;
  for (int i = 0; i < count; ++i, at += 8) {
    char digits[9] = {};
    for (int k = 0; k < 8; ++k) {
      if (at[k] == 0) return false;
      digits[k] = at[k];
    }
    char* end = nullptr;
    words[i] = static_cast<std::uint32_t>(std::strtoul(digits, &end, 16));
    if (end != digits + 8) return false;
  }
  if (*at != ':') return false;
  char* end = nullptr;
  const unsigned long port = std::strtoul(at + 1, &end, 16);
  if (end != at + 5) return false;
  at = end;
  to->port = static_cast<std::uint16_t>(port);
  to->address = {};
  if (v6) {
    std::memcpy(&to->address, words, 16);
  } else {
    to->address.s6_addr[10] = to->address.s6_addr[11] = 0xff;
    std::memcpy(to->address.s6_addr + 12, words, 4);
  }
  return true;
}

// "sl: local remote st tx:rx tr:when retransmits uid timeout inode …"
bool parse_row(const char* line, bool v6, Endpoint* local, Endpoint* remote,
               SockDiag::Found* found) {
  const char* at = std::strchr(line, ':');
  if (at == nullptr || !parse(++at, v6, local) || !parse(at, v6, remote)) return false;
  unsigned state = 0, uid = 0, inode = 0;
  if (std::sscanf(at, " %x %*s %*s %*s %u %*s %u", &state, &uid, &inode) != 3) return false;
  *found = SockDiag::Found();
  found->family = v6 ? AF_INET6 : AF_INET;
  found->state = static_cast<std::uint8_t>(state);
  found->uid = uid;
  found->inode = inode;
  return true;
}

bool find_in(const char* path, bool v6, const Endpoint& local, const Endpoint& remote,
             SockDiag::Found* found) {
  Table rows(path);
  if (!rows || rows.next() == nullptr) return false;  // the heading
  for (int row = 0; row < kMostRows; ++row) {
    const char* line = rows.next();
    if (line == nullptr) return false;
    Endpoint from, to;
    SockDiag::Found here;
    if (!parse_row(line, v6, &from, &to, &here) || here.state == kListen || !(from == local) ||
        !(to == remote)) {
      continue;
    }
    *found = here;
    found->local = from;
    found->remote = to;
    return true;
  }
  return false;
}

constexpr char kTcp[] = "/proc/self/net/tcp", kTcp6[] = "/proc/self/net/tcp6";

}  // namespace

bool find_in_tcp_tables(const Endpoint& local, const Endpoint& remote, SockDiag::Found* found) {
  // A connection between sockets of IPv6 may have mapped addresses.
  const bool v4 = IN6_IS_ADDR_V4MAPPED(&local.address);
  return (v4 && find_in(kTcp, false, local, remote, found)) ||
         find_in(kTcp6, true, local, remote, found);
}

}  // namespace clan::preload
