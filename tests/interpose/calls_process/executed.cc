// The program when a test executes it anew, and the environments for that.
#include <sys/epoll.h>

#include <vector>

#include "helpers.h"

namespace clan::test {
namespace {

// As echo(), with what a set reports of the socket and no other wait.
int echo_in_set(int set, int fd) {
  for (;;) {
    epoll_event event{};
    if (::epoll_wait(set, &event, 1, -1) != 1 || event.data.u64 != kDataInSet) return 3;
    char buffer[4096];
    const ssize_t n = ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n <= 0) return n == 0 ? 0 : 1;
    if (::write(fd, buffer, static_cast<std::size_t>(n)) != n) return 2;
  }
}

[[maybe_unused]] const bool is_a_test = [] {
  if (const char* fd = std::getenv(kTakeFrom)) ::_exit(echo(take(std::atoi(fd))));
  if (const char* fd = std::getenv(kAcceptOn))
    ::_exit(echo(::accept(std::atoi(fd), nullptr, nullptr)));
  if (const char* port = std::getenv(kConnectTo)) {
    ::_exit(echo(connect_to(static_cast<std::uint16_t>(std::atoi(port)))));
  }
  if (const char* fd = std::getenv(kClose)) ::close(std::atoi(fd));
  if (const char* set = std::getenv(kWaitIn))
    ::_exit(echo_in_set(std::atoi(set), std::atoi(std::getenv(kEchoOn))));
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
