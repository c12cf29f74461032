#include <clan/face/reason_text.h>
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proc.h"
#include "write.h"

namespace clan::tool {
namespace {

/// A reason without numbers of processes, calls and users: there are few of them.
std::string reason_label(std::string_view why) {
  constexpr std::string_view kProcess = "process ";
  const std::string_view unused = reasons::text_of(reasons::Why::kUnused);
  std::size_t number = kProcess.size();
  if (why.substr(0, number) == kProcess) {
    while (number < why.size() && std::isdigit(static_cast<unsigned char>(why[number])) != 0)
      ++number;
    if (why.substr(number, 2) == ": ") why.remove_prefix(number + 2);
  }
  if (why.substr(0, unused.size()) == unused) return std::string(unused);
  std::string label;
  for (const char c : printable(std::string(why))) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (digit && !label.empty() && label.back() == 'N') continue;
    if (c == '"' || c == '\\') label += '\\';
    label += digit ? 'N' : c;
  }
  return label;
}

/// As a label's value: backslash and quote are escaped.
std::string escaped(const std::string& text) {
  std::string label;
  for (const char c : text) {
    if (c == '"' || c == '\\') label += '\\';
    label += c;
  }
  return label;
}

std::string label_of(pid_t pid) { return escaped(command_name(pid)); }

std::string first_command(const EndView& end) {
  return end.processes.empty() ? std::string() : label_of(*end.processes.begin());
}

/// The sums of connections with the same labels: CORBA's have no addresses, and a collector rejects
/// a text that has a sample twice.
void print_counter(const Look& seen, const char* name, const char* help,
                   std::uint64_t EndView::*counter) {
  std::map<std::string, std::uint64_t> sums;
  for (const Connection& connection : seen.connections) {
    if (!connection.in_pipe) continue;
    for (int end = 0; end < 2; ++end) {
      const EndView& here = connection.ends[end];
      sums[fmt::format("local=\"{}\",peer=\"{}\",network=\"{}\",command=\"{}\"",
                       with_port(here.address), with_port(connection.ends[1 - end].address),
                       here.network, first_command(here))] += here.*counter;
    }
  }
  fmt::print("# HELP clan_{} {}\n# TYPE clan_{} counter\n", name, help, name);
  for (const auto& [labels, sum] : sums) fmt::print("clan_{}{{{}}} {}\n", name, labels, sum);
}

void print_paths(const HostPaths& hosts, const char* name, const char* type, const char* help,
                 std::uint64_t PathValues::*value, double unit = 1) {
  fmt::print("# HELP clan_host_{} {}\n# TYPE clan_host_{} {}\n", name, help, name, type);
  // Two links may join the same two processes, one made by each of them.
  std::map<std::string, double> samples;
  for (const HostPath& path : hosts.paths) {
    double& sample = samples[fmt::format(
        "pid=\"{}\",command=\"{}\",port=\"{}\",peer=\"{}\",mode=\"{}\",packets=\"{}\"", path.pid,
        label_of(path.pid), path.port, with_port(path.peer), path.mode, path.packets)];
    const double of_link = static_cast<double>(path.values.*value) * unit;
    sample = type == std::string_view("counter") ? sample + of_link : std::max(sample, of_link);
  }
  for (const auto& [labels, sample] : samples)
    fmt::print("clan_host_{}{{{}}} {}\n", name, labels, sample);
}

template <typename T, typename Value = std::uint64_t>
struct Figure {
  const char* name;
  const char* type;
  const char* help;
  Value T::*value;
};

/// Figures clan_FACE_NAME of each; `labels` gives its labels.
template <typename T, typename Value = std::uint64_t, typename All, typename Labels>
void print_figures(const char* face, const All& all,
                   std::initializer_list<Figure<T, Value>> figures, Labels&& labels) {
  for (const Figure<T, Value>& figure : figures) {
    fmt::print("# HELP clan_{0}_{1} {2}\n# TYPE clan_{0}_{1} {3}\n", face, figure.name, figure.help,
               figure.type);
    for (const auto& one : all)
      fmt::print("clan_{}_{}{{{}}} {}\n", face, figure.name, labels(one),
                 std::uint64_t{(*one).*figure.value});
  }
}

void print_gateways(const Pages<gateway::GatewayPage>& gateways) {
  using Gateway = gateway::GatewayPage;
  using Target = Gateway::Target;
  print_figures<Gateway, Gateway::Count>(
      "gateway", gateways,
      {
          {"connections", "gauge", "Connections now.", &Gateway::connections},
          {"accepted_total", "counter", "Connections that have come.", &Gateway::accepted},
          {"ended_total", "counter", "Ended in good order.", &Gateway::ended},
          {"reset_total", "counter", "Reset by an end, a time-out or a limit.", &Gateway::reset},
          {"in_bytes_total", "counter", "Bytes to targets.", &Gateway::bytes_in},
          {"out_bytes_total", "counter", "Bytes from targets.", &Gateway::bytes_out},
          {"refused_source_total", "counter", "Refused by their address.",
           &Gateway::refused_source},
          {"refused_header_total", "counter", "Refused by their PROXY header.",
           &Gateway::refused_header},
          {"refused_target_total", "counter", "Without a target.", &Gateway::refused_target},
          {"failed_connects_total", "counter", "Failed connects to targets.",
           &Gateway::failed_connects},
          {"accept_errors_total", "counter", "Times without descriptors or memory.",
           &Gateway::accept_errors},
      },
      [](const auto& one) { return fmt::format("pid=\"{}\"", one->pid); });
  std::vector<PageRow<Gateway, Target>> targets;
  for (const auto& page : gateways) {
    for (const Target& target : targets_of(*page)) targets.push_back({page, &target});
  }
  const auto labels = [](const auto& one) {
    return fmt::format("pid=\"{}\",target=\"{}\"", one.page->pid, escaped(text_in(one.row->name)));
  };
  print_figures<Target, std::atomic<std::uint32_t>>(
      "gateway_target", targets, {{"works", "gauge", "0: it has failed.", &Target::works}}, labels);
  print_figures<Target, Gateway::Count>(
      "gateway_target", targets,
      {{"connections", "gauge", "Connections now.", &Target::connections},
       {"served_total", "counter", "Connections that it has had.", &Target::served},
       {"failures_total", "counter", "Failed connects.", &Target::failures}},
      labels);
}

void print_devices(const Pages<IpDevice>& devices) {
  print_figures<IpDevice>(
      "ip", devices,
      {
          {"peers", "gauge", "Peers that are known.", &IpDevice::peers},
          {"peers_up", "gauge", "Peers that are up.", &IpDevice::peers_up},
          {"sent_packets_total", "counter", "Packets to peers.", &IpDevice::sent},
          {"sent_bytes_total", "counter", "Their bytes.", &IpDevice::sent_bytes},
          {"received_packets_total", "counter", "Packets from peers.", &IpDevice::received},
          {"received_bytes_total", "counter", "Their bytes.", &IpDevice::received_bytes},
          {"dropped_sent_total", "counter", "Packets of this host that were dropped.",
           &IpDevice::dropped_sent},
          {"dropped_received_total", "counter", "Packets from peers that were dropped.",
           &IpDevice::dropped_received},
          {"waits_total", "counter", "Times that a peer's ring was full.", &IpDevice::waits},
      },
      [](const auto& one) {
        return fmt::format("pid=\"{}\",device=\"{}\"", one->pid, escaped(one->name));
      });
}

}  // namespace

