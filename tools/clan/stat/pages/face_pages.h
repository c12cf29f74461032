// What `clan stat` shows of the pages of faces (clan/face/*_face.h has the counters' meaning), and
// of paths to other hosts: each context with a network keeps a page, too (clan/face/path_page.h).
#pragma once

#include <clan/face/gateway_face.h>
#include <clan/face/mpi_face.h>
#include <clan/face/path_page.h>
#include <clan/face/rpc_face.h>
#include <clan/face/unet_face.h>
#include <clan/face/via_face.h>
#include <clan/face/vmmc_face.h>
#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "../address.h"
#include "own_page.h"

namespace clan::tool {

template <typename Page, typename Row>
struct PageRow {
  std::shared_ptr<const Page> page;
  const Row* row;
  const Row& operator*() const { return *row; }
};
using MpiPair = PageRow<mpi::MpiPage, mpi::MpiPeer>;  ///< what one rank has sent to another
using ViaConnection = PageRow<via::ViaPage, via::ViaRow>;
using UnetEndpoint = PageRow<unet::UnetPage, unet::UnetRow>;

inline std::uint32_t rank_of(std::uint64_t name) { return static_cast<std::uint32_t>(name); }
inline std::uint32_t job_of(std::uint64_t name) { return static_cast<std::uint32_t>(name >> 32); }
inline std::span<const gateway::GatewayPage::Target> targets_of(const gateway::GatewayPage& page) {
  constexpr std::uint32_t kMost = gateway::GatewayPage::kMostTargets;
  return {page.targets, std::min(value_in(page.targets_known), kMost)};
}

/// A device of `clan ip`, in whatever network namespace. `clan ip status` has each peer's counters.
struct IpDevice {
  std::uint32_t pid = 0;
  std::string name, addresses;
  std::uint64_t peers = 0, peers_up = 0;
  std::uint64_t sent = 0, sent_bytes = 0, received = 0, received_bytes = 0;  // packets
  std::uint64_t waits = 0;                               // times that a peer's ring was full
  std::uint64_t dropped_sent = 0, dropped_received = 0;  // packets of this host, and of peers
  std::uint64_t strangers = 0;
};

/// What one process knows of the path to another host's.
struct HostPath {
  pid_t pid = 0;
  std::uint16_t port = 0;  // of the process
  Address peer;
  const char* mode = "";     // off, integrity, encrypt
  const char* packets = "";  // sockets, xdp-stack, xdp-driver
  PathValues values;
};
struct HostPaths {
  std::vector<HostPath> paths;
  std::uint64_t not_shown = 0;  // peers for which their processes have no room in the page
};

// Each reads the pages of these processes, or of all.
std::vector<MpiPair> read_mpi_pages(const std::vector<pid_t>& pids);  ///< sorted by job and rank
std::vector<ViaConnection> read_via_pages(const std::vector<pid_t>& pids);
std::vector<UnetEndpoint> read_unet_pages(const std::vector<pid_t>& pids);
Pages<IpDevice> read_ip_pages(const std::vector<pid_t>& pids);
HostPaths read_path_pages(const std::vector<pid_t>& pids);

}  // namespace clan::tool
