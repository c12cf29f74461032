// What does UCX, the best-known user-level messaging library, do on this machine? Runs the
// distribution's own ucx_perftest (Debian: ucx-utils), two processes pinned like ours.
//
// Latencies are doubled: ucx_perftest prints half a round trip. CPU time is that of both processes,
// less that of two which send next to nothing.
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "benchmarks.h"
#include "support/clock.h"
#include "support/load.h"
#include "support/owned.h"

namespace clan::bench {

namespace {

constexpr const char* kProgram = "ucx_perftest";
constexpr double kRunDeadlineS = 20;

/// What a kind of test prints: its place among the numbers, and how many of our unit it is.
struct Kind {
  const char* benchmark;
  const char* unit;
  std::size_t at;
  double scale;
};
constexpr Kind kLatency{"ucx_latency", "ns", 1, 2e3}, kRate{"ucx_rate", "M msg/s", 7, 1e-6},
    kBandwidth{"ucx_bandwidth", "GB/s", 5, 1048576 / 1e9};

struct Test {
  const Kind& kind;
  std::string test;  ///< ucx_perftest's
  std::string variant;
  std::string transports;  ///< UCX_TLS
  std::size_t bytes;
  std::uint64_t iterations;
};

/// A child that is dead, and reaped, when this goes out of scope or has been asked to end.
class Child {
 public:
  Child(const std::vector<std::string>& arguments, int core, const std::string& transports,
        Fd* output) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    Fd read_end(ends[0]), write_end(ends[1]);
    pid_ = start_child();
    if (pid_ == 0) exec(arguments, core, transports, write_end.get());
    if (output != nullptr) *output = std::move(read_end);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { (void)end(); }
  bool started() const { return pid_ > 0; }

  /// The CPU time in ns that it has had.
  double end() {
    if (pid_ <= 0) return 0;
    kill(pid_, SIGKILL);
    rusage usage{};
    if (wait4(std::exchange(pid_, -1), nullptr, 0, &usage) < 0) return 0;
    const auto ns = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_usec) * 1e3;
    };
    return ns(usage.ru_utime) + ns(usage.ru_stime);
  }

 private:
  [[noreturn]] static void exec(const std::vector<std::string>& arguments, int core,
                                const std::string& transports, int out) {
    pin(core);
    setenv("UCX_TLS", transports.c_str(), 1);
    setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 1);
    const int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(out, 1);
    dup2(null, 2);
    std::vector<char*> argv;
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  pid_t pid_ = -1;
};

/// Whether someone listens on the port, by the kernel's table: connecting would use up the server.
bool listening(int port) {
  const std::string wanted = fmt::format(":{:04X}", port);
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    for (std::string line; std::getline(in, line);) {
      std::istringstream fields(line);
      std::string slot, local, remote, state;
      fields >> slot >> local >> remote >> state;
      if (state == "0A" && local.ends_with(wanted)) return true;
    }
  }
  return false;
}

bool wait_until_listening(int port) {
  constexpr int kTries = 250;
  for (int i = 0; i < kTries && !listening(port); ++i) usleep(20'000);
  return listening(port);
}

std::string read_all(int fd, double deadline_s) {
  std::string text;
  const std::uint64_t end = monotonic_ns() + static_cast<std::uint64_t>(deadline_s * 1e9);
  for (;;) {
    const std::uint64_t now = monotonic_ns();
    if (now >= end) return "";
    pollfd p{fd, POLLIN, 0};
    if (poll(&p, 1, static_cast<int>((end - now) / 1'000'000) + 1) <= 0) continue;
    std::array<char, 4096> buffer;
    const ssize_t n = read(fd, buffer.data(), buffer.size());
    if (n <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(n));
  }
}

/// The numbers of the last line that has eight of them:
/// iterations, p50 us, average us, overall us, 2 × MB/s, 2 × messages/s.
std::vector<double> final_numbers(const std::string& text) {
  std::vector<double> numbers, n(8);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (std::sscanf(line.c_str(), "%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf", &n[0], &n[1], &n[2], &n[3],
                    &n[4], &n[5], &n[6], &n[7]) == 8)
      numbers = n;
  }
  return numbers;
}

struct Run {
  std::vector<double> numbers;  ///< none: there was no result
  double cpu_ns = 0;            ///< of both processes, from their start to their end
};

std::uint64_t warm_up(std::uint64_t iterations) { return iterations / 10 + 1; }

