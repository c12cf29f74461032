#include "help.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace clan::tool {
namespace {

/// The column in which a line goes on: of the text behind its first gap, or of its text.
std::size_t indent_of(const std::string& line, std::size_t width) {
  const std::size_t begin = line.find_first_not_of(' ');
  const std::size_t gap = begin > 0 ? line.find("  ", begin) : std::string::npos;
  const std::size_t second = line.find_first_not_of(' ', gap);
  return gap == std::string::npos || second > width / 2 ? begin : second;
}

}  // namespace

std::string wrapped(const std::string& text, std::size_t width) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    while (line.size() > width) {
      const std::size_t indent = indent_of(line, width);
      std::size_t cut = line.rfind(' ', width);
      if (cut == std::string::npos || cut <= indent) cut = line.find(' ', std::max(indent, width));
      if (cut == std::string::npos) break;  // one long word
      out.append(line, 0, line.find_last_not_of(' ', cut) + 1).append("\n");
      line = std::string(indent, ' ') + line.substr(line.find_first_not_of(' ', cut));
    }
    out.append(line).append("\n");
  }
  return out;
}

std::size_t terminal_width() {
  constexpr int kUsual = 80, kLeast = 40;
  winsize size{};
  int width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
  const char* columns = std::getenv("COLUMNS");
  if (width == 0 && columns != nullptr) width = std::atoi(columns);
  return static_cast<std::size_t>(width > 0 ? std::max(width, kLeast) : kUsual);
}

}  // namespace clan::tool
