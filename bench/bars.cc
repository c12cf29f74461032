#include "bars.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "support/process_group.h"

namespace clan::bench {

namespace {

struct Which {
  std::string benchmark;
  std::string variant;  ///< several with a `|` between them: the best of them
  double x;
};

enum class Bar {
  kTimesBetter,   ///< mine is at least `limit` times as good as the other (above 1: better)
  kOfBound,       ///< the same, and the other is what can be had at most: more is no bound
  kProbesAtMost,  ///< mine takes at most `limit` bare cache-line round trips
  kAtMost,        ///< mine is at most `limit`, in its own unit
};

struct Line {
  const char* text;
  Bar bar;
  double limit;
  Which mine;
  Which other = {};
  Which polling = {};  ///< the kernel's variant that polls, when `other` is one that blocks
};

constexpr double kMb = 1048576, kKb64 = 65536;
constexpr double kNoise = 1.05;  ///< above a bound that is one

const char* const kUcx = "ucx|ucx posix|ucx stream, posix";

// Bar, limit, CLAN's row, the other, and the other when it polls.
const Line kLines[] = {
    {"stream 64 B round trip, in cache-line trips",
     Bar::kProbesAtMost,
     2.5,
     {"stream_latency", "clan-poll", 64}},
    {"stream 64 B round trip against TCP",
     Bar::kTimesBetter,
     50,
     {"stream_latency", "clan-poll", 64},
     {"stream_latency", "tcp", 64},
     {"stream_latency", "tcp-poll", 64}},
    {"message 64 B round trip, in cache-line trips",
     Bar::kProbesAtMost,
     2.5,
     {"message_latency", "clan-poll", 64}},
    {"message 64 B round trip against TCP",
     Bar::kTimesBetter,
     50,
     {"message_latency", "clan-poll", 64},
     {"stream_latency", "tcp", 64},
     {"stream_latency", "tcp-poll", 64}},
    {"8 B messages/s against the bare bound",
     Bar::kOfBound,
     0.6,
     {"message_rate", "clan", 8},
     {"message_rate", "bare|bare, prefetch", 8}},
    {"64 B messages/s against the bare bound",
     Bar::kOfBound,
     0.6,
     {"message_rate", "clan", 64},
     {"message_rate", "bare|bare, prefetch", 64}},
    {"8 B messages/s against UCX tag_bw",
     Bar::kTimesBetter,
     1,
     {"message_rate", "clan", 8},
     {"ucx_rate", "ucx", 8}},
    {"64 B messages/s against UCX tag_bw",
     Bar::kTimesBetter,
     1,
     {"message_rate", "clan", 64},
     {"ucx_rate", "ucx", 64}},
    {"1 MB stream against TCP",
     Bar::kTimesBetter,
     2.5,
     {"bandwidth", "clan-poll", kMb},
     {"bandwidth", "tcp", kMb},
     {"bandwidth", "tcp-poll", kMb}},
    {"64 KB stream against the best of UCX",
     Bar::kTimesBetter,
     1,
     {"bandwidth", "clan-poll", kKb64},
     {"ucx_bandwidth", kUcx, kKb64}},
    {"1 MB RDMA, both ends polling, against the best of UCX",
     Bar::kTimesBetter,
     1.4,
     {"rdma_copy", "clan-poll", kMb},
     {"ucx_bandwidth", kUcx, kMb}},
    {"1 MB RDMA, owner not polling, against one push",
     Bar::kTimesBetter,
     0.95,
     {"rdma_copy", "clan", kMb},
     {"rdma_copy", "writev", kMb}},
    {"PIO write of 64 B against a store loop",
     Bar::kOfBound,
     1 / 1.2,
     {"pio_write", "clan", 64},
     {"pio_write", "bare", 64}},
    {"round trip, 10000 idle endpoints against 1",
     Bar::kTimesBetter,
     1 / 1.1,
     {"idle_endpoints", "clan-poll", 10000},
     {"idle_endpoints", "clan-poll", 1}},
    {"resident bytes of an idle connection", Bar::kAtMost, 10240, {"idle_memory", "clan", 1000}},
    {"CPU time of an idle process, us/s", Bar::kAtMost, 1, {"idle_cpu", "clan", 1000}},
    {"both ends on one core against UNIX sockets",
     Bar::kTimesBetter,
     1,
     {"same_core", "clan", 64},
     {"same_core", "unix", 64}},
    {"8 processes on 2 cores against UNIX sockets",
     Bar::kTimesBetter,
     1,
     {"oversubscribed", "clan", 64},
     {"oversubscribed", "unix", 64}},
};

/// The rows of one size each.
Line against_ucx(double bytes) {
  return {"message round trip against the best of UCX",
          Bar::kTimesBetter,
          1,
          {"message_latency", "clan-poll", bytes},
          {"ucx_latency", kUcx, bytes}};
}

std::vector<Line> lines() {
  std::vector<Line> all(std::begin(kLines), std::end(kLines));
  for (const double bytes : {8.0, 64.0, 1024.0, kKb64, kMb}) all.push_back(against_ucx(bytes));
  return all;
}

double times_better(const Row& mine, const Row& other) {
  return mine.higher_is_better ? mine.stats.p50 / other.stats.p50
                               : other.stats.p50 / mine.stats.p50;
}

bool regimes_differ(const Row& a, const Row& b) {
  if (a.probe_ns <= 0 || b.probe_ns <= 0) return false;
  return std::max(a.probe_ns, b.probe_ns) > kProbeTolerance * std::min(a.probe_ns, b.probe_ns);
}

// The best of the rows that it names.
const Row* find(const Results& results, const Which& which) {
  const Row* best = nullptr;
  for (std::size_t at = 0; at <= which.variant.size();) {
    const std::size_t end = std::min(which.variant.find('|', at), which.variant.size());
    const Row* row = results.find(which.benchmark, which.variant.substr(at, end - at), which.x);
    if (row != nullptr && (best == nullptr || times_better(*row, *best) > 1)) best = row;
    at = end + 1;
  }
  return best;
}

Verdict verdict(const Line& line, const Results& results) {
  const Row* mine = find(results, line.mine);
  const bool compares = line.bar == Bar::kTimesBetter || line.bar == Bar::kOfBound;
  const Row* other = compares ? find(results, line.other) : nullptr;
  Verdict out{line.text, fmt::format("at {} {:.5g}", compares ? "least" : "most", line.limit)};
  if (mine == nullptr || (compares && other == nullptr)) return out;
  const double figure = compares                   ? times_better(*mine, *other)
                        : line.bar == Bar::kAtMost ? mine->stats.p50
                                                   : mine->to_probe();
  out.figure = fmt::format("{:.2f}", figure);
  if (compares && regimes_differ(*mine, *other)) {
    out.figure += ", mixed regimes: measure again";
    return out;
  }
  out.verdict = (compares ? figure >= line.limit : figure <= line.limit) ? "met" : "missed";
  if (line.bar == Bar::kOfBound && figure > kNoise) out.figure += ", so the bound is none";
  return out;
}

/// CPU time of a throughput, CLAN's and that of what it is compared with.
std::string cpu_times(const Line& line, const Results& results) {
  const Row *mine = find(results, line.mine), *other = find(results, line.other);
  if (mine == nullptr || other == nullptr || !cpu_time(*mine)) return "";
  return fmt::format("{} / {}", format_cpu_time(*mine), format_cpu_time(*other));
}

/// The same comparison with both sides polling, for the column beside the bar.
std::string beside(const Line& line, const Results& results) {
  if (line.polling.variant.empty()) return "";
  const Row *mine = find(results, line.mine), *polling = find(results, line.polling);
  if (mine == nullptr || polling == nullptr) return "not measured";
  return fmt::format("{:.2f} x", times_better(*mine, *polling));
}

}  // namespace

bool bars_need(const std::string& question) {
  static const std::set<std::string> kNeeded = {
      "stream_latency", "message_latency", "message_rate", "bandwidth", "pio_write", "same_core",
      "oversubscribed", "idle_endpoints",  "rdma_copy",    "ucx",       "idle_cost"};
  return kNeeded.count(question) > 0;
}

std::vector<Verdict> bars(const Results& results) {
  std::vector<Verdict> out;
  for (const Line& line : lines()) {
    Verdict& bar = out.emplace_back(verdict(line, results));
    if (line.mine.benchmark == "message_latency" && line.other.benchmark == "ucx_latency")
      bar.text += ", " + format_x(line.mine.x, "bytes");
    bar.more = {{"both polling", beside(line, results)}, {"CPU time", cpu_times(line, results)}};
  }
  return out;
}

std::string bars_table(const std::vector<Verdict>& bars) {
  std::vector<std::vector<std::string>> cells{
      {"", "figure", "wanted", "", "both polling", "CPU time"}};
  for (const Verdict& bar : bars) {
    cells.push_back(
        {bar.text, bar.figure, bar.wanted, bar.verdict, bar.more[0].second, bar.more[1].second});
  }
  return aligned(cells, cells[0].size()) +
         "  Against TCP: CLAN polls, TCP sockets block, as programs use them; \"both polling\" is "
         "the same CLAN\n"
         "  against TCP sockets that poll. Against UNIX sockets: both wait as they do by "
         "default.\n"
         "  CPU time of all processes for a message or trip, or for a gigabyte: with CLAN / with "
         "the other.\n";
}

}  // namespace clan::bench
