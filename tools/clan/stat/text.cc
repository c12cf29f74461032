// Tables and lines of `clan stat`.
#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "proc.h"
#include "write.h"

namespace clan::tool {
namespace {

using Row = std::vector<std::string>;

/// 1234567 as "1.2M".
std::string short_number(double value) {
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t unit = 0;
  for (; value >= 9999.5 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{:.0f}", value) : fmt::format("{:.1f}{}", value, kUnits[unit]);
}

std::string both(double first, double second) {
  return short_number(first) + "/" + short_number(second);
}

std::string processes_text(const EndView& end) {
  constexpr std::size_t kShown = 4;
  std::string text;
  std::size_t n = 0;
  for (const pid_t pid : end.processes) {
    if (n++ == kShown) {
      text += fmt::format(",+{}", end.processes.size() - kShown);
      break;
    }
    text += fmt::format("{}{}/{}", text.empty() ? "" : ",", pid, printable(command_name(pid)));
  }
  return text.empty() ? "?" : text;
}

/// Names the networks of both ends, once if they are in the same one.
std::string networks_text(const EndView& a, const EndView& b) {
  const auto text = [](std::uint64_t n) {
    return n != 0 ? fmt::format("{}", n) : std::string("?");
  };
  return a.network == b.network ? text(a.network) : text(a.network) + "/" + text(b.network);
}

Row text_row(const Connection& connection, const std::optional<Rate>& rate, bool watch) {
  const EndView& a = connection.ends[0];
  const EndView& b = connection.ends[1];
  const auto counted = [&](std::uint64_t EndView::*counter) {
    const bool known =
        connection.in_pipe &&
        !(connection.corba && (counter == &EndView::sleeps || counter == &EndView::wakeups));
    return known ? both(static_cast<double>(a.*counter), static_cast<double>(b.*counter)) : "-";
  };
  Row row{connection.corba ? "client" : with_port(a.address),
          connection.corba ? "server" : with_port(b.address),
          !connection.why.empty() ? fmt::format("{} ({})", connection.path, connection.why)
                                  : connection.path,
          counted(&EndView::bytes)};
  if (watch) row.push_back(rate ? both(rate->bytes[0], rate->bytes[1]) : "-");
  row.push_back(counted(&EndView::messages));
  if (watch) row.push_back(rate ? both(rate->messages[0], rate->messages[1]) : "-");
  row.push_back(counted(&EndView::sleeps));
  row.push_back(counted(&EndView::wakeups));
  row.push_back(networks_text(a, b));
  row.push_back(processes_text(a));
  row.push_back(processes_text(b));
  return row;
}

void print_table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i + 1 < row.size(); ++i)
      line += fmt::format("{:<{}}  ", row[i], widths[i]);
    fmt::print("{}{}\n", line, row.back());
  }
}

Row heading(bool watch) {
  if (!watch) {
    return {"LOCAL",  "PEER",     "PATH",    "SENT",    "MESSAGES",
            "SLEEPS", "WAKE-UPS", "NETWORK", "PROCESS", "PEER'S PROCESS"};
  }
  return {"LOCAL",      "PEER",   "PATH",     "SENT",    "SENT/S",  "MESSAGES",
          "MESSAGES/S", "SLEEPS", "WAKE-UPS", "NETWORK", "PROCESS", "PEER'S PROCESS"};
}

/// Columns, the first row their names.
std::vector<Row> table(const Report& report, bool watch) {
  std::vector<Row> rows{heading(watch)};
  for (std::size_t i = 0; i < report.connections.size(); ++i) {
    rows.push_back(text_row(report.connections[i], report.rates[i], watch));
  }
  return rows;
}

