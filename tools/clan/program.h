// What keeps a program from running under CLAN, as far as its file and its arguments say: for `clan
// run`.
#pragma once

#include <string>
#include <vector>

namespace clan::tool {

struct Obstacle {
  std::string sentence;      ///< for people; empty: none that is known
  bool cannot_load = false;  ///< the program does not even start with the library in LD_PRELOAD
};

/// Finds the obstacle for the program in the file `path`, or for the interpreter of that script,
/// called as `command`.
Obstacle obstacle_of(const std::string& path, const std::vector<std::string>& command);

/// Asks whether the file `path` is nothing for a shell: it has a NUL byte in its first line.
bool is_binary(const std::string& path);

}  // namespace clan::tool
