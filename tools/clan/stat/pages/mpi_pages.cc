#include "mpi_pages.h"

#include <clan/face/mpi_face.h>

#include <algorithm>
#include <tuple>

#include "own_page.h"

namespace clan::tool {
namespace {

using mpi::MpiPage;
using mpi::MpiPeer;

std::uint32_t rank_of(std::uint64_t name) { return static_cast<std::uint32_t>(name); }
std::uint32_t job_of(std::uint64_t name) { return static_cast<std::uint32_t>(name >> 32); }

MpiPair pair_of(const MpiPage& page, const MpiPeer& peer) {
  const std::uint64_t name = value_in(page.name), peer_name = value_in(peer.name);
  return {.pid = page.pid,
          .job = job_of(name),
          .rank = rank_of(name),
          .peer_job = job_of(peer_name),
          .peer_rank = rank_of(peer_name),
          .messages = value_in(peer.messages),
          .bytes = value_in(peer.bytes),
          .gets = value_in(peer.gets),
          .get_bytes = value_in(peer.get_bytes),
          .puts = value_in(peer.puts),
          .put_bytes = value_in(peer.put_bytes),
          .atomics = value_in(peer.atomics),
          .queued = value_in(page.queued),
          .nonsense = value_in(page.nonsense)};
}

}  // namespace

std::vector<MpiPair> read_mpi_pages(const std::vector<pid_t>& pids) {
  std::vector<MpiPair> pairs;
  for_own_pages<MpiPage>(pids, mpi::kMpiMemfdName, [&](const MpiPage& page) {
    const std::uint32_t peers = std::min(value_in(page.peers), MpiPage::kPeers);
    for (std::uint32_t i = 0; i < peers; ++i) pairs.push_back(pair_of(page, page.peer[i]));
  });
  std::stable_sort(pairs.begin(), pairs.end(), [](const MpiPair& a, const MpiPair& b) {
    return std::tie(a.job, a.rank) < std::tie(b.job, b.rank);
  });
  return pairs;
}

}  // namespace clan::tool
