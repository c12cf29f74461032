#include "proc.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <system_error>

namespace clan::tool {

std::optional<pid_t> pid_of(const char* name) {
  pid_t pid = 0;
  const char* end = name + std::strlen(name);
  const auto [rest, error] = std::from_chars(name, end, pid);
  if (error != std::errc() || rest != end) return std::nullopt;
  return pid;
}

std::vector<pid_t> all_processes() {
  std::vector<pid_t> found;
  const Directory proc(opendir("/proc"));
  while (const dirent* entry = proc ? readdir(proc.get()) : nullptr) {
    if (const auto pid = pid_of(entry->d_name)) found.push_back(*pid);
  }
  return found;
}

std::string read_link(const std::string& path) {
  char text[256];
  const ssize_t n = readlink(path.c_str(), text, sizeof text);
  return n > 0 ? std::string(text, static_cast<std::size_t>(n)) : "";
}

std::string command_name(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(file, name);
  return printable(std::move(name));
}

std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return text;
}

bool find_memfd(pid_t pid, const char* name,
                const std::function<bool(const std::string& path)>& found) {
  const std::string wanted = fmt::format("/memfd:{} (deleted)", name);
  const std::string path = fmt::format("/proc/{}/fd", pid);
  const Directory directory(opendir(path.c_str()));
  while (const dirent* entry = directory ? readdir(directory.get()) : nullptr) {
    const std::string link = path + "/" + entry->d_name;
    if (read_link(link) == wanted && found(link)) return true;
  }
  return false;
}

bool copy_of(const std::string& path, void* to, std::size_t bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return false;
  const bool whole = pread(fd, to, bytes, 0) == static_cast<ssize_t>(bytes);
  close(fd);
  return whole;
}

}  // namespace clan::tool
