#include "mpi_pages.h"

#include <clan/mpi_face.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <tuple>

#include "proc.h"

namespace clan::tool {
namespace {

using mpi::MpiPage;
using mpi::MpiPeer;

std::uint64_t value(const std::atomic<std::uint64_t>& counter) {
  return counter.load(std::memory_order_relaxed);  // relaxed: a private copy
}
std::uint32_t rank_of(std::uint64_t name) { return static_cast<std::uint32_t>(name); }
std::uint32_t job_of(std::uint64_t name) { return static_cast<std::uint32_t>(name >> 32); }

MpiPair pair_of(const MpiPage& page, const MpiPeer& peer) {
  const std::uint64_t name = value(page.name), peer_name = value(peer.name);
  return {.pid = page.pid,
          .job = job_of(name),
          .rank = rank_of(name),
          .peer_job = job_of(peer_name),
          .peer_rank = rank_of(peer_name),
          .messages = value(peer.messages),
          .bytes = value(peer.bytes),
          .gets = value(peer.gets),
          .get_bytes = value(peer.get_bytes),
          .puts = value(peer.puts),
          .put_bytes = value(peer.put_bytes),
          .atomics = value(peer.atomics),
          .queued = value(page.queued),
          .nonsense = value(page.nonsense)};
}

bool read_page(const std::string& file, pid_t pid, MpiPage* page) {
  // After a fork the child has the parent's, too.
  return copy_of(file, static_cast<void*>(page), sizeof *page) && page->magic == MpiPage::kMagic &&
         page->pid == static_cast<std::uint32_t>(pid);
}

}  // namespace

std::vector<MpiPair> read_mpi_pages(const std::vector<pid_t>& pids) {
  std::vector<MpiPair> pairs;
  const auto page = std::make_unique<MpiPage>();
  for (const pid_t pid : pids.empty() ? all_processes() : pids) {
    const auto read = [&](const std::string& file) { return read_page(file, pid, page.get()); };
    if (!find_memfd(pid, mpi::kMpiMemfdName, read)) continue;
    const std::uint32_t peers =
        std::min(page->peers.load(std::memory_order_relaxed), MpiPage::kPeers);
    for (std::uint32_t i = 0; i < peers; ++i) pairs.push_back(pair_of(*page, page->peer[i]));
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const MpiPair& a, const MpiPair& b) {
    return std::tie(a.job, a.rank) < std::tie(b.job, b.rank);
  });
  return pairs;
}

}  // namespace clan::tool
