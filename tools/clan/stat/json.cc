#include <clan/face/reasons.h>
#include <fmt/core.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "proc.h"
#include "write.h"

namespace clan::tool {
namespace {

using Json = nlohmann::ordered_json;

double tenths(double value) { return std::round(value * 10) / 10; }

Json end_of(const Connection& connection, int which, const std::optional<Rate>& rate) {
  const EndView& end = connection.ends[which];
  Json processes = Json::array();
  for (const pid_t pid : end.processes)
    processes.push_back({{"pid", pid}, {"comm", command_name(pid)}});
  Json json{{"address", to_string(end.address)},
            {"port", end.address.port},
            {"network", end.network != 0 ? Json(end.network) : Json()},
            {"processes", std::move(processes)}};
  if (connection.in_pipe) {
    json["bytes"] = end.bytes;
    json["messages"] = end.messages;
    json["sleeps"] = end.sleeps;
    json["wakeups"] = end.wakeups;
    json["tcp_bytes"] = end.tcp_bytes;
  }
  if (end.calls) {
    json["calls"] = *end.calls;
    json["calls_needed"] = reasons::kCallsNeeded;
  }
  if (rate) {
    json["bytes_per_s"] = tenths(rate->bytes[which]);
    json["messages_per_s"] = tenths(rate->messages[which]);
  }
  return json;
}

Json object_of(const RpcCounters& calls) {
  return {{"path", "rpc"},
          {"pid", calls.pid},
          {"handles", calls.handles},
          {"servers", calls.met},
          {"calls_clan", calls.calls_clan},
          {"calls_stock", calls.calls_stock},
          {"lost", calls.lost},
          {"clients", calls.clients},
          {"served_clan", calls.served},
          {"replies_stock", calls.replies_stock},
          {"hostile", calls.hostile},
          {"sleeps", calls.sleeps},
          {"calls_far", calls.calls_far},
          {"served_far", calls.served_far}};
}

Json object_of(const MpiPair& pair) {
  return {{"path", "mpi"},
          {"pid", pair.pid},
          {"job", pair.job},
          {"rank", pair.rank},
          {"peer_job", pair.peer_job},
          {"peer_rank", pair.peer_rank},
          {"records", pair.messages},
          {"bytes", pair.bytes},
          {"gets", pair.gets},
          {"get_bytes", pair.get_bytes},
          {"puts", pair.puts},
          {"put_bytes", pair.put_bytes},
          {"atomics", pair.atomics},
          {"queued", pair.queued},
          {"nonsense", pair.nonsense}};
}

Json object_of(const ViaConnection& vi) {
  return {{"path", "via"},           {"pid", vi.pid},
          {"connection", vi.number}, {"peer_pid", vi.peer_pid},
          {"sent", vi.sent},         {"sent_bytes", vi.sent_bytes},
          {"received", vi.received}, {"received_bytes", vi.received_bytes},
          {"rdma", vi.rdma},         {"rdma_bytes", vi.rdma_bytes},
          {"moved", vi.moved},       {"dropped", vi.dropped},
          {"hostile", vi.hostile}};
}

Json object_of(const VmmcCounters& vmmc) {
  return {{"path", "vmmc"},
          {"pid", vmmc.pid},
          {"buffers", vmmc.buffers},
          {"remotes", vmmc.remotes},
          {"bindings", vmmc.bindings},
          {"sends", vmmc.sends},
          {"sent_bytes", vmmc.sent_bytes},
          {"notified", vmmc.notified},
          {"delivered", vmmc.delivered},
          {"ignored", vmmc.ignored},
          {"lost", vmmc.lost},
          {"flushes", vmmc.flushes},
          {"compared_bytes", vmmc.compared_bytes},
          {"mirrored_bytes", vmmc.mirrored_bytes},
          {"hostile", vmmc.hostile}};
}

Json object_of(const UnetEndpoint& e) {
  return {{"path", "unet"},
          {"pid", e.pid},
          {"endpoint", e.number},
          {"channels", e.channels},
          {"emulated", e.emulated != 0},
          {"sent", e.sent},
          {"sent_bytes", e.sent_bytes},
          {"received", e.received},
          {"received_bytes", e.received_bytes},
          {"dropped_buffer", e.dropped_buffer},
          {"dropped_queue", e.dropped_queue},
          {"dropped_tag", e.dropped_tag},
          {"returned", e.returned},
          {"deferrals", e.deferrals},
          {"hostile", e.hostile}};
}

Json object_of(const HostPath& path) {
  const PathValues& v = path.values;
  return {{"path", "host"},
          {"pid", path.pid},
          {"port", path.port},
          {"peer_address", with_port(path.peer)},
          {"peer_pid", v.pid},
          {"mode", path.mode},
          {"packets", path.packets},
          {"round_trip_ns", v.round_trip_ns},
          {"least_round_trip_ns", v.least_round_trip_ns},
          {"packet_bytes", v.packet_bytes},
          {"window_bytes", v.window_bytes},
          {"packets_sent", v.packets_sent},
          {"packets_received", v.packets_received},
          {"packets_lost", v.packets_lost},
          {"timeouts", v.timeouts}};
}

void add(std::string& text, const Json& object, bool one_line) {
  if (!text.empty()) text += one_line ? ", " : ",\n";
  text += object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json object_of(const GatewayCounters& gateway) {
  Json targets = Json::array();
  for (const GatewayTarget& target : gateway.targets) {
    targets.push_back({{"name", target.name},
                       {"works", target.works},
                       {"connections", target.connections},
                       {"served", target.served},
                       {"failures", target.failures}});
  }
  return {{"path", "gateway"},
          {"pid", gateway.pid},
          {"draining", gateway.draining},
          {"connections", gateway.connections},
          {"accepted", gateway.accepted},
          {"ended", gateway.ended},
          {"reset", gateway.reset},
          {"bytes_in", gateway.bytes_in},
          {"bytes_out", gateway.bytes_out},
          {"refused_source", gateway.refused_source},
          {"refused_header", gateway.refused_header},
          {"refused_target", gateway.refused_target},
          {"failed_connects", gateway.failed_connects},
          {"accept_errors", gateway.accept_errors},
          {"reloads", gateway.reloads},
          {"failed_reloads", gateway.failed_reloads},
          {"targets", targets}};
}

Json object_of(const IpDevice& device) {
  return {{"path", "ip"},
          {"pid", device.pid},
          {"device", device.name},
          {"addresses", device.addresses},
          {"peers", device.peers},
          {"peers_up", device.peers_up},
          {"sent", device.sent},
          {"sent_bytes", device.sent_bytes},
          {"received", device.received},
          {"received_bytes", device.received_bytes},
          {"dropped_sent", device.dropped_sent},
          {"dropped_received", device.dropped_received},
          {"waits", device.waits},
          {"strangers", device.strangers}};
}

}  // namespace

void print_json(const Report& report, bool one_line) {
  std::string text;
  for (std::size_t i = 0; i < report.connections.size(); ++i) {
    const Connection& connection = report.connections[i];
    const std::optional<Rate>& rate = report.rates[i];
    const Json object{{"local", end_of(connection, 0, rate)},
                      {"peer", end_of(connection, 1, rate)},
                      {"path", connection.path},
                      {"reason", printable(connection.why)}};
    add(text, object, one_line);
  }
  for (const HostPath& path : report.hosts.paths) add(text, object_of(path), one_line);
  for (const RpcCounters& calls : report.remote_calls) add(text, object_of(calls), one_line);
  for (const MpiPair& pair : report.mpi_pairs) add(text, object_of(pair), one_line);
  for (const ViaConnection& vi : report.vis) add(text, object_of(vi), one_line);
  for (const VmmcCounters& vmmc : report.vmmc) add(text, object_of(vmmc), one_line);
  for (const UnetEndpoint& e : report.endpoints) add(text, object_of(e), one_line);
  for (const GatewayCounters& one : report.gateways) add(text, object_of(one), one_line);
  for (const IpDevice& device : report.devices) add(text, object_of(device), one_line);
  fmt::print("[{}]\n", text);
}

}  // namespace clan::tool
