// What does a connection cost that does nothing, and what does a process cost that only waits?
//
// idle_memory   resident bytes per connection in the server's process, after one message each way;
//               what the kernel keeps for a socket is not in it
// idle_cpu      CPU time per second of a server that waits with that many connections open, all its
//               threads together, as the kernel accounts for it
// idle_wakeups  how often per second such a server was put on a core
#include <fmt/core.h>

#include <filesystem>
#include <fstream>

#include "benchmarks.h"
#include "transports/clan_transport.h"
#include "transports/hub_loops.h"
#include "transports/kernel_transport.h"

namespace clan::bench {

namespace {

/// Private pages and this process's share of common ones, in bytes.
double resident() {
  std::ifstream in("/proc/self/smaps_rollup");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("Pss:")) return std::stod(line.substr(4)) * 1024;
  }
  return 0;
}

/// What the kernel's scheduler has accounted to all threads of a process.
struct Scheduled {
  double cpu_ns = 0;
  double times = 0;
};

Scheduled scheduled(std::int32_t pid) {
  Scheduled total;
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    std::ifstream in(task.path() / "schedstat");
    double cpu_ns = 0, waited_ns = 0, times = 0;
    if (!(in >> cpu_ns >> waited_ns >> times)) continue;
    total.cpu_ns += cpu_ns;
    total.times += times;
  }
  return total;
}

enum Figures : std::size_t { kMemory, kCpuPerSecond, kWakeupsPerSecond };

/// One request on each connection, one at a time: every connection has been used.
template <ConnectionHub H>
bool touch_all(Member& m, H& hub, std::size_t connections) {
  if (m.index() == 1) return serve(m, hub, connections);
  MessageSource source(kHubMessageBytes);
  for (std::uint32_t i = 0; i < connections; ++i) {
    if (!ask(hub, i, source, i)) return m.fail("wrong or no answer");
  }
  return true;
}

/// The server waits for one request that comes after a while; what did it spend meanwhile? The
/// client, asleep as well, asks the kernel just before it sends.
template <ConnectionHub H>
bool idle_for(Member& m, H& hub, useconds_t idle_us) {
  auto* server = reinterpret_cast<std::atomic<std::int32_t>*>(m.scratch());
  if (m.index() == 1) {
    server->store(getpid(), std::memory_order_relaxed);  // the barrier publishes it
    m.barrier();
    if (!serve(m, hub, 1)) return false;
    m.barrier();  // leaving before the answer was read would hang up on every connection
    return true;
  }
  m.barrier();
  usleep(idle_us / 5);  // an adaptive waiter may poll for a while before it sleeps
  const std::int32_t pid = server->load(std::memory_order_relaxed);
  const Scheduled before = scheduled(pid);
  const std::uint64_t start = Clock::now();
  usleep(idle_us);
  const double seconds = Clock::ns_since(start) / 1e9;
  const Scheduled after = scheduled(pid);
  m.set_figure(kCpuPerSecond, (after.cpu_ns - before.cpu_ns) / seconds);
  m.set_figure(kWakeupsPerSecond, (after.times - before.times) / seconds);
  MessageSource source(kHubMessageBytes);
  if (!ask(hub, 0, source, 0)) return m.fail("wrong or no answer");
  m.barrier();
  return true;
}

template <HubTransport T>
std::optional<Outcome> measure_idle(Context& context, T& transport, std::size_t connections) {
  return context.run("idle_memory", transport.name(), transport.prepare(connections),
                     context.across_cores(), [&](Member& m) {
                       const double memory = resident();
                       m.barrier();
                       auto hub = transport.open(m.side(), connections);
                       if (!hub) return m.fail("cannot open the connections");
                       m.barrier();
                       if (!touch_all(m, *hub, connections)) return false;
                       m.barrier();
                       m.set_figure(kMemory,
                                    (resident() - memory) / static_cast<double>(connections));
                       return idle_for(m, *hub, context.options().smoke ? 50'000 : 1'000'000);
                     });
}

template <class Make>
void idle_rows(Context& context, Make make) {
  const std::size_t connections = context.sizes({1000}, {500}, {20}).front();
  const int runs = context.options().smoke ? 1 : 3;
  std::vector<double> memory, cpu, wakeups;
  for (int i = 0; i < runs; ++i) {
    auto transport = make();
    const auto outcome = measure_idle(context, transport, connections);
    if (!outcome) return;
    memory.push_back(outcome->members[1].figures[kMemory]);
    cpu.push_back(outcome->members[0].figures[kCpuPerSecond] / 1e3);
    wakeups.push_back(outcome->members[0].figures[kWakeupsPerSecond]);
  }
  const auto add = [&](const char* benchmark, const char* unit, const std::vector<double>& values) {
    Row row;
    row.benchmark = benchmark;
    row.variant = make().name();
    row.x = static_cast<double>(connections);
    row.x_name = "connections";
    row.unit = unit;
    row.stats = summarise_runs(values);
    context.results().add(row);
  };
  add("idle_memory", "bytes", memory);
  add("idle_cpu", "us/s", cpu);
  add("idle_wakeups", "per s", wakeups);
}

}  // namespace

void idle_cost(Context& context) {
  idle_rows(context, clan_hub(WaitMode::kAdaptive));
  idle_rows(context, kernel_hub(Family::kTcp, Wait::kBlock));
  idle_rows(context, kernel_hub(Family::kUnixStream, Wait::kBlock));
}

}  // namespace clan::bench