Run run_once(Context& context, const Test& test, std::uint64_t iterations) {
  static int port = 20000 + getpid() % 20000;
  for (++port; listening(port); ++port) {
  }
  const std::string at = std::to_string(port);
  Child server({kProgram, "-p", at}, context.options().core_b, test.transports, nullptr);
  if (!server.started() || !wait_until_listening(port)) return {};
  Fd output;
  Child client(
      {kProgram, "127.0.0.1", "-p", at, "-t", test.test, "-s", std::to_string(test.bytes), "-n",
       std::to_string(iterations), "-w", std::to_string(warm_up(iterations)), "-f", "-v"},
      context.options().core_a, test.transports, &output);
  if (!client.started()) return {};
  Run run{final_numbers(read_all(output.get(), kRunDeadlineS))};
  run.cpu_ns = client.end() + server.end();
  return run;
}

/// Returns the CPU time of a message: what a run has beyond one that sends hardly any.
double cpu_ns_of_message(const Run& run, const Run& empty, std::uint64_t iterations) {
  const auto messages = static_cast<double>(iterations + warm_up(iterations));
  return std::max(run.cpu_ns - empty.cpu_ns, 0.0) / messages;
}

std::optional<Row> measure(Context& context, const Test& test) {
  const GroupOptions group = context.across_cores();
  const int wanted = context.options().smoke ? 1 : std::min(context.options().samples, 5);
  std::vector<double> runs, probes, cpu;
  int dropped = 0;
  const bool throughput = &test.kind != &kLatency;
  const Run empty = throughput ? run_once(context, test, 1) : Run{};
  double before = probe_cores(group);
  while (static_cast<int>(runs.size()) < wanted) {
    const Run run = run_once(context, test, test.iterations);
    if (run.numbers.empty()) {
      context.skip(test.kind.benchmark, test.variant,
                   fmt::format("{} -t {} gave no result", kProgram, test.test));
      return std::nullopt;
    }
    const double after = probe_cores(group);
    const bool agree = std::max(before, after) <= kProbeTolerance * std::min(before, after);
    if (agree || dropped >= wanted) {
      runs.push_back(run.numbers[test.kind.at] * test.kind.scale);
      cpu.push_back(cpu_ns_of_message(run, empty, test.iterations));
      probes.push_back((before + after) / 2);
    } else {
      ++dropped;
    }
    before = after;
  }
  Row row;
  row.benchmark = test.kind.benchmark;
  row.variant = test.variant;
  row.x = static_cast<double>(test.bytes);
  row.higher_is_better = throughput;
  // Without that of a run that sends next to nothing it is not known.
  row.cpu_ns = throughput && !empty.numbers.empty() ? median(cpu) : 0;
  row.unit = test.kind.unit;
  row.stats = summarise_runs(runs);
  row.probe_ns = median(probes);
  row.dropped = dropped;
  row.op_ns = !throughput            ? row.stats.p50
              : &test.kind == &kRate ? 1e3 / row.stats.p50
                                     : row.x / row.stats.p50;
  row.note = test.test;
  return row;
}

std::vector<Test> tests() {
  const std::string cma = "posix,cma,self", posix = "posix,self", by_stream = "ucx stream, posix";
  std::vector<Test> all;
  for (std::size_t bytes : {8ul, 64ul, 1024ul, 65536ul, 1048576ul}) {
    const std::uint64_t n = bytes <= 1024 ? 100'000 : bytes <= 65536 ? 10'000 : 1'000;
    all.push_back({kLatency, "tag_lat", "ucx", cma, bytes, n});
    all.push_back({kLatency, "stream_lat", by_stream, posix, bytes, n});
  }
  for (std::size_t bytes : {8ul, 64ul})
    all.push_back({kRate, "tag_bw", "ucx", cma, bytes, 1'000'000});
  for (std::size_t bytes : {65536ul, 1048576ul}) {
    const std::uint64_t n = bytes <= 65536 ? 20'000 : 2'000;
    all.push_back({kBandwidth, "tag_bw", "ucx", cma, bytes, n});
    all.push_back({kBandwidth, "tag_bw", "ucx posix", posix, bytes, n});
    all.push_back({kBandwidth, "stream_bw", by_stream, posix, bytes, n});
  }
  return all;
}

}  // namespace

void ucx(Context& context) {
  if (std::system("command -v ucx_perftest >/dev/null") != 0) {
    context.skip("ucx_latency", "ucx", "ucx_perftest is not installed (Debian: ucx-utils)");
    return;
  }
  for (Test test : tests()) {
    if (context.options().smoke) {
      if (test.bytes != 64) continue;
      test.iterations = 1'000;
    }
    if (context.options().quick && test.variant != "ucx") continue;
    context.point({[&](Context& c) { return measure(c, test); }});
  }
}

}  // namespace clan::bench
