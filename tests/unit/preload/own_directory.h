// A directory of a test's own, which the interposer takes for CLAN_DIR meanwhile.
#pragma once

#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "os/config.h"

namespace clan::preload {

class OwnDirectory {
 public:
  OwnDirectory() {
    char name[] = "/tmp/clan-directory-XXXXXX";
    if (::mkdtemp(name) == nullptr) std::abort();
    path_ = name;
    set(path_);
  }
  ~OwnDirectory() {
    set("");
    std::error_code nothing;
    std::filesystem::remove_all(path_, nothing);
  }
  OwnDirectory(const OwnDirectory&) = delete;
  OwnDirectory& operator=(const OwnDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::ptrdiff_t files() const {
    return std::distance(std::filesystem::directory_iterator(path_), {});
  }

 private:
  // No other thread reads it.
  static void set(const std::string& path) {
    auto& settings = const_cast<Config&>(config());
    std::strncpy(settings.directory, path.c_str(), sizeof settings.directory - 1);
  }
  std::string path_;
};

}  // namespace clan::preload
