#include <clan/face/reasons.h>
#include <fmt/core.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "proc.h"
#include "write.h"

/// A counter of a page.
template <typename T>
struct nlohmann::adl_serializer<std::atomic<T>> {
  static void to_json(ordered_json& json, const std::atomic<T>& counter) {
    json = clan::tool::value_in(counter);
  }
};

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

Json object_of(const RpcPage& calls) {
  return {{"path", "rpc"},
          {"pid", calls.pid},
          {"handles", calls.handles},
          {"servers", calls.met},
          {"calls_clan", calls.calls_clan},
          {"calls_stock", calls.calls_stock},
          {"lost", calls.lost},
          {"clients", calls.clients},
          {"served_clan", calls.served_clan},
          {"replies_stock", calls.replies_stock},
          {"hostile", calls.hostile},
          {"sleeps", calls.sleeps},
          {"calls_far", calls.calls_far},
          {"served_far", calls.served_far}};
}

Json object_of(const MpiPair& pair) {
  const auto& [page, peer] = pair;
  const std::uint64_t name = value_in(page->name), peer_name = value_in(peer->name);
  return {{"path", "mpi"},
          {"pid", page->pid},
          {"job", job_of(name)},
          {"rank", rank_of(name)},
          {"peer_job", job_of(peer_name)},
          {"peer_rank", rank_of(peer_name)},
          {"records", peer->messages},
          {"bytes", peer->bytes},
          {"gets", peer->gets},
          {"get_bytes", peer->get_bytes},
          {"puts", peer->puts},
          {"put_bytes", peer->put_bytes},
          {"atomics", peer->atomics},
          {"queued", page->queued},
          {"nonsense", page->nonsense}};
}

Json object_of(const ViaConnection& connection) {
  const via::ViaRow& vi = *connection.row;
  return {{"path", "via"},
          {"pid", connection.page->pid},
          {"connection", vi.connection},
          {"peer_pid", vi.peer_pid},
          {"sent", vi.sent},
          {"sent_bytes", vi.sent_bytes},
          {"received", vi.received},
          {"received_bytes", vi.received_bytes},
          {"rdma", vi.rdma},
          {"rdma_bytes", vi.rdma_bytes},
          {"moved", vi.moved},
          {"dropped", vi.dropped},
          {"hostile", connection.page->hostile}};
}

Json object_of(const vmmc::VmmcPage& vmmc) {
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

Json object_of(const UnetEndpoint& endpoint) {
  const unet::UnetRow& e = *endpoint.row;
  return {{"path", "unet"},
          {"pid", endpoint.page->pid},
          {"endpoint", e.number},
          {"channels", e.channels},
          {"emulated", value_in(e.emulated) != 0},
          {"sent", e.sent},
          {"sent_bytes", e.sent_bytes},
          {"received", e.received},
          {"received_bytes", e.received_bytes},
          {"dropped_buffer", e.dropped_buffer},
          {"dropped_queue", e.dropped_queue},
          {"dropped_tag", e.dropped_tag},
          {"returned", e.returned},
          {"deferrals", e.deferrals},
          {"hostile", endpoint.page->hostile}};
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

Json object_of(const gateway::GatewayPage& gateway) {
  Json targets = Json::array();
  for (const auto& target : targets_of(gateway)) {
    targets.push_back({{"name", text_in(target.name)},
                       {"works", value_in(target.works) != 0},
                       {"connections", target.connections},
                       {"served", target.served},
                       {"failures", target.failures}});
  }
  return {{"path", "gateway"},
          {"pid", gateway.pid},
          {"draining", value_in(gateway.draining) != 0},
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

template <typename Page>
Json object_of(const std::shared_ptr<const Page>& page) {
  return object_of(*page);
}

}  // namespace

void print_json(const Report& report, bool one_line) {
  std::string text;
  const auto add = [&](const Json& object) {
    if (!text.empty()) text += one_line ? ", " : ",\n";
    text += object.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  const auto add_all = [&](const auto& entries) {
    for (const auto& entry : entries) add(object_of(entry));
  };
  for (std::size_t i = 0; i < report.connections.size(); ++i) {
    const Connection& connection = report.connections[i];
    const std::optional<Rate>& rate = report.rates[i];
    add({{"local", end_of(connection, 0, rate)},
         {"peer", end_of(connection, 1, rate)},
         {"path", connection.path},
         {"reason", printable(connection.why)}});
  }
  add_all(report.hosts.paths);
  add_all(report.remote_calls);
  add_all(report.mpi_pairs);
  add_all(report.vis);
  add_all(report.vmmc);
  add_all(report.endpoints);
  add_all(report.gateways);
  add_all(report.devices);
  fmt::print("[{}]\n", text);
}

}  // namespace clan::tool
