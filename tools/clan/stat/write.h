// How `clan stat` writes what it has found.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "connection.h"
#include "look.h"
#include "pages/face_pages.h"

namespace clan::tool {

/// What one look has found, as text and JSON show it. `rates`: one for each connection, or none.
struct Report {
  std::vector<Connection> connections;
  std::vector<std::optional<Rate>> rates;
  Pages<RpcPage> remote_calls;
  std::vector<MpiPair> mpi_pairs;
  std::vector<ViaConnection> vis;
  Pages<vmmc::VmmcPage> vmmc;
  std::vector<UnetEndpoint> endpoints;
  Pages<gateway::GatewayPage> gateways;
  Pages<IpDevice> devices;
  HostPaths hosts;
};

/// Prints a table, and lines for paths to other hosts, remote calls and the other faces. `watch`:
/// with rates.
void print_text(const Report& report, bool watch);
/// An array with an object for each, a line each, or all in one line.
void print_json(const Report& report, bool one_line);
/// Prometheus' text format: for a file of node_exporter's textfile collector.
void print_prometheus(const Look& seen, const HostPaths& hosts,
                      const Pages<gateway::GatewayPage>& gateways, const Pages<IpDevice>& devices);

}  // namespace clan::tool
