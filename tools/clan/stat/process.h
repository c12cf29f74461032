// What keeps a process under CLAN from sharing memory, as far as /proc says: for `clan stat`.
#pragma once

#include <clan/face/settings.h>
#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace clan::tool {

struct ProcessFacts {
  bool has_library = false;
  bool ended = false;  ///< it has no memory any more: nothing else is known of it
  std::optional<uid_t> user;  ///< the effective one
  /// absent: the environment it began with is not there to be read
  std::optional<Settings> settings;
  bool misunderstood = false;  ///< something in `settings` was wrong, so that it is disabled
  struct Users {
    unsigned long inside, outside, count;
  };
  /// of its user namespace, as in /proc/PID/uid_map; empty: not known
  std::vector<Users> users;
  bool has_user(uid_t uid) const;  ///< numbered as here; true when in doubt
  bool filtered = false;           ///< a filter of system calls (seccomp) is on it
  bool small_files = false;        ///< its limit of file sizes leaves no room for pipes
  pid_t own_pid = 0;               ///< as its own namespace counts
  /// a library that LD_PRELOAD names before ours; "" if none is known
  std::string in_front;
  /// it has as many as its memory allows, see clan/face/pipe_memory.h
  bool many_pipes = false;
};

/// Reads each process when it is first asked for.
class Processes {
 public:
  const ProcessFacts& of(pid_t pid);

 private:
  std::map<pid_t, ProcessFacts> known_;
};

}  // namespace clan::tool
