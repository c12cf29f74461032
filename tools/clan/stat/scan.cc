#include "scan.h"

#include <clan/face/reasons.h>
#include <clan/face/socket_face.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "proc.h"

namespace clan::tool {
namespace {

bool is_kernel_thread(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  // Behind the name, which may contain anything: state, ppid, pgrp, session, tty, tpgid, flags.
  const std::size_t name_end = line.rfind(')');
  unsigned long flags = 0;
  if (name_end == std::string::npos ||
      std::sscanf(line.c_str() + name_end + 1, " %*c %*d %*d %*d %*d %*d %lu", &flags) != 1) {
    return false;
  }
  constexpr unsigned long kKernelThread = 0x00200000;  // PF_KTHREAD
  return (flags & kKernelThread) != 0;
}

void note_file(pid_t pid, const std::string& link,
               std::map<std::pair<dev_t, ino_t>, Scan::PipeFile>& files) {
  struct stat about {};
  if (stat(link.c_str(), &about) != 0 || !S_ISREG(about.st_mode)) return;
  auto& file = files[{about.st_dev, about.st_ino}];
  file.link = link;
  file.holders.insert(pid);
}

void scan_descriptors(pid_t pid, Scan& scan) {
  static const std::string kPipeLink = fmt::format("/memfd:{} (deleted)", socket_face::kMemfdName);
  static const std::string kReasonsOfAny = fmt::format("/memfd:{}", reasons::kMemfdPrefix);
  const std::string path = fmt::format("/proc/{}/fd", pid);
  const Directory directory(opendir(path.c_str()));
  if (!directory) {
    if ((errno == EACCES || errno == EPERM) && !is_kernel_thread(pid)) ++scan.refused;
    return;
  }
  errno = 0;
  while (const dirent* entry = readdir(directory.get())) {
    if (entry->d_name[0] == '.') continue;
    const std::string link = path + "/" + entry->d_name;
    const std::string target = read_link(link);
    ino_t inode = 0;
    if (std::sscanf(target.c_str(), "socket:[%lu]", &inode) == 1) {
      scan.sockets[inode].insert(pid);
      if (std::strlen(entry->d_name) == 1 && entry->d_name[0] <= '2')
        scan.standard[inode].insert(pid);
    } else if (target == "anon_inode:[io_uring]") {
      scan.rings.insert(pid);
    } else if (target == kPipeLink) {
      note_file(pid, link, scan.pipes);
    } else if (target == reasons::kMemfdLink) {
      note_file(pid, link, scan.reasons);
    } else if (target.rfind(kReasonsOfAny, 0) == 0) {
      scan.other_reasons.insert(pid);
    }
#ifdef CLAN_OMNIORB
    static const std::string kTable = orb_table_link();
    if (target == kTable) {
      struct stat about {};
      if (stat(link.c_str(), &about) == 0)
        scan.orb_tables[{about.st_dev, about.st_ino}].try_emplace(pid, link);
    }
#endif
  }
  if (errno == EACCES || errno == EPERM) ++scan.refused;
}

}  // namespace

Scan scan_processes() {
  Scan scan;
  for (const pid_t pid : all_processes()) {
    scan.seen.insert(pid);
    scan_descriptors(pid, scan);
  }
  return scan;
}

}  // namespace clan::tool
