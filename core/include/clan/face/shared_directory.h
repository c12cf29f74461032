// Whether a directory will do as CLAN_DIR, where containers leave offers for each other.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace clan {

/// A longer one does not fit into the name of an AF_UNIX socket, with an offer's name behind.
constexpr std::size_t kMostSharedDirectory = 84;

/// Returns null, or why not: the end of a sentence. Any thread; no memory. Changes errno.
inline const char* why_not_shared_directory(const char* path) {
  std::size_t size = std::strlen(path);
  while (size > 1 && path[size - 1] == '/') --size;
  struct stat st {};
  if (*path != '/') return "is not an absolute path";
  if (size > kMostSharedDirectory) {
    return "is too long: names of sockets in it must fit into 107 bytes, so it may have 84";
  }
  if (::stat(path, &st) != 0) {
    return errno == EACCES ? "is no directory that this user can reach"
                           : "is no directory that can be seen here";
  }
  if (!S_ISDIR(st.st_mode)) return "is no directory, but something else";
  if (::access(path, W_OK | X_OK) != 0) {
    return errno == EROFS ? "cannot be written to: its file system is read-only here"
                          : "cannot be written to by this user (if users differ: chmod 1777)";
  }
  if ((st.st_mode & S_IWOTH) != 0 && (st.st_mode & S_ISVTX) == 0) {
    return "can be written to by everybody and has no sticky bit (chmod +t), so anybody could "
           "remove offers of others";
  }
  return nullptr;
}

/// Explains the errno of an offer in a directory that was usable before; null: see the errno.
inline const char* why_no_offer(int error) {
  switch (error) {
    case ENOSPC: return "its file system has no inodes or no room left (df -i)";
    case EDQUOT: return "the quota of this user there is used up";
    case EROFS: return "its file system is read-only";
    case ENOENT: return "it has been removed (mkdir -m 1777 makes it anew)";
    case ENOTDIR: return "something else is in its place";
    case EACCES: return "this user cannot write to it any more";
    case EPERM:
    case EOPNOTSUPP: return "its file system lets no sockets be made";
    case EADDRINUSE: return "something else has the offer's name";
    default: return nullptr;
  }
}

}  // namespace clan
