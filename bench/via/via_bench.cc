// The Virtual Interface Architecture over CLAN (plugins/via), beside what it is built of and beside
// the kernel; the figures of via-over-clan.
//
// via_latency      table 1, and longer messages: round trips; the paper halves them
// via_one_core     the same with both ends on one core
// via_beside       the same beside a computation on each core, of the niceness that is its number
// via_bandwidth    figure 6: four buffers at the receiver, credits back
// via_buffers      the same with 1 KB, by the number of buffers: four are where more help little
// via_load         figure 7: requests per second at a server with one completion queue
//
// "via-poll" calls Done until something is done, "via" waits. "messages" are the engine's message
// endpoints. rdma_copy shows what one process_vm_writev() takes.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "benchmarks.h"
#include "transports/clan_transport.h"
#include "transports/hub_loops.h"
#include "transports/kernel_transport.h"
#include "transports/one_way.h"
#include "transports/round_trip.h"
#include "via/via_transport.h"

namespace clan::bench {
namespace {

auto via_trips(ViaWait wait) {
  return [=] { return ViaTransport(wait); };
}
auto messages(WaitMode mode) {
  return [=] { return ClanMessages(mode); };
}
auto kernel(Wait wait) {
  return [=] { return KernelTransport(Family::kUnixSeqpacket, wait); };
}

bool stream_member(Member& m, ViaStream& end, std::size_t bytes) {
  const bool client = m.index() == 0;
  MessageSource source(bytes);
  std::uint64_t number = 0;
  const auto burst = [&](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i, ++number) {
      if (client) {
        if (!end.send(source.message(number))) return false;
        continue;
      }
      const auto message = end.next();
      if (message.size() != bytes || !check(message, number) || !end.release()) return false;
    }
    return true;
  };
  const std::uint64_t warm_up = m.options().smoke ? 8 : bytes >= 65536 ? 64 : 2048;
  if (!burst(warm_up)) return m.fail("warm-up: data lost or damaged");
  const std::uint64_t start = Clock::now();
  if (!burst(warm_up)) return m.fail("warm-up: data lost or damaged");
  const double each = Clock::to_ns(Clock::now() - start) / static_cast<double>(warm_up);
  const std::uint64_t count = m.agree(m.repeats_for(each, 5'000'000));
  while (m.next_sample()) {
    const std::uint64_t begin = Clock::now();
    if (!burst(count)) return m.fail("data lost or damaged");
    m.record(Clock::to_ns(Clock::now() - begin) / static_cast<double>(count));
    if (client) m.did(count);
  }
  return true;
}

std::optional<Row> via_stream(Context& context, const char* benchmark, std::size_t bytes,
                              std::size_t buffers) {
  ViaStreamTransport transport(buffers);
  const auto outcome =
      run_pair(context, benchmark, transport, bytes, context.across_cores(),
               [&](Member& m, ViaStream& end) { return stream_member(m, end, bytes); });
  if (!outcome) return std::nullopt;
  Row row = make_row(benchmark, "via-poll", static_cast<double>(bytes), "GB/s", *outcome);
  row.higher_is_better = true;
  row.op_ns = row.stats.p50;
  std::vector<double> runs = outcome->members.front().runs[0];
  for (double& ns : runs) ns = static_cast<double>(bytes) / ns;
  row.stats = summarise_runs(runs);
  return row;
}

constexpr std::size_t kPapersBuffers = 4;

std::optional<Row> via_buffers(Context& context, std::size_t buffers) {
  auto row = via_stream(context, "via_buffers", 1024, buffers);
  if (!row) return row;
  row->x = static_cast<double>(buffers);
  row->x_name = "receive buffers";
  return row;
}

template <class Make>
Context::Variant stream_variant(Make make, const char* name, std::size_t bytes) {
  return [=](Context& context) {
    auto transport = make();
    auto row = one_way(context, "via_bandwidth", transport, bytes, Figure::kBandwidth,
                       context.across_cores());
    if (row) row->variant = name;
    return row;
  };
}

template <class Make>
Context::Variant via_load_variant(Make make, std::size_t connections) {
  return [=](Context& context) {
    auto transport = make();
    return offered_load(context, "via_load", transport, connections);
  };
}

/// Computations that never end, one on each core.
class Computations {
 public:
  Computations(const Options& options, int niceness)
      : pids_{start(options.core_a, niceness), start(options.core_b, niceness)} {}
  ~Computations() {
    for (const pid_t pid : pids_) {
      if (pid <= 0) continue;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
  Computations(const Computations&) = delete;
  Computations& operator=(const Computations&) = delete;

 private:
  static pid_t start(int core, int niceness) {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    ::sched_setaffinity(0, sizeof set, &set);
    ::setpriority(PRIO_PROCESS, 0, niceness);
    for (;;) asm volatile("" ::: "memory");
  }
  pid_t pids_[2];
};

void latency(Context& context, const std::string& name, std::size_t bytes,
             const GroupOptions& group) {
  context.point({
      round_trip_variant(name, via_trips(ViaWait::kPoll), bytes, group),
      round_trip_variant(name, via_trips(ViaWait::kWait), bytes, group),
      round_trip_variant(name, messages(WaitMode::kPoll), bytes, group),
      round_trip_variant(name, messages(WaitMode::kAdaptive), bytes, group),
      round_trip_variant(name, kernel(Wait::kPoll), bytes, group),
      round_trip_variant(name, kernel(Wait::kBlock), bytes, group),
  });
}

}  // namespace

void via(Context& context) {
  for (std::size_t bytes : context.sizes({1, 4, 40, 64, 1024, 4096, 16384, 65536, 1048576},
                                         {64, 65536}, {1, 64, 65536}))
    latency(context, "via_latency", bytes, context.across_cores());
  for (std::size_t bytes : context.sizes({64, 65536}, {64}, {64}))
    latency(context, "via_one_core", bytes, context.on_one_core());
  for (const int niceness : {0, 19}) {
    const Computations computations(context.options(), niceness);
    const std::string name = "via_beside_" + std::to_string(niceness);
    // As many trips as are made in so long while nobody takes a processor away; else each trip may
    // take a thousand times as long.
    GroupOptions group = context.across_cores();
    group.sample_ms /= 10;
    context.point({
        round_trip_variant(name, via_trips(ViaWait::kWait), 64, group),
        round_trip_variant(name, messages(WaitMode::kAdaptive), 64, group),
        round_trip_variant(name, kernel(Wait::kBlock), 64, group),
    });
  }
  for (std::size_t bytes :
       context.sizes({8, 64, 128, 512, 1024, 4096, 16384, 65536, 262144, 1048576}, {64, 65536},
                     {64, 65536})) {
    context.point({
        [=](Context& c) { return via_stream(c, "via_bandwidth", bytes, kPapersBuffers); },
        stream_variant(messages(WaitMode::kPoll), "messages", bytes),
        stream_variant([] { return KernelTransport(Family::kUnixStream, Wait::kBlock); }, "unix",
                       bytes),
    });
  }
  for (std::size_t buffers : context.sizes({1, 2, 4, 8, 16}, {4, 16}, {4, 16}))
    context.point({[=](Context& c) { return via_buffers(c, buffers); }});
  for (std::size_t n : context.sizes({1, 4, 16, 64, 256, 1000}, {1, 64}, {1, 8})) {
    context.point({
        via_load_variant([] { return ViaHubTransport(ViaWait::kPoll); }, n),
        via_load_variant([] { return ViaHubTransport(ViaWait::kWait); }, n),
        via_load_variant([] { return ClanHubTransport(WaitMode::kPoll); }, n),
        via_load_variant([] { return KernelHubTransport(Family::kUnixStream, Wait::kBlock); }, n),
    });
  }
}

}  // namespace clan::bench
