#include "reasons.h"

#include <clan/face/reason_text.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace clan::tool {
namespace {

using reasons::Reason;
using reasons::Why;

// Empty: the file is not what it is called.
std::vector<std::uint64_t> read_words(const std::string& link,
                                      const std::pair<dev_t, ino_t>& expected) {
  std::vector<std::uint64_t> words;
  // The descriptor may have become another file since: O_NONBLOCK for a FIFO, fstat() for all else.
  const int fd = open(link.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return words;
  struct stat about {};
  const bool same = fstat(fd, &about) == 0 && std::pair(about.st_dev, about.st_ino) == expected &&
                    about.st_size == static_cast<off_t>(reasons::kBytes);
  if (same) {
    words.resize(reasons::kWords);
    const std::size_t bytes = words.size() * sizeof words[0];
    const ssize_t got = pread(fd, words.data(), bytes, static_cast<off_t>(reasons::kSlotBytes));
    if (got != static_cast<ssize_t>(bytes)) words.clear();
  }
  close(fd);
  return words;
}

// Finds the most telling word of its bucket.
std::optional<Reason> find(const std::vector<std::uint64_t>& words, std::uint32_t of,
                           bool process) {
  std::optional<Reason> found;
  for (std::size_t i = 0; i < reasons::kWays; ++i) {
    const Reason reason = reasons::reason_of(words[reasons::bucket_of(of) + i]);
    if (reason.why == Why::kNone || reason.of != of || reason.of_process != process) continue;
    if (!found || reason.why > found->why) found = reason;
  }
  return found;
}

}  // namespace

ReasonPages::ReasonPages(const Scan& scan) {
  for (const auto& [id, file] : scan.reasons) {
    std::vector<std::uint64_t> words = read_words(file.link, id);
    if (!words.empty()) pages_.push_back({file.holders, std::move(words)});
  }
}

std::optional<Said> ReasonPages::of_socket(ino_t inode, const std::set<pid_t>& holders) const {
  std::optional<Said> said;
  for (const Page& page : pages_) {
    const auto both = std::find_if(holders.begin(), holders.end(),
                                   [&](pid_t pid) { return page.holders.count(pid) > 0; });
    if (both == holders.end()) continue;
    const auto reason = find(page.words, static_cast<std::uint32_t>(inode), false);
    if (reason && (!said || reason->why > said->reason.why)) said = {*both, *reason};
  }
  return said;
}

std::optional<Reason> ReasonPages::of_process(pid_t pid, Processes& processes) const {
  for (const Page& page : pages_) {
    if (page.holders.count(pid) == 0) continue;
    const auto own = static_cast<std::uint32_t>(processes.of(pid).own_pid);
    if (const auto reason = find(page.words, own, true)) return reason;
  }
  return std::nullopt;
}

std::optional<Said> ReasonPages::of_processes(const std::vector<pid_t>& pids,
                                              Processes& processes) const {
  std::optional<Said> said;
  for (const pid_t pid : pids) {
    const auto reason = of_process(pid, processes);
    if (!reason) return std::nullopt;
    said = {pid, *reason};
  }
  return said;
}

bool ReasonPages::has(pid_t pid) const {
  return std::any_of(pages_.begin(), pages_.end(),
                     [pid](const Page& page) { return page.holders.count(pid) > 0; });
}

std::string text_of(const Said& said) {
  char text[160];
  reasons::describe(said.reason, text, sizeof text);
  return fmt::format("process {}: {}", said.pid, text);
}

}  // namespace clan::tool