void print_prometheus(const Look& seen, const HostPaths& hosts,
                      const Pages<gateway::GatewayPage>& gateways, const Pages<IpDevice>& devices) {
  std::map<std::pair<std::string, std::string>, std::size_t> counts;
  for (const char* path : {"shm", "tcp"}) counts[{path, ""}] = 0;
  for (const Connection& connection : seen.connections) {
    ++counts[{connection.path, reason_label(connection.why)}];
  }
  fmt::print(
      "# HELP clan_connections Connections of programs under CLAN now, by path and reason.\n"
      "# TYPE clan_connections gauge\n");
  for (const auto& [labels, count] : counts) {
    fmt::print("clan_connections{{path=\"{}\",reason=\"{}\"}} {}\n", labels.first, labels.second,
               count);
  }
  fmt::print(
      "# HELP clan_refused_processes Processes that may not be looked into.\n"
      "# TYPE clan_refused_processes gauge\nclan_refused_processes {}\n",
      seen.refused);
  print_counter(seen, "sent_bytes_total", "Bytes sent through shared memory.", &EndView::bytes);
  print_counter(seen, "messages_total", "Calls that sent them.", &EndView::messages);
  print_counter(seen, "sleeps_total", "Sleeps of readers and writers.", &EndView::sleeps);
  print_counter(seen, "wakeups_total", "Wake-ups that this end was sent.", &EndView::wakeups);
  print_paths(hosts, "round_trip_seconds", "gauge",
              "Smoothed round trip to a peer on another host.", &PathValues::round_trip_ns, 1e-9);
  print_paths(hosts, "window_bytes", "gauge", "What may be under way to it.",
              &PathValues::window_bytes);
  print_paths(hosts, "packets_sent_total", "counter", "Packets sent to it.",
              &PathValues::packets_sent);
  print_paths(hosts, "packets_received_total", "counter", "Packets received from it.",
              &PathValues::packets_received);
  print_paths(hosts, "packets_lost_total", "counter", "Of those sent, lost and sent again.",
              &PathValues::packets_lost);
  print_paths(hosts, "timeouts_total", "counter", "Probe time-outs.", &PathValues::timeouts);
  if (!gateways.empty()) print_gateways(gateways);
  if (!devices.empty()) print_devices(devices);
}

}  // namespace clan::tool
