// What processes under CLAN say of connections that stay on TCP (clan/face/reasons.h): their words,
// copied and not mapped, since they are the word of processes that may be hostile. A process is
// believed of sockets that it holds.
#pragma once

#include <clan/face/reasons.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "process.h"
#include "scan.h"

namespace clan::tool {

/// What one of the processes that hold a socket says.
struct Said {
  pid_t pid = 0;
  reasons::Reason reason;
};

class ReasonPages {
 public:
  explicit ReasonPages(const Scan& scan);
  /// Returns the most telling reason for the socket with this inode, by one of `holders` (those of
  /// its end).
  std::optional<Said> of_socket(ino_t inode, const std::set<pid_t>& holders) const;
  /// Returns the reason for all connections of these processes; none if one of them says nothing,
  /// as it may move them.
  std::optional<Said> of_processes(const std::vector<pid_t>& pids, Processes& processes) const;
  /// It has words, whatever they are of.
  bool has(pid_t pid) const;

 private:
  struct Page {
    std::set<pid_t> holders;
    std::vector<std::uint64_t> words;
  };
  std::optional<reasons::Reason> of_process(pid_t pid, Processes& processes) const;

  std::vector<Page> pages_;
};

/// "process 12: TCP_INQ".
std::string text_of(const Said& said);

}  // namespace clan::tool
