#include "record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace clan::tlbsim {
namespace {

constexpr int kHigh = 200;  ///< a descriptor that programs leave alone
constexpr int kNotStarted = 127;

/// ../lib from this program, in a build tree and in an installed one.
std::filesystem::path library() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return self.parent_path().parent_path() / "lib" / "libclan-record.so";
}

[[noreturn]] void become(const std::vector<std::string>& command) {
  std::vector<const char*> words;
  for (const std::string& word : command) words.push_back(word.c_str());
  words.push_back(nullptr);
  ::execvp(words[0], const_cast<char**>(words.data()));
  std::perror(fmt::format("clan-tlbsim: {}", command.front()).c_str());
  ::_exit(kNotStarted);
}

}  // namespace

Status record(const std::vector<std::string>& command, const std::string& path) {
  const std::string loads = library();
  if (::access(loads.c_str(), R_OK) != 0) return errno_error("libclan-record.so");
  const int file = path == "-"
                       ? ::dup(STDOUT_FILENO)
                       : ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
  const int trace = file < 0 ? -1 : ::fcntl(file, F_DUPFD, kHigh);
  struct stat about {};
  if (trace < 0 || ::fstat(trace, &about) != 0) return errno_error("output file");
  ::close(file);
  const std::string head = fmt::format("# recorded of {}: pid op vaddr len\n", command.front());
  if (::write(trace, head.data(), head.size()) < 0) return errno_error("output file");
  const char* present = std::getenv("LD_PRELOAD");
  ::setenv("LD_PRELOAD",
           present != nullptr ? fmt::format("{}:{}", loads, present).c_str() : loads.c_str(), 1);
  ::setenv("CLAN_RECORD", fmt::format("{}:{}:{}", trace, about.st_dev, about.st_ino).c_str(), 1);
  const pid_t child = ::fork();
  if (child < 0) return errno_error("fork");
  if (child == 0) become(command);
  ::close(trace);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotStarted)
    return Error{ENOENT, "the command did not start"};
  return {};
}

}  // namespace clan::tlbsim