std::string line_of(const RpcCounters& calls) {
  const std::string name = command_name(static_cast<pid_t>(calls.pid));
  std::string line = fmt::format("{}/{}: ", calls.pid, name.empty() ? "?" : name);
  if (calls.handles > 0) {
    line += fmt::format("{} calls made over CLAN, {} by sockets ({} handles)", calls.calls_clan,
                        calls.calls_stock, calls.handles);
  }
  if (calls.clients > 0 || calls.handles == 0) {
    line += fmt::format("{}{} calls of {} clients served over CLAN", calls.handles > 0 ? "; " : "",
                        calls.served, calls.clients);
  }
  if (calls.lost > 0) line += fmt::format("; {} servers lost", calls.lost);
  if (calls.hostile > 0) line += fmt::format("; {} messages made no sense", calls.hostile);
  return line;
}

std::string line_of(const MpiPair& pair) {
  std::string line =
      fmt::format("job {:x}, rank {} (process {}) to ", pair.job, pair.rank, pair.pid);
  if (pair.peer_job != pair.job) line += fmt::format("job {:x}, ", pair.peer_job);
  line += fmt::format("rank {}: {} records, {} bytes", pair.peer_rank, pair.messages, pair.bytes);
  if (pair.gets > 0) line += fmt::format("; {} gets, {} bytes", pair.gets, pair.get_bytes);
  if (pair.puts > 0) line += fmt::format("; {} puts, {} bytes", pair.puts, pair.put_bytes);
  if (pair.atomics > 0) line += fmt::format("; {} atomics", pair.atomics);
  return line;
}

std::string line_of(const ViaConnection& vi) {
  const std::string name = command_name(static_cast<pid_t>(vi.pid));
  std::string line = fmt::format("{}/{}, connection {} to ", vi.pid,
                                 name.empty() ? "?" : printable(name), vi.number);
  line += vi.peer_pid == 0 ? "another host" : fmt::format("process {}", vi.peer_pid);
  line += fmt::format(": {} sent, {} bytes; {} received, {} bytes", vi.sent, vi.sent_bytes,
                      vi.received, vi.received_bytes);
  if (vi.moved > 0) line += fmt::format("; {} sent by RDMA", vi.moved);
  if (vi.rdma > 0) line += fmt::format("; {} RDMA requests, {} bytes", vi.rdma, vi.rdma_bytes);
  if (vi.dropped > 0) line += fmt::format("; {} without a buffer", vi.dropped);
  return line;
}

/// "; N WHAT" of each that is not 0.
std::string counts(std::initializer_list<std::pair<std::uint64_t, const char*>> all) {
  std::string text;
  for (const auto& [n, what] : all) {
    if (n > 0) text += fmt::format("; {} {}", n, what);
  }
  return text;
}

std::string line_of(const VmmcCounters& vmmc) {
  const std::string name = command_name(static_cast<pid_t>(vmmc.pid));
  std::string line = fmt::format("{}/{}: {} buffers, {} remotes, {} bindings; {} sends, {} bytes",
                                 vmmc.pid, name.empty() ? "?" : printable(name), vmmc.buffers,
                                 vmmc.remotes, vmmc.bindings, vmmc.sends, vmmc.sent_bytes);
  line += counts({{vmmc.notified, "notifications sent"},
                  {vmmc.delivered, "delivered"},
                  {vmmc.ignored, "ignored"},
                  {vmmc.lost, "lost"},
                  {vmmc.flushes, "flushes"},
                  {vmmc.mirrored_bytes, "bytes mirrored"},
                  {vmmc.hostile, "forged"}});
  return line;
}

std::string line_of(const UnetEndpoint& e) {
  const std::string name = command_name(static_cast<pid_t>(e.pid));
  std::string line = fmt::format(
      "{}/{}, endpoint {}{}, {} channels: {} sent, {} bytes; {} received, {} bytes", e.pid,
      name.empty() ? "?" : printable(name), e.number, e.emulated != 0 ? " (emulated)" : "",
      e.channels, e.sent, e.sent_bytes, e.received, e.received_bytes);
  line += counts({{e.dropped_buffer, "without a buffer"},
                  {e.dropped_queue, "without a place"},
                  {e.dropped_tag, "without a tag"},
                  {e.returned, "buffers unfilled"},
                  {e.deferrals, "waits for a page"}});
  return line;
}

