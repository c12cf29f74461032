// What several readers of /proc need.
#pragma once

#include <dirent.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace clan::tool {

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};
using Directory = std::unique_ptr<DIR, CloseDirectory>;

/// The number that a name in /proc is, if it is one.
std::optional<pid_t> pid_of(const char* name);
std::vector<pid_t> all_processes();
/// What a symbolic link says; "" if that cannot be read.
std::string read_link(const std::string& path);
/// "" when the process has gone. A process chooses its name itself: what a terminal cannot show
/// becomes '?'.
std::string command_name(pid_t pid);
/// What a terminal or a label cannot show as it is becomes '?'.
std::string printable(std::string text);

/// Calls `found` with the path of each descriptor of `pid` that is a memfd of this name, until it
/// returns true. False: it never has.
bool find_memfd(pid_t pid, const char* name,
                const std::function<bool(const std::string& path)>& found);
/// Copies the first `bytes` of a memfd: nothing is mapped, since the file is the word of a process
/// that may be hostile. False: it has less.
bool copy_of(const std::string& path, void* to, std::size_t bytes);

}  // namespace clan::tool
