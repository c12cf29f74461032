// Tables and lines of `clan stat`.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "proc.h"
#include "write.h"

/// A counter of a page.
template <typename T>
struct fmt::formatter<std::atomic<T>> : fmt::formatter<T> {
  auto format(const std::atomic<T>& counter, fmt::format_context& context) const {
    return fmt::formatter<T>::format(clan::tool::value_in(counter), context);
  }
};

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

/// "PID/NAME"
std::string process_text(std::uint32_t pid) {
  const std::string name = command_name(static_cast<pid_t>(pid));
  return fmt::format("{}/{}", pid, name.empty() ? "?" : name);
}

/// "; N WHAT" of each that is not 0.
std::string counts(std::initializer_list<std::pair<std::uint64_t, const char*>> all) {
  std::string text;
  for (const auto& [n, what] : all) {
    if (n > 0) text += fmt::format("; {} {}", n, what);
  }
  return text;
}

std::string line_of(const RpcPage& calls) {
  std::string line = process_text(calls.pid) + ": ";
  if (calls.handles > 0) {
    line += fmt::format("{} calls made over CLAN, {} by sockets ({} handles)", calls.calls_clan,
                        calls.calls_stock, calls.handles);
  }
  if (calls.clients > 0 || calls.handles == 0) {
    line += fmt::format("{}{} calls of {} clients served over CLAN", calls.handles > 0 ? "; " : "",
                        calls.served_clan, calls.clients);
  }
  return line + counts({{calls.lost, "servers lost"}, {calls.hostile, "messages made no sense"}});
}

std::string line_of(const MpiPair& pair) {
  const auto& [page, peer] = pair;
  const std::uint64_t name = value_in(page->name), peer_name = value_in(peer->name);
  std::string line =
      fmt::format("job {:x}, rank {} (process {}) to ", job_of(name), rank_of(name), page->pid);
  if (job_of(peer_name) != job_of(name)) line += fmt::format("job {:x}, ", job_of(peer_name));
  line +=
      fmt::format("rank {}: {} records, {} bytes", rank_of(peer_name), peer->messages, peer->bytes);
  if (peer->gets > 0) line += fmt::format("; {} gets, {} bytes", peer->gets, peer->get_bytes);
  if (peer->puts > 0) line += fmt::format("; {} puts, {} bytes", peer->puts, peer->put_bytes);
  return line + counts({{peer->atomics, "atomics"}});
}

std::string line_of(const ViaConnection& connection) {
  const via::ViaRow& vi = *connection.row;
  std::string line =
      fmt::format("{}, connection {} to ", process_text(connection.page->pid), vi.connection);
  line += vi.peer_pid == 0 ? "another host" : fmt::format("process {}", vi.peer_pid);
  line += fmt::format(": {} sent, {} bytes; {} received, {} bytes", vi.sent, vi.sent_bytes,
                      vi.received, vi.received_bytes);
  line += counts({{vi.moved, "sent by RDMA"}});
  if (vi.rdma > 0) line += fmt::format("; {} RDMA requests, {} bytes", vi.rdma, vi.rdma_bytes);
  return line + counts({{vi.dropped, "without a buffer"}});
}

std::string line_of(const vmmc::VmmcPage& vmmc) {
  return fmt::format("{}: {} buffers, {} remotes, {} bindings; {} sends, {} bytes",
                     process_text(vmmc.pid), vmmc.buffers, vmmc.remotes, vmmc.bindings, vmmc.sends,
                     vmmc.sent_bytes) +
         counts({{vmmc.notified, "notifications sent"},
                 {vmmc.delivered, "delivered"},
                 {vmmc.ignored, "ignored"},
                 {vmmc.lost, "lost"},
                 {vmmc.flushes, "flushes"},
                 {vmmc.mirrored_bytes, "bytes mirrored"},
                 {vmmc.hostile, "forged"}});
}

std::string line_of(const UnetEndpoint& endpoint) {
  const unet::UnetRow& e = *endpoint.row;
  return fmt::format("{}, endpoint {}{}, {} channels: {} sent, {} bytes; {} received, {} bytes",
                     process_text(endpoint.page->pid), e.number,
                     e.emulated != 0 ? " (emulated)" : "", e.channels, e.sent, e.sent_bytes,
                     e.received, e.received_bytes) +
         counts({{e.dropped_buffer, "without a buffer"},
                 {e.dropped_queue, "without a place"},
                 {e.dropped_tag, "without a tag"},
                 {e.returned, "buffers unfilled"},
                 {e.deferrals, "waits for a page"}});
}

std::string line_of(const gateway::GatewayPage& gateway) {
  std::string line = fmt::format(
      "{}{}: {} connections, {} accepted, {} ended, {} reset; {} bytes in, {} out", gateway.pid,
      gateway.draining != 0 ? " (drains)" : "", gateway.connections, gateway.accepted,
      gateway.ended, gateway.reset, gateway.bytes_in, gateway.bytes_out);
  line += counts({{gateway.refused_source, "refused by their address"},
                  {gateway.refused_header, "without a right PROXY header"},
                  {gateway.refused_target, "without a target"},
                  {gateway.failed_connects, "failed connects to targets"},
                  {gateway.accept_errors, "times without descriptors or memory"},
                  {gateway.failed_reloads, "failed reloads"}});
  for (const auto& target : targets_of(gateway)) {
    line += fmt::format("\n    {}: {}, {} connections, {} served, {} failures",
                        text_in(target.name), target.works != 0 ? "works" : "has failed",
                        target.connections, target.served, target.failures);
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
  return fmt::format(
      "{}, port {}, to {} (process {}): {}, packets by {} of up to {} bytes; round trip {:.1f} "
      "us, least {:.1f}; window {:.0f} KB; {} sent, {} received, {} lost, {} time-outs",
      process_text(static_cast<std::uint32_t>(path.pid)), path.port, with_port(path.peer), v.pid,
      path.mode, path.packets, v.packet_bytes, us(v.round_trip_ns), us(v.least_round_trip_ns),
      static_cast<double>(v.window_bytes) / 1024, v.packets_sent, v.packets_received,
      v.packets_lost, v.timeouts);
}

template <typename Page>
std::string line_of(const std::shared_ptr<const Page>& page) {
  return line_of(*page);
}

template <typename Entries>
void print_section(const char* title, const Entries& entries) {
  if (!entries.empty()) fmt::print("\n{}\n", title);
  for (const auto& entry : entries) fmt::print("{}\n", line_of(entry));
}

}  // namespace

void print_text(const Report& report, bool watch) {
  print_table(table(report, watch));
  print_section("OTHER HOSTS", report.hosts.paths);
  if (report.hosts.not_shown > 0)
    fmt::print("and {} peers that are not shown\n", report.hosts.not_shown);
  print_section("REMOTE CALLS", report.remote_calls);
  print_section("MPI", report.mpi_pairs);
  print_section("VIRTUAL INTERFACES", report.vis);
  print_section("VMMC", report.vmmc);
  print_section("U-NET ENDPOINTS", report.endpoints);
  print_section("GATEWAYS", report.gateways);
  print_section("IP DEVICES", report.devices);
}

}  // namespace clan::tool
