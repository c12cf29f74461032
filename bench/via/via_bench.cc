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
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>

#include "benchmarks.h"
#include "transports/clan_transport.h"
#include "transports/hub_loops.h"
#include "transports/kernel_transport.h"
#include "via/via_transport.h"

namespace clan::bench {
namespace {

auto via_trips(ViaWait wait) {
  return [=] { return ViaTransport(wait); };
}
auto via_hub(ViaWait wait) {
  return [=] { return ViaHubTransport(wait); };
}

bool stream_member(Member& m, ViaStream& end, std::size_t bytes) {
  const bool client = m.index() == 0;
  MessageSource source(bytes);
  std::uint64_t number = 0;
  const auto step = [&] {
    if (client) return end.send(source.message(number));
    const auto message = end.next();
    return message.size() == bytes && check(message, number) && end.release();
  };
  const std::uint64_t warm_up = m.options().smoke ? 8 : bytes >= 65536 ? 64 : 2048;
  return time_bursts(m, warm_up, [&](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i, ++number) {
      if (!step()) return m.fail("data lost or damaged");
    }
    return true;
  });
}

std::optional<Row> via_stream(Context& context, const char* benchmark, std::size_t bytes,
                              std::size_t buffers) {
  ViaStreamTransport transport(buffers);
  const auto outcome =
      run_pair(context, benchmark, transport, bytes, context.across_cores(),
               [&](Member& m, ViaStream& end) { return stream_member(m, end, bytes); });
  if (!outcome) return std::nullopt;
  const auto x = static_cast<double>(bytes);
  return rate_row(benchmark, "via-poll", x, "GB/s", *outcome, x);
}

constexpr std::size_t kPapersBuffers = 4;

std::optional<Row> via_buffers(Context& context, std::size_t buffers) {
  auto row = via_stream(context, "via_buffers", 1024, buffers);
  if (!row) return row;
  row->x = static_cast<double>(buffers);
  row->x_name = "receive buffers";
  return row;
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
  const auto variant = [&](auto make) { return round_trip_variant(name, make, bytes, group); };
  context.point({variant(via_trips(ViaWait::kPoll)), variant(via_trips(ViaWait::kWait)),
                 variant(clan_messages(WaitMode::kPoll)),
                 variant(clan_messages(WaitMode::kAdaptive)),
                 variant(kernel(Family::kUnixSeqpacket, Wait::kPoll)),
                 variant(kernel(Family::kUnixSeqpacket, Wait::kBlock))});
}

void beside(Context& context, int niceness) {
  const Computations computations(context.options(), niceness);
  // As many trips as are made in so long while nobody takes a processor away; else each trip may
  // take a thousand times as long.
  GroupOptions group = context.across_cores();
  group.sample_ms /= 10;
  const auto variant = [&](auto make) {
    return round_trip_variant("via_beside_" + std::to_string(niceness), make, 64, group);
  };
  context.point({variant(via_trips(ViaWait::kWait)), variant(clan_messages(WaitMode::kAdaptive)),
                 variant(kernel(Family::kUnixSeqpacket, Wait::kBlock))});
}

}  // namespace

void via(Context& context) {
  for (std::size_t bytes : context.sizes({1, 4, 40, 64, 1024, 4096, 16384, 65536, 1048576},
                                         {64, 65536}, {1, 64, 65536}))
    latency(context, "via_latency", bytes, context.across_cores());
  for (std::size_t bytes : context.sizes({64, 65536}, {64}, {64}))
    latency(context, "via_one_core", bytes, context.on_one_core());
  for (const int niceness : {0, 19}) beside(context, niceness);
  for (std::size_t bytes :
       context.sizes({8, 64, 128, 512, 1024, 4096, 16384, 65536, 262144, 1048576}, {64, 65536},
                     {64, 65536})) {
    const auto variant = [&](auto make, const char* name) {
      return one_way_variant("via_bandwidth", make, bytes, Figure::kBandwidth,
                             context.across_cores(), name);
    };
    context.point(
        {[=](Context& c) { return via_stream(c, "via_bandwidth", bytes, kPapersBuffers); },
         variant(clan_messages(WaitMode::kPoll), "messages"),
         variant(kernel(Family::kUnixStream, Wait::kBlock), "unix")});
  }
  for (std::size_t buffers : context.sizes({1, 2, 4, 8, 16}, {4, 16}, {4, 16}))
    context.point({[=](Context& c) { return via_buffers(c, buffers); }});
  for (std::size_t n : context.sizes({1, 4, 16, 64, 256, 1000}, {1, 64}, {1, 8})) {
    const auto variant = [&](auto make) { return load_variant("via_load", make, n); };
    context.point({variant(via_hub(ViaWait::kPoll)), variant(via_hub(ViaWait::kWait)),
                   variant(clan_hub(WaitMode::kPoll)),
                   variant(kernel_hub(Family::kUnixStream, Wait::kBlock))});
  }
}

}  // namespace clan::bench
