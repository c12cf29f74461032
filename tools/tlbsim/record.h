// Recording: what a program sends from and receives into, as strace sees it, becomes a trace.
//
// A process is an address space. Of its calls those count that name a socket and one buffer: read,
// write, sendto, recvfrom. Calls with several buffers (writev, sendmsg and their like) do not show
// where these are, and are counted only.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trace.h"

namespace clan::tlbsim {

/// Reads lines of `strace -f -e raw=...`, with calls that another thread has interrupted.
class StraceReader {
 public:
  struct Call {
    std::uint32_t thread = 0;
    std::string name;
    std::uint64_t fd = 0, buffer = 0;
    std::int64_t result = 0;
  };
  /// A call that has ended; nothing: none has.
  std::optional<Call> line(std::string_view text);

 private:
  std::map<std::uint32_t, std::string> begun_;  ///< by thread
};

/// The access that a call is; nothing: it has moved nothing, or has several buffers.
std::optional<Access> access_of(const StraceReader::Call& call, std::uint32_t pid);

/// Runs a command under strace. Says how many calls had several buffers.
Result<std::uint64_t> record(const std::vector<std::string>& command, const Sink& sink);

}  // namespace clan::tlbsim
