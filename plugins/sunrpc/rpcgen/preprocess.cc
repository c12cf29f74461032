#include "preprocess.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace clan::rpcgen {

bool preprocess(const std::string& file, const std::vector<std::string>& options,
                std::string* text) {
  std::vector<std::string> words = {"cpp", "-C", "-DRPC_HDR"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back(file);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  pid_t child = 0;
  const int err = posix_spawnp(&child, "cpp", &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (err != 0)
    std::fprintf(stderr, "clan-rpcgen: the C preprocessor (cpp): %s\n", std::strerror(err));
  char piece[4096];
  for (ssize_t n; err == 0 && (n = read(ends[0], piece, sizeof piece)) != 0;) {
    if (n > 0)
      text->append(piece, static_cast<std::size_t>(n));
    else if (errno != EINTR)
      break;
  }
  close(ends[0]);
  int status = -1;
  while (err == 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return err == 0 && status == 0;
}

}  // namespace clan::rpcgen
