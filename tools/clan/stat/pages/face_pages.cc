#include "face_pages.h"

#include <clan/face/ip_face.h>

#include <limits>
#include <tuple>

namespace clan::tool {
namespace {

/// The rows of all pages that are open.
template <typename Row, typename Page>
std::vector<PageRow<Page, Row>> open_rows(const Pages<Page>& pages) {
  std::vector<PageRow<Page, Row>> found;
  for (const auto& page : pages) {
    const std::uint32_t rows = std::min<std::uint32_t>(value_in(page->rows), Page::kRows);
    for (const Row& row : std::span(page->row, rows)) {
      if (value_in(row.open) != 0) found.push_back({page, &row});
    }
  }
  return found;
}

}  // namespace

std::vector<ViaConnection> read_via_pages(const std::vector<pid_t>& pids) {
  return open_rows<via::ViaRow>(own_pages<via::ViaPage>(pids, via::kViaMemfdName));
}

std::vector<UnetEndpoint> read_unet_pages(const std::vector<pid_t>& pids) {
  return open_rows<unet::UnetRow>(own_pages<unet::UnetPage>(pids, unet::kUnetMemfdName));
}

std::vector<MpiPair> read_mpi_pages(const std::vector<pid_t>& pids) {
  std::vector<MpiPair> pairs;
  for (const auto& page : own_pages<mpi::MpiPage>(pids, mpi::kMpiMemfdName)) {
    const std::uint32_t peers = std::min<std::uint32_t>(value_in(page->peers), page->kPeers);
    for (const mpi::MpiPeer& peer : std::span(page->peer, peers)) pairs.push_back({page, &peer});
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const MpiPair& a, const MpiPair& b) {
    return value_in(a.page->name) < value_in(b.page->name);  // job, rank
  });
  return pairs;
}

Pages<IpDevice> read_ip_pages(const std::vector<pid_t>& pids) {
  Pages<IpDevice> found;
  for (const auto& page : own_pages<ip::IpPage>(pids, ip::kIpMemfdName)) {
    IpDevice device{.pid = page->pid,
                    .name = text_in(page->device),
                    .addresses = text_in(page->addresses),
                    .peers = std::min<std::uint32_t>(value_in(page->rows), ip::IpPage::kRows),
                    .dropped_sent = value_in(page->nobody) + value_in(page->groups),
                    .strangers = value_in(page->strangers)};
    for (const ip::IpRow& row : std::span(page->row, device.peers)) {
      device.peers_up += value_in(row.up) != 0 ? 1 : 0;
      device.sent += value_in(row.sent);
      device.sent_bytes += value_in(row.sent_bytes);
      device.received += value_in(row.received);
      device.received_bytes += value_in(row.received_bytes);
      device.waits += value_in(row.waits);
      device.dropped_sent += value_in(row.unreachable) + value_in(row.too_big);
      device.dropped_received +=
          value_in(row.bad_source) + value_in(row.malformed) + value_in(row.refused);
    }
    found.push_back(std::make_shared<const IpDevice>(std::move(device)));
  }
  return found;
}

HostPaths read_path_pages(const std::vector<pid_t>& pids) {
  constexpr const char* kModes[] = {"off", "integrity", "encrypt"};
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();  // one of each context
  HostPaths all;
  for (const auto& page : own_pages<PathPage>(pids, kPathMemfdName, kMost)) {
    all.not_shown += value_in(page->not_shown);
    for (const PathRow& row : page->rows) {
      HostPath path;
      if (!read_row(row, &path.values) || path.values.port == 0) continue;
      path.pid = static_cast<pid_t>(page->pid);
      path.port = static_cast<std::uint16_t>(value_in(page->port));
      path.peer = make_address(path.values.ip, false, static_cast<std::uint16_t>(path.values.port));
      path.mode = kModes[std::min<std::uint64_t>(page->mode, 2)];
      path.packets = name_of(static_cast<PacketPath>(path.values.packets));
      all.paths.push_back(path);
    }
  }
  std::stable_sort(all.paths.begin(), all.paths.end(), [](const HostPath& a, const HostPath& b) {
    return std::tie(a.pid, a.port, a.peer) < std::tie(b.pid, b.port, b.peer);
  });
  return all;
}

}  // namespace clan::tool
