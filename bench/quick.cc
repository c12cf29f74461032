// The short comparison that ./quickstart ends with: CLAN beside kernel TCP and UNIX sockets.
#include <fmt/core.h>

#include <initializer_list>

#include "benchmarks.h"

namespace clan::bench {

namespace {

/// Which variants a column shows the best of: those that poll, those that do not, or all.
enum class Waits { kPoll, kBlock, kBest };

/// The last column of the table compares with the better of the kernel's sockets that poll, whether
/// listed or not.
struct Line {
  const char* text;
  const char* benchmark;
  double x;
  Waits clan, kernel;
};

constexpr Line kLines[] = {
    {"64 B there and back, both polling", "stream_latency", 64, Waits::kPoll, Waits::kPoll},
    {"64 B there and back, default waiting", "stream_latency", 64, Waits::kBlock, Waits::kBlock},
    {"64 KB there and back", "stream_latency", 65536, Waits::kBest, Waits::kBest},
    {"8 B messages", "message_rate", 8, Waits::kBlock, Waits::kBlock},
    {"64 B messages", "message_rate", 64, Waits::kBlock, Waits::kBlock},
    {"stream of 64 KB pieces", "bandwidth", 65536, Waits::kBest, Waits::kBest},
    {"stream of 1 MB pieces", "bandwidth", 1048576, Waits::kBest, Waits::kBest},
    {"both ends on one core, 64 B", "same_core", 64, Waits::kBlock, Waits::kBlock},
    {"8 processes on 2 cores, 64 B", "oversubscribed", 64, Waits::kBlock, Waits::kBlock},
    {"64 B, 1000 idle connections", "idle_endpoints", 1000, Waits::kBest, Waits::kPoll},
    {"64 requests outstanding", "offered_load", 64, Waits::kBest, Waits::kBest},
    {"waking a sleeper", "wakeup", 1, Waits::kBlock, Waits::kBlock},
};

const Row* best(const Results& results, const Line& line, const std::string& name, Waits waits) {
  std::vector<std::string> variants;
  if (waits != Waits::kPoll) variants.push_back(name);
  if (waits != Waits::kBlock) variants.push_back(name + "-poll");
  // Records are what the kernel has beside messages.
  if (name == "unix" && line.benchmark == std::string("message_rate"))
    variants.emplace_back("seqpacket");
  return results.best(line.benchmark, variants, line.x);
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
  return fmt::format("{:.1f} x", times_better(*clan, *other));
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
  for (const Line& line : kLines) {
    const Row* clan = best(results, line, "clan", line.clan);
    const Row* tcp = best(results, line, "tcp", line.kernel);
    const Row* unix_sockets = best(results, line, "unix", line.kernel);
    const Row* polling = results.best(line.benchmark, {"tcp-poll", "unix-poll"}, line.x);
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
  if (const Row* line = context.results().best("cacheline", {"bare"}, 8)) {
    fmt::print("a cache line there and back: {:.0f} ns\n", line->stats.p50);
  }
  print_comparison(context.results());
}

}  // namespace clan::bench
