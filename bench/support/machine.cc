#include "support/machine.h"

#include <fmt/core.h>
#include <sched.h>
#include <sys/utsname.h>
#include <time.h>

#include <fstream>

#include "support/clock.h"

#ifndef CLAN_BENCH_COMMIT
#define CLAN_BENCH_COMMIT "unknown"
#endif
#ifndef CLAN_BENCH_BUILD_TYPE
#define CLAN_BENCH_BUILD_TYPE "unknown build"
#endif

namespace clan::bench {

namespace {

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const auto colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

}  // namespace

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {0};
  for (int c = 0; c < CPU_SETSIZE; ++c) {
    if (CPU_ISSET(c, &set)) cores.push_back(c);
  }
  return cores;
}

Machine describe_machine() {
  Machine m;
  m.cpu_model = cpu_model();
  m.cores = static_cast<int>(allowed_cores().size());
  utsname u{};
  uname(&u);
  m.kernel = fmt::format("{} {}", u.sysname, u.release);
  m.governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (m.governor.empty()) m.governor = "none";
  m.clock = Clock::uses_tsc() ? "invariant tsc" : "CLOCK_MONOTONIC";
  const time_t now = time(nullptr);
  tm broken{};
  gmtime_r(&now, &broken);
  char date[32];
  strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &broken);
  m.date = date;
  m.commit = CLAN_BENCH_COMMIT;
#if defined(__clang__)
  m.compiler = "clang " __clang_version__ ", " CLAN_BENCH_BUILD_TYPE;
#else
  m.compiler = "gcc " __VERSION__ ", " CLAN_BENCH_BUILD_TYPE;
#endif
  m.load_average = first_line("/proc/loadavg");
  return m;
}

std::string machine_line(const Machine& m) {
  return fmt::format("{}, {} cores, {}, {}, commit {}", m.cpu_model, m.cores, m.kernel,
                     m.date.substr(0, 10), m.commit);
}

std::string machine_report(const Machine& m) {
  return fmt::format(
      "machine   {} · {} cores · governor {}\n"
      "system    {} · clock {} · load {}\n"
      "build     {} · commit {} · {}\n",
      m.cpu_model, m.cores, m.governor, m.kernel, m.clock, m.load_average, m.compiler, m.commit,
      m.date);
}

}  // namespace clan::bench
