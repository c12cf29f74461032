#include "reload.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <sstream>

namespace clan::gateway {
namespace {

constexpr const char* kListeners = "CLAN_GATEWAY_LISTENERS";  // "7,9"
constexpr const char* kReady = "CLAN_GATEWAY_READY";          // a descriptor
constexpr int kFirstOfManager = 3;

int number_in(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : -1;
}

bool is_listener(int fd) {
  int listens = 0;
  socklen_t size = sizeof listens;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0;
}

}  // namespace

std::vector<int> inherited_listeners() {
  std::vector<int> fds;
  if (const char* list = std::getenv(kListeners); list != nullptr) {
    std::stringstream words(list);
    for (std::string word; std::getline(words, word, ',');) fds.push_back(std::atoi(word.c_str()));
  } else if (number_in("LISTEN_PID") == getpid()) {
    for (int i = 0; i < number_in("LISTEN_FDS"); ++i) fds.push_back(kFirstOfManager + i);
  }
  for (const char* name : {kListeners, "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"})
    unsetenv(name);
  std::erase_if(fds, [](int fd) { return !is_listener(fd); });
  for (const int fd : fds) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  return fds;
}

void say_ready() {
  const int fd = number_in(kReady);
  unsetenv(kReady);
  if (fd < 0) return;
  (void)!write(fd, "1", 1);
  close(fd);
}

Successor Successor::start(const std::vector<std::string>& arguments,
                           const std::vector<int>& listeners) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return {};
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::string list;
  for (const int fd : listeners) list += fmt::format("{}{}", list.empty() ? "" : ",", fd);
  setenv(kListeners, list.c_str(), 1);
  setenv(kReady, fmt::format("{}", ends[1]).c_str(), 1);
  const pid_t pid = fork();
  if (pid == 0) {
    for (const int fd : listeners) fcntl(fd, F_SETFD, 0);
    fcntl(ends[1], F_SETFD, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  unsetenv(kListeners);
  unsetenv(kReady);
  close(ends[1]);
  if (pid < 0) close(ends[0]);
  return pid < 0 ? Successor{} : Successor{pid, ends[0]};
}

}  // namespace clan::gateway
