// The part of `clan stat` that shows ranks of MPI with btl clan: each keeps a page in a memfd (clan/mpi_face.h), found
// under /proc/PID/fd.
#include <clan/mpi_face.h>
#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"

namespace clan::tool {
namespace {

using mpi::MpiPage;
using mpi::MpiPeer;

constexpr const char* kTarget = "/memfd:clan-mpi (deleted)";

std::uint64_t value(const std::atomic<std::uint64_t>& counter) {
  return counter.load(std::memory_order_relaxed);  // relaxed: a private copy
}
std::uint32_t rank_of(std::uint64_t name) { return static_cast<std::uint32_t>(name); }
std::uint32_t job_of(std::uint64_t name) { return static_cast<std::uint32_t>(name >> 32); }

/// A copy, which nobody changes.
std::unique_ptr<MpiPage> read_page(const std::string& file, pid_t pid) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return nullptr;
  auto page = std::make_unique<MpiPage>();
  const bool whole = pread(fd, static_cast<void*>(page.get()), sizeof(MpiPage), 0) == static_cast<ssize_t>(sizeof(MpiPage));
  close(fd);
  // After a fork the child has the parent's, too.
  if (!whole || page->magic != MpiPage::kMagic || page->pid != static_cast<std::uint32_t>(pid)) return nullptr;
  return page;
}

std::unique_ptr<MpiPage> find_page(pid_t pid) {
  const std::string directory = fmt::format("/proc/{}/fd", pid);
  DIR* entries = opendir(directory.c_str());
  if (entries == nullptr) return nullptr;
  std::unique_ptr<MpiPage> page;
  while (const dirent* entry = readdir(entries)) {
    const std::string link = directory + "/" + entry->d_name;
    char target[64] = {};
    if (readlink(link.c_str(), target, sizeof target - 1) < 0 || std::strcmp(target, kTarget) != 0) continue;
    page = read_page(link, pid);
    if (page) break;
  }
  closedir(entries);
  return page;
}

std::vector<std::unique_ptr<MpiPage>> all_pages(std::vector<pid_t> pids) {
  if (pids.empty()) {
    DIR* entries = opendir("/proc");
    while (const dirent* entry = entries != nullptr ? readdir(entries) : nullptr) {
      if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) != 0) pids.push_back(std::atoi(entry->d_name));
    }
    if (entries != nullptr) closedir(entries);
  }
  std::vector<std::unique_ptr<MpiPage>> pages;
  for (const pid_t pid : pids) {
    if (auto page = find_page(pid)) pages.push_back(std::move(page));
  }
  std::sort(pages.begin(), pages.end(), [](const auto& a, const auto& b) { return value(a->name) < value(b->name); });
  return pages;
}

template <typename Describe>
std::vector<std::string> each_pair(const std::vector<pid_t>& pids, Describe describe) {
  std::vector<std::string> texts;
  for (const auto& page : all_pages(pids)) {
    const std::uint32_t peers = std::min(page->peers.load(std::memory_order_relaxed), MpiPage::kPeers);
    for (std::uint32_t i = 0; i < peers; ++i) texts.push_back(describe(*page, page->peer[i]));
  }
  return texts;
}

}  // namespace

std::vector<std::string> mpi_rank_lines(const std::vector<pid_t>& pids) {
  return each_pair(pids, [](const MpiPage& page, const MpiPeer& peer) {
    std::string line = fmt::format("job {:x}, rank {} (process {}) to ", job_of(value(page.name)),
                                   rank_of(value(page.name)), page.pid);
    if (job_of(value(peer.name)) != job_of(value(page.name))) line += fmt::format("job {:x}, ", job_of(value(peer.name)));
    line += fmt::format("rank {}: {} records, {} bytes", rank_of(value(peer.name)), value(peer.messages), value(peer.bytes));
    if (value(peer.gets) > 0) line += fmt::format("; {} gets, {} bytes", value(peer.gets), value(peer.get_bytes));
    if (value(peer.puts) > 0) line += fmt::format("; {} puts, {} bytes", value(peer.puts), value(peer.put_bytes));
    if (value(peer.atomics) > 0) line += fmt::format("; {} atomics", value(peer.atomics));
    return line;
  });
}

std::vector<std::string> mpi_rank_objects(const std::vector<pid_t>& pids) {
  return each_pair(pids, [](const MpiPage& page, const MpiPeer& peer) {
    return fmt::format(R"({{"path": "mpi", "pid": {}, "job": {}, "rank": {}, "peer_job": {}, "peer_rank": {}, )"
                       R"("records": {}, "bytes": {}, "gets": {}, "get_bytes": {}, "puts": {}, "put_bytes": {}, )"
                       R"("atomics": {}, "queued": {}, "nonsense": {}}})",
                       page.pid, job_of(value(page.name)), rank_of(value(page.name)), job_of(value(peer.name)),
                       rank_of(value(peer.name)), value(peer.messages), value(peer.bytes), value(peer.gets),
                       value(peer.get_bytes), value(peer.puts), value(peer.put_bytes), value(peer.atomics),
                       value(page.queued), value(page.nonsense));
  });
}

}  // namespace clan::tool
