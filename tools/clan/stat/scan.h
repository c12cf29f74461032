// One pass over the descriptors of all processes.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>

#ifdef CLAN_OMNIORB
#include "pages/orb_tables.h"
#endif

namespace clan::tool {

struct Scan {
  struct PipeFile {
    std::string link;  // /proc/<pid>/fd/<n>
    std::set<pid_t> holders;
  };
  std::map<std::pair<dev_t, ino_t>, PipeFile> pipes;
  std::map<std::pair<dev_t, ino_t>, PipeFile> reasons;  // see clan/face/reasons.h
  // processes that have those of another version
  std::set<pid_t> other_reasons;
  std::map<ino_t, std::set<pid_t>> sockets;
  std::map<ino_t, std::set<pid_t>> standard;  // sockets that are a standard stream of these
  std::set<pid_t> rings;                      // processes with an io_uring
#ifdef CLAN_OMNIORB
  std::map<std::pair<dev_t, ino_t>, OrbTable> orb_tables;
#endif
  std::set<pid_t> seen;
  std::size_t refused = 0;  // processes that may not be looked into
};

Scan scan_processes();

}  // namespace clan::tool
