#include "quick.h"

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "benchmarks.h"

namespace clan::bench {

namespace {

/// One line of the comparison. A column shows the best of the variants it lists. The last column of
/// the table compares with the better of the kernel's sockets that poll, whether listed or not.
struct Line {
  const char* text;
  const char* benchmark;
  double x;
  std::vector<std::string> clan;
  std::vector<std::string> tcp;
  std::vector<std::string> unix_sockets;
};

std::vector<Line> lines() {
  return {
      {"64 B there and back, both polling",
       "stream_latency",
       64,
       {"clan-poll"},
       {"tcp-poll"},
       {"unix-poll"}},
      {"64 B there and back, default waiting", "stream_latency", 64, {"clan"}, {"tcp"}, {"unix"}},
      {"64 KB there and back",
       "stream_latency",
       65536,
       {"clan", "clan-poll"},
       {"tcp", "tcp-poll"},
       {"unix", "unix-poll"}},
      {"8 B messages", "message_rate", 8, {"clan"}, {"tcp"}, {"unix", "seqpacket"}},
      {"64 B messages", "message_rate", 64, {"clan"}, {"tcp"}, {"unix", "seqpacket"}},
      {"stream of 64 KB pieces",
       "bandwidth",
       65536,
       {"clan", "clan-poll"},
       {"tcp", "tcp-poll"},
       {"unix", "unix-poll"}},
      {"stream of 1 MB pieces",
       "bandwidth",
       1048576,
       {"clan", "clan-poll"},
       {"tcp", "tcp-poll"},
       {"unix", "unix-poll"}},
      {"both ends on one core, 64 B", "same_core", 64, {"clan"}, {"tcp"}, {"unix"}},
      {"8 processes on 2 cores, 64 B", "oversubscribed", 64, {"clan"}, {"tcp"}, {"unix"}},
      {"64 B, 1000 idle connections",
       "idle_endpoints",
       1000,
       {"clan-poll", "clan"},
       {"tcp-poll"},
       {"unix-poll"}},
      {"64 requests outstanding",
       "offered_load",
       64,
       {"clan", "clan-poll"},
       {"tcp", "tcp-poll"},
       {"unix", "unix-poll"}},
      {"waking a sleeper", "wakeup", 1, {"clan"}, {"tcp"}, {"unix"}},
  };
}

const Row* best(const Results& results, const Line& line, const std::vector<std::string>& names) {
  const Row* found = nullptr;
  for (const std::string& name : names) {
    const Row* r = results.find(line.benchmark, name, line.x);
    if (r == nullptr) continue;
    const bool better = found == nullptr || (r->higher_is_better ? r->stats.p50 > found->stats.p50
                                                                 : r->stats.p50 < found->stats.p50);
    if (better) found = r;
  }
  return found;
}

std::string cell(const Row* row) {
  if (row == nullptr) return "-";
  if (row->unit == "ns" && row->stats.p50 >= 1000) {
    return fmt::format("{} us", format_value(row->stats.p50 / 1000));
  }
  return fmt::format("{} {}", format_value(row->stats.p50), row->unit);
}

std::string gain(const Row* clan, const Row* other) {
  if (clan == nullptr || other == nullptr || other->stats.p50 <= 0 || clan->stats.p50 <= 0) {
    return "-";
  }
  const double times = clan->higher_is_better ? clan->stats.p50 / other->stats.p50
                                              : other->stats.p50 / clan->stats.p50;
  return fmt::format("{:.1f} x", times);
}

/// What disturbed the measurements of a line, to stand beside it.
std::string doubt(std::initializer_list<const Row*> rows) {
  for (const Row* row : rows) {
    if (row != nullptr && !row->note.empty()) return "  (" + row->note + ")";
  }
  return "";
}

void print_comparison(const Results& results) {
  constexpr const char* kFormat = "  {:<41} {:>16} {:>16} {:>16} {:>9} {:>9} {:>11}{}\n";
  fmt::print("\n");
  fmt::print(kFormat, "median", "CLAN", "TCP", "UNIX", "vs TCP", "vs UNIX", "vs polling", "");
  for (const Line& line : lines()) {
    const Row* clan = best(results, line, line.clan);
    const Row* tcp = best(results, line, line.tcp);
    const Row* unix_sockets = best(results, line, line.unix_sockets);
    const Row* polling = best(results, line, {"tcp-poll", "unix-poll"});
    if (clan == nullptr && tcp == nullptr && unix_sockets == nullptr) continue;
    fmt::print(kFormat, line.text, cell(clan), cell(tcp), cell(unix_sockets), gain(clan, tcp),
               gain(clan, unix_sockets), gain(clan, polling), doubt({clan, tcp, unix_sockets}));
  }
  fmt::print(
      "Default waiting: CLAN polls for as long as that has paid off, then sleeps; with a peer that "
      "answers at\n"
      "once, as here, it hardly ever does. The kernel's sockets sleep each time. \"vs polling\" "
      "compares with\n"
      "the faster of TCP and UNIX sockets that poll; \"-\": there is no such variant in this "
      "comparison.\n");
  std::fflush(stdout);
}

}  // namespace

void quick(Context& context) {
  for (auto run : {cacheline, stream_latency, message_rate, bandwidth, same_core, oversubscribed,
                   idle_endpoints, offered_load, wakeup}) {
    fmt::print(stderr, ".");
    run(context);
  }
  fmt::print(stderr, "\n");
  if (const Row* line = context.results().find("cacheline", "bare", 8)) {
    fmt::print("a cache line there and back: {:.0f} ns\n", line->stats.p50);
  }
  print_comparison(context.results());
}

}  // namespace clan::bench
