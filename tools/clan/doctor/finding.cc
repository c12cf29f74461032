#include "finding.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace clan::tool {

std::string errno_text() { return std::strerror(errno); }

void Descriptor::reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<long> read_number(const std::string& path) {
  std::ifstream file(path);
  long value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

}  // namespace clan::tool