std::string line_of(const GatewayCounters& gateway) {
  std::string line = fmt::format(
      "{}{}: {} connections, {} accepted, {} ended, {} reset; {} bytes in, {} out", gateway.pid,
      gateway.draining ? " (drains)" : "", gateway.connections, gateway.accepted, gateway.ended,
      gateway.reset, gateway.bytes_in, gateway.bytes_out);
  line += counts({{gateway.refused_source, "refused by their address"},
                  {gateway.refused_header, "without a right PROXY header"},
                  {gateway.refused_target, "without a target"},
                  {gateway.failed_connects, "failed connects to targets"},
                  {gateway.accept_errors, "times without descriptors or memory"},
                  {gateway.failed_reloads, "failed reloads"}});
  for (const GatewayTarget& target : gateway.targets) {
    line += fmt::format("\n    {}: {}, {} connections, {} served, {} failures", target.name,
                        target.works ? "works" : "has failed", target.connections, target.served,
                        target.failures);
  }
  return line;
}

std::string line_of(const IpDevice& device) {
  std::string line = fmt::format(
      "{}, device {}, {}: {} of {} peers up; {} packets sent, {} bytes; {} received, {} bytes",
      device.pid, device.name, device.addresses, device.peers_up, device.peers, device.sent,
      device.sent_bytes, device.received, device.received_bytes);
  line += counts({{device.dropped_sent, "of this host dropped"},
                  {device.dropped_received, "of peers dropped"},
                  {device.waits, "waits for a full ring"},
                  {device.strangers, "strangers"}});
  return line;
}

std::string line_of(const HostPath& path) {
  const PathValues& v = path.values;
  const auto us = [](std::uint64_t ns) { return static_cast<double>(ns) / 1e3; };
  const std::string name = command_name(path.pid);
  return fmt::format(
      "{}/{}, port {}, to {} (process {}): {}, packets by {} of up to {} bytes; round trip {:.1f} "
      "us, least {:.1f}; window {:.0f} KB; {} sent, {} received, {} lost, {} time-outs",
      path.pid, name.empty() ? "?" : printable(name), path.port, with_port(path.peer), v.pid,
      path.mode, path.packets, v.packet_bytes, us(v.round_trip_ns), us(v.least_round_trip_ns),
      static_cast<double>(v.window_bytes) / 1024, v.packets_sent, v.packets_received,
      v.packets_lost, v.timeouts);
}

}  // namespace

void print_text(const Report& report, bool watch) {
  print_table(table(report, watch));
  if (!report.hosts.paths.empty()) fmt::print("\nOTHER HOSTS\n");
  for (const HostPath& path : report.hosts.paths) fmt::print("{}\n", line_of(path));
  if (report.hosts.not_shown > 0)
    fmt::print("and {} peers that are not shown\n", report.hosts.not_shown);
  if (!report.remote_calls.empty()) fmt::print("\nREMOTE CALLS\n");
  for (const RpcCounters& calls : report.remote_calls) fmt::print("{}\n", line_of(calls));
  if (!report.mpi_pairs.empty()) fmt::print("\nMPI\n");
  for (const MpiPair& pair : report.mpi_pairs) fmt::print("{}\n", line_of(pair));
  if (!report.vis.empty()) fmt::print("\nVIRTUAL INTERFACES\n");
  for (const ViaConnection& vi : report.vis) fmt::print("{}\n", line_of(vi));
  if (!report.vmmc.empty()) fmt::print("\nVMMC\n");
  for (const VmmcCounters& vmmc : report.vmmc) fmt::print("{}\n", line_of(vmmc));
  if (!report.endpoints.empty()) fmt::print("\nU-NET ENDPOINTS\n");
  for (const UnetEndpoint& e : report.endpoints) fmt::print("{}\n", line_of(e));
  if (!report.gateways.empty()) fmt::print("\nGATEWAYS\n");
  for (const GatewayCounters& one : report.gateways) fmt::print("{}\n", line_of(one));
  if (!report.devices.empty()) fmt::print("\nIP DEVICES\n");
  for (const IpDevice& device : report.devices) fmt::print("{}\n", line_of(device));
}

}  // namespace clan::tool
