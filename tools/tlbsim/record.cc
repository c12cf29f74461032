#include "record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace clan::tlbsim {
namespace {

constexpr const char* kOne = "read,write,sendto,recvfrom";
constexpr const char* kSeveral = "readv,writev,sendmsg,recvmsg,sendmmsg,recvmmsg,sendfile";

/// A number of C, at the front of `text`, which goes on behind it and what separates arguments.
template <typename T>
bool take_number(std::string_view& text, T* number) {
  while (!text.empty() && (text.front() == ' ' || text.front() == ',')) text.remove_prefix(1);
  const bool hexadecimal = text.starts_with("0x");
  if (hexadecimal) text.remove_prefix(2);
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), *number, hexadecimal ? 16 : 10);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

bool sends(const std::string& name) { return name == "write" || name == "sendto"; }
bool receives(const std::string& name) { return name == "read" || name == "recvfrom"; }

// Threads share the address space of their process. One that has ended by now counts by itself.
std::uint32_t process_of(std::uint32_t thread) {
  std::ifstream status(fmt::format("/proc/{}/status", thread));
  for (std::string line; std::getline(status, line);) {
    std::uint32_t pid = 0;
    if (std::sscanf(line.c_str(), "Tgid: %u", &pid) == 1) return pid;
  }
  return thread;
}

bool is_socket(std::uint32_t thread, std::uint64_t fd) {
  char target[64] = {};
  const std::string link = fmt::format("/proc/{}/fd/{}", thread, fd);
  return ::readlink(link.c_str(), target, sizeof target - 1) > 0 &&
         std::string_view(target).starts_with("socket:");
}

[[noreturn]] void become_strace(const std::vector<std::string>& command, int out) {
  const std::string file = fmt::format("/dev/fd/{}", out);
  const std::string raw = fmt::format("raw={},{}", kOne, kSeveral);
  const std::string trace = fmt::format("trace={},{}", kOne, kSeveral);
  std::vector<const char*> words{"strace", "-f",        "-qq", "-o",          file.c_str(),
                                 "-e",     raw.c_str(), "-e",  trace.c_str(), "--"};
  for (const std::string& word : command) words.push_back(word.c_str());
  words.push_back(nullptr);
  ::execvp("strace", const_cast<char**>(words.data()));
  std::perror("clan-tlbsim: strace");
  ::_exit(127);
}

}  // namespace

std::optional<StraceReader::Call> StraceReader::line(std::string_view text) {
  Call call;
  if (!take_number(text, &call.thread)) return std::nullopt;
  while (text.starts_with(' ')) text.remove_prefix(1);
  std::string whole(text);
  constexpr std::string_view kUnfinished = "<unfinished ...>", kResumed = "resumed>";
  if (const auto at = whole.find(kUnfinished); at != std::string::npos) {
    begun_[call.thread] = whole.substr(0, at);
    return std::nullopt;
  }
  if (const auto at = whole.find(kResumed); whole.starts_with("<...") && at != std::string::npos) {
    whole = begun_[call.thread] + whole.substr(at + kResumed.size());
    begun_.erase(call.thread);
  }
  const auto open = whole.find('('), equals = whole.rfind(" = ");
  if (open == std::string::npos || equals == std::string::npos) return std::nullopt;
  call.name = whole.substr(0, open);
  std::string_view arguments(whole), result(whole);
  arguments.remove_prefix(open + 1);
  result.remove_prefix(equals + 3);
  const bool sound = take_number(arguments, &call.fd) && take_number(arguments, &call.buffer) &&
                     take_number(result, &call.result);
  return sound ? std::optional(call) : std::nullopt;
}

std::optional<Access> access_of(const StraceReader::Call& call, std::uint32_t pid) {
  if (call.result <= 0 || call.result > static_cast<std::int64_t>(kLongestAccess))
    return std::nullopt;
  const auto bytes = static_cast<std::uint64_t>(call.result);
  if (sends(call.name)) return Access{pid, Op::kRead, call.buffer, bytes};
  if (receives(call.name)) return Access{pid, Op::kReceive, call.buffer, bytes};
  return std::nullopt;
}

Result<std::uint64_t> record(const std::vector<std::string>& command, const Sink& sink) {
  int ends[2];
  if (::pipe(ends) != 0) return errno_error("pipe");
  const pid_t child = ::fork();
  if (child < 0) return errno_error("fork");
  if (child == 0) {
    ::close(ends[0]);
    become_strace(command, ends[1]);
  }
  ::close(ends[1]);
  std::FILE* const lines = ::fdopen(ends[0], "r");
  StraceReader reader;
  std::uint64_t several = 0;
  std::map<std::uint32_t, std::uint32_t> processes;
  char text[4096];
  while (std::fgets(text, sizeof text, lines) != nullptr) {
    const auto call = reader.line(text);
    if (!call || !is_socket(call->thread, call->fd)) continue;
    auto [process, fresh] = processes.try_emplace(call->thread);
    if (fresh) process->second = process_of(call->thread);
    const auto access = access_of(*call, process->second);
    if (access) sink(*access);
    several += !access && !sends(call->name) && !receives(call->name);
  }
  std::fclose(lines);
  int status = 0;
  (void)::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) return Error{ENOENT, "strace"};
  return several;
}

}  // namespace clan::tlbsim
