// Files with pre-shared keys, for tests.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace clan::test {

inline const std::string kKey = "0123456789abcdef0123456789abcdef";

/// A directory with key files, removed at the end.
class KeyFiles {
 public:
  KeyFiles() {
    char name[] = "/tmp/clan-keys-XXXXXX";
    directory_ = ::mkdtemp(name);
  }
  ~KeyFiles() {
    for (const std::string& path : made_) ::unlink(path.c_str());
    ::rmdir(directory_.c_str());
  }
  std::string make(const std::string& content, mode_t mode = 0600) {
    std::string path = directory_ + "/" + std::to_string(made_.size());
    std::ofstream(path, std::ios::binary) << content;
    ::chmod(path.c_str(), mode);
    made_.push_back(path);
    return path;
  }
  const std::string& directory() const { return directory_; }

 private:
  std::string directory_;
  std::vector<std::string> made_;
};

}  // namespace clan::test
