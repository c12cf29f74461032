// Programs that the tests of generated stubs start.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "every.h"

namespace clan::test {

/// The first line, or all, of what a program says.
struct Child {
  pid_t pid = 0;
  FILE* out = nullptr;
  explicit Child(std::vector<std::string> command, bool without_preload = false) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
    std::vector<char*> argv, environment;
    for (auto& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    for (char** e = environ; *e != nullptr; ++e) {
      if (!without_preload || std::strncmp(*e, "LD_PRELOAD=", 11) != 0) environment.push_back(*e);
    }
    environment.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    if (posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environment.data()) != 0)
      std::abort();
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    out = fdopen(ends[0], "r");
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid > 0) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    std::fclose(out);
  }
  std::string line() {
    char text[256] = {};
    return std::fgets(text, sizeof text, out) != nullptr ? text : "";
  }
  std::string all(int* status) {
    std::string text;
    char piece[4096];
    for (std::size_t n; (n = std::fread(piece, 1, sizeof piece, out)) > 0;) text.append(piece, n);
    waitpid(pid, status, 0);
    pid = 0;
    return text;
  }
};

}  // namespace clan::test
