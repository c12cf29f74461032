#include "rpc_pages.h"

#include <clan/rpc_face.h>

#include <atomic>

#include "proc.h"

namespace clan::tool {
namespace {

std::uint64_t value(const std::atomic<std::uint64_t>& counter) {
  return counter.load(std::memory_order_relaxed);  // relaxed: a private copy
}

bool read_page(const std::string& file, pid_t pid, RpcCounters* counters) {
  RpcPage page;
  if (!copy_of(file, static_cast<void*>(&page), sizeof page) || page.magic != RpcPage::kMagic)
    return false;
  // After a fork the child has the parent's, too.
  if (page.pid != static_cast<std::uint32_t>(pid)) return false;
  *counters = {.pid = page.pid,
               .handles = value(page.handles),
               .met = value(page.met),
               .calls_clan = value(page.calls_clan),
               .calls_stock = value(page.calls_stock),
               .lost = value(page.lost),
               .clients = value(page.clients),
               .served = value(page.served_clan),
               .replies_stock = value(page.replies_stock),
               .hostile = value(page.hostile),
               .sleeps = value(page.sleeps),
               .calls_far = value(page.calls_far),
               .served_far = value(page.served_far)};
  return true;
}

}  // namespace

std::vector<RpcCounters> read_rpc_pages(const std::vector<pid_t>& pids) {
  std::vector<RpcCounters> found;
  for (const pid_t pid : pids.empty() ? all_processes() : pids) {
    RpcCounters counters;
    const auto read = [&](const std::string& file) { return read_page(file, pid, &counters); };
    if (find_memfd(pid, kRpcMemfdName, read)) found.push_back(counters);
  }
  return found;
}

}  // namespace clan::tool
