// Whether a directory will do as CLAN_DIR, where containers leave offers for each other: for the
// interposer, which uses it, and for `clan run`, which says so before a thousand processes do.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

namespace clan {

/// A longer one does not fit into the name of an AF_UNIX socket, with an offer's name behind.
constexpr std::size_t kMostSharedDirectory = 84;

/// Null, or why not, as the end of a sentence that begins with its name. Any thread; no memory.
inline const char* why_not_shared_directory(const char* path) {
  std::size_t size = std::strlen(path);
  while (size > 1 && path[size - 1] == '/') --size;
  struct stat st {};
  if (*path != '/') return "is not an absolute path";
  if (size > kMostSharedDirectory) {
    return "is too long: names of sockets in it must fit into 107 bytes, so it may have 84";
  }
  if (::stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
    return "is no directory that can be seen here";
  if (::access(path, W_OK | X_OK) != 0) return "cannot be written to by this user";
  if ((st.st_mode & S_IWOTH) != 0 && (st.st_mode & S_ISVTX) == 0) {
    return "can be written to by everybody and has no sticky bit (chmod +t), so anybody could "
           "remove "
           "offers of others";
  }
  return nullptr;
}

}  // namespace clan
