// The program when a test executes it anew, and the environments for that.
#include <vector>

#include "helpers.h"

namespace clan::test {
namespace {

[[maybe_unused]] const bool is_a_test = [] {
  if (const char* fd = std::getenv(kTakeFrom)) ::_exit(echo(take(std::atoi(fd))));
  if (const char* fd = std::getenv(kAcceptOn))
    ::_exit(echo(::accept(std::atoi(fd), nullptr, nullptr)));
  if (const char* port = std::getenv(kConnectTo)) {
    ::_exit(echo(connect_to(static_cast<std::uint16_t>(std::atoi(port)))));
  }
  if (const char* fd = std::getenv(kClose)) ::close(std::atoi(fd));
  if (const char* fd = std::getenv(kEchoOn)) ::_exit(echo(std::atoi(fd)));
  return Watchdog::start();
}();

}  // namespace

char* const* environment_without_library() {
  static std::vector<char*> list;
  list.clear();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "LD_PRELOAD=", 11) != 0) list.push_back(*entry);
  }
  list.push_back(nullptr);
  return list.data();
}

int onto_standard(int fd) {
  ::dup2(fd, STDIN_FILENO);
  ::dup2(fd, STDOUT_FILENO);
  ::close(fd);
  return 0;
}

}  // namespace clan::test
