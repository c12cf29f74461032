// The part of `clan stat` that tells how the remote calls of processes with libclanrpc travel: each keeps its
// counters in a memfd (clan/rpc_face.h), found under /proc/PID/fd.
#include <clan/rpc_face.h>
#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "commands.h"

namespace clan::tool {
namespace {

constexpr const char* kTarget = "/memfd:clan-rpc (deleted)";

struct Page {
  std::uint64_t magic = 0;
  std::uint32_t pid = 0;
  std::uint64_t handles, met, calls_clan, calls_stock, lost, clients, served, replies_stock, hostile, sleeps;
};

/// A copy of the page, which its process goes on writing. False: it is none.
bool read_page(const std::string& file, Page* page) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  alignas(RpcPage) char bytes[sizeof(RpcPage)];
  const bool whole = pread(fd, bytes, sizeof bytes, 0) == static_cast<ssize_t>(sizeof bytes);
  close(fd);
  if (!whole) return false;
  const auto& there = *reinterpret_cast<const RpcPage*>(bytes);
  const auto value = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);  // relaxed: a private copy
  };
  page->magic = there.magic;
  page->pid = there.pid;
  page->handles = value(there.handles), page->met = value(there.met);
  page->calls_clan = value(there.calls_clan), page->calls_stock = value(there.calls_stock);
  page->lost = value(there.lost), page->clients = value(there.clients), page->served = value(there.served_clan);
  page->replies_stock = value(there.replies_stock), page->hostile = value(there.hostile);
  page->sleeps = value(there.sleeps);
  return page->magic == RpcPage::kMagic;
}

/// "?" when it has gone. A process chooses its name itself: what a terminal cannot show becomes '?'.
std::string command_name(std::uint32_t pid) {
  char name[32] = {};
  const int fd = open(fmt::format("/proc/{}/comm", pid).c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t n = fd >= 0 ? read(fd, name, sizeof name - 1) : 0;
  if (fd >= 0) close(fd);
  if (n <= 1) return "?";
  name[n - 1] = 0;  // a newline
  for (char* c = name; *c != 0; ++c) *c = std::isprint(static_cast<unsigned char>(*c)) != 0 ? *c : '?';
  return name;
}

bool find_page(pid_t pid, Page* page) {
  const std::string directory = fmt::format("/proc/{}/fd", pid);
  DIR* entries = opendir(directory.c_str());
  if (entries == nullptr) return false;
  bool found = false;
  while (const dirent* entry = readdir(entries)) {
    const std::string link = directory + "/" + entry->d_name;
    char target[64] = {};
    if (readlink(link.c_str(), target, sizeof target - 1) < 0 || std::strcmp(target, kTarget) != 0) continue;
    // After a fork the child has the parent's, too.
    found = read_page(link, page) && page->pid == static_cast<std::uint32_t>(pid);
    if (found) break;
  }
  closedir(entries);
  return found;
}

std::vector<Page> all_pages(const std::vector<pid_t>& pids) {
  std::vector<Page> pages;
  const auto look_at = [&](pid_t pid) {
    Page page;
    if (find_page(pid, &page)) pages.push_back(page);
  };
  for (const pid_t pid : pids) look_at(pid);
  if (!pids.empty()) return pages;
  DIR* entries = opendir("/proc");
  while (const dirent* entry = entries != nullptr ? readdir(entries) : nullptr) {
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) != 0) look_at(std::atoi(entry->d_name));
  }
  if (entries != nullptr) closedir(entries);
  return pages;
}

}  // namespace

std::vector<std::string> remote_call_lines(const std::vector<pid_t>& pids) {
  std::vector<std::string> lines;
  for (const Page& page : all_pages(pids)) {
    std::string line = fmt::format("{}/{}: ", page.pid, command_name(page.pid));
    if (page.handles > 0) {
      line += fmt::format("{} calls made over CLAN, {} by sockets ({} handles)", page.calls_clan, page.calls_stock,
                          page.handles);
    }
    if (page.clients > 0 || page.handles == 0) {
      line += fmt::format("{}{} calls of {} clients served over CLAN", page.handles > 0 ? "; " : "", page.served,
                          page.clients);
    }
    if (page.lost > 0) line += fmt::format("; {} servers lost", page.lost);
    if (page.hostile > 0) line += fmt::format("; {} messages made no sense", page.hostile);
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> remote_call_objects(const std::vector<pid_t>& pids) {
  std::vector<std::string> objects;
  for (const Page& page : all_pages(pids)) {
    objects.push_back(fmt::format(
        R"({{"path": "rpc", "pid": {}, "handles": {}, "servers": {}, "calls_clan": {}, "calls_stock": {}, )"
        R"("lost": {}, "clients": {}, "served_clan": {}, "replies_stock": {}, "hostile": {}, "sleeps": {}}})",
        page.pid, page.handles, page.met, page.calls_clan, page.calls_stock, page.lost, page.clients, page.served,
        page.replies_stock, page.hostile, page.sleeps));
  }
  return objects;
}

}  // namespace clan::tool
