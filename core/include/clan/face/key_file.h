// The pre-shared key's file, CLAN_KEY: whether it will do, and the key.
#pragma once

#include <clan/detail/system_call.h>
#include <clan/result.h>

#include <cstddef>
#include <cstring>
#include <string_view>

namespace clan {

constexpr std::size_t kLeastKeyBytes = 32;
constexpr std::size_t kMostKeyBytes = 4096;

/// Takes no memory, and calls nothing that an interposer replaces. One thread.
class KeyFile {
 public:
  KeyFile() = default;
  KeyFile(const KeyFile&) = delete;
  KeyFile& operator=(const KeyFile&) = delete;
  ~KeyFile() { ::explicit_bzero(bytes_, sizeof bytes_); }

  /// Takes the key: the file without white space at its end. ENOENT; EACCES: others may use it, or
  /// own it (root takes any user's); EINVAL: its size or type. The Error's text says what to do.
  Status read(const char* path) {
    if (*path == 0) return Error{EINVAL, "no file with the pre-shared key was named"};
    const int fd = static_cast<int>(
        sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (fd < 0) return not_opened(errno);
    Status taken = take(fd);
    sys::close(fd);
    return taken;
  }
  std::string_view key() const { return {bytes_, size_}; }

 private:
  static Error not_opened(int err) {
    if (err == ENOENT || err == ENOTDIR) {
      return {
          err,
          "the file with the pre-shared key is not there: `openssl rand -hex 32` makes a key for "
          "all hosts, and chmod 600 its file"};
    }
    if (err == EACCES || err == EPERM)
      return {err, "the file with the pre-shared key must be one that this user may read"};
    return {err, "the file with the pre-shared key cannot be opened"};
  }

  Status take(int fd) {
    struct stat status {};
    if (sys::fstat(fd, &status) != 0)
      return Error{errno, "the state of the file with the pre-shared key cannot be read"};
    if (!S_ISREG(status.st_mode))
      return Error{EINVAL, "the pre-shared key must be in a regular file"};
    // Root may use any user's: a program that starts as root and then works as a user has one key.
    const uid_t own = ::geteuid();
    if (own != 0 && status.st_uid != own && status.st_uid != 0)
      return Error{EACCES, "the file with the pre-shared key must belong to this user or to root"};
    if ((status.st_mode & 077) != 0) {
      return Error{
          EACCES,
          "others may use the file with the pre-shared key: chmod 600 it, and make a new key"};
    }
    const long n = sys::call(SYS_read, fd, bytes_, sizeof bytes_);
    if (n < 0) return Error{errno, "the file with the pre-shared key cannot be read"};
    size_ = static_cast<std::size_t>(n);
    if (size_ > kMostKeyBytes) return Error{EINVAL, "the pre-shared key is longer than 4096 bytes"};
    while (size_ > 0 && std::strchr(" \t\r\n", bytes_[size_ - 1]) != nullptr) --size_;
    if (size_ < kLeastKeyBytes) {
      return Error{
          EINVAL,
          "the pre-shared key is shorter than 32 bytes: `openssl rand -hex 32` makes a good one"};
    }
    return {};
  }

  char bytes_[kMostKeyBytes + 1] = {};
  std::size_t size_ = 0;
};

}  // namespace clan
