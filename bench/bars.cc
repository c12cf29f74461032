#include <fmt/core.h>

#include <set>

#include "benchmarks.h"

namespace clan::bench {

namespace {

struct Which {
  const char* benchmark;
  std::vector<std::string> variants;  ///< the best of them
  double x;

  const Row* in(const Results& results) const { return results.best(benchmark, variants, x); }
};

enum class Bar {
  kTimesBetter,   ///< mine is at least `limit` times as good as the other (above 1: better)
  kOfBound,       ///< the same, and the other is what can be had at most: more is no bound
  kProbesAtMost,  ///< mine takes at most `limit` bare cache-line round trips
  kAtMost,        ///< mine is at most `limit`, in its own unit
};

struct Line {
  std::string text;
  Bar bar;
  double limit;
  Which mine;
  Which other = {"", {}, 0};

  bool compares() const { return bar == Bar::kTimesBetter || bar == Bar::kOfBound; }
};

constexpr double kMb = 1048576, kKb64 = 65536;
constexpr double kNoise = 1.05;  ///< above a bound that is one

Line times(std::string text, double limit, Which mine, Which other) {
  return {std::move(text), Bar::kTimesBetter, limit, std::move(mine), std::move(other)};
}
Line of_bound(std::string text, double limit, Which mine, Which other) {
  return {std::move(text), Bar::kOfBound, limit, std::move(mine), std::move(other)};
}
Line at_most(std::string text, Bar bar, double limit, Which mine) {
  return {std::move(text), bar, limit, std::move(mine)};
}

std::vector<Line> lines() {
  const std::vector<std::string> ucx = {"ucx", "ucx posix", "ucx stream, posix"};
  const std::vector<std::string> bare = {"bare", "bare, prefetch"};
  std::vector<Line> all = {
      at_most("stream 64 B round trip, in cache-line trips", Bar::kProbesAtMost, 2.5,
              {"stream_latency", {"clan-poll"}, 64}),
      times("stream 64 B round trip against TCP", 50, {"stream_latency", {"clan-poll"}, 64},
            {"stream_latency", {"tcp"}, 64}),
      at_most("message 64 B round trip, in cache-line trips", Bar::kProbesAtMost, 2.5,
              {"message_latency", {"clan-poll"}, 64}),
      times("message 64 B round trip against TCP", 50, {"message_latency", {"clan-poll"}, 64},
            {"stream_latency", {"tcp"}, 64}),
      of_bound("8 B messages/s against the bare bound", 0.6, {"message_rate", {"clan"}, 8},
               {"message_rate", bare, 8}),
      of_bound("64 B messages/s against the bare bound", 0.6, {"message_rate", {"clan"}, 64},
               {"message_rate", bare, 64}),
      times("8 B messages/s against UCX tag_bw", 1, {"message_rate", {"clan"}, 8},
            {"ucx_rate", {"ucx"}, 8}),
      times("64 B messages/s against UCX tag_bw", 1, {"message_rate", {"clan"}, 64},
            {"ucx_rate", {"ucx"}, 64}),
      times("1 MB stream against TCP", 2.5, {"bandwidth", {"clan-poll"}, kMb},
            {"bandwidth", {"tcp"}, kMb}),
      times("64 KB stream against the best of UCX", 1, {"bandwidth", {"clan-poll"}, kKb64},
            {"ucx_bandwidth", ucx, kKb64}),
      times("1 MB RDMA, both ends polling, against the best of UCX", 1.4,
            {"rdma_copy", {"clan-poll"}, kMb}, {"ucx_bandwidth", ucx, kMb}),
      times("1 MB RDMA, owner not polling, against one push", 0.95, {"rdma_copy", {"clan"}, kMb},
            {"rdma_copy", {"writev"}, kMb}),
      of_bound("PIO write of 64 B against a store loop", 1 / 1.2, {"pio_write", {"clan"}, 64},
               {"pio_write", {"bare"}, 64}),
      times("round trip, 10000 idle endpoints against 1", 1 / 1.1,
            {"idle_endpoints", {"clan-poll"}, 10000}, {"idle_endpoints", {"clan-poll"}, 1}),
      at_most("resident bytes of an idle connection", Bar::kAtMost, 10240,
              {"idle_memory", {"clan"}, 1000}),
      at_most("CPU time of an idle process, us/s", Bar::kAtMost, 1, {"idle_cpu", {"clan"}, 1000}),
      times("both ends on one core against UNIX sockets", 1, {"same_core", {"clan"}, 64},
            {"same_core", {"unix"}, 64}),
      times("8 processes on 2 cores against UNIX sockets", 1, {"oversubscribed", {"clan"}, 64},
            {"oversubscribed", {"unix"}, 64}),
  };
  for (const double x : {8.0, 64.0, 1024.0, kKb64, kMb}) {
    all.push_back(times("message round trip against the best of UCX, " + format_x(x, "bytes"), 1,
                        {"message_latency", {"clan-poll"}, x}, {"ucx_latency", ucx, x}));
  }
  return all;
}

bool regimes_differ(const Row& a, const Row& b) {
  if (a.probe_ns <= 0 || b.probe_ns <= 0) return false;
  return std::max(a.probe_ns, b.probe_ns) > kProbeTolerance * std::min(a.probe_ns, b.probe_ns);
}

Verdict verdict(const Line& line, const Row* mine, const Row* other) {
  const bool compares = line.compares();
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
std::string cpu_times(const Row* mine, const Row* other) {
  if (mine == nullptr || other == nullptr || mine->cpu_ns <= 0) return "";
  return fmt::format("{} / {}", format_cpu_time(*mine), format_cpu_time(*other));
}

/// The comparison with TCP where both sides poll, for the column beside a bar against TCP that
/// blocks.
std::string beside(const Line& line, const Row* mine, const Results& results) {
  if (line.other.variants != std::vector<std::string>{"tcp"}) return "";
  const Row* polling = results.best(line.other.benchmark, {"tcp-poll"}, line.other.x);
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
    const Row *mine = line.mine.in(results), *other = line.other.in(results);
    Verdict& bar = out.emplace_back(verdict(line, mine, other));
    bar.more = {{"both polling", beside(line, mine, results)},
                {"CPU time", cpu_times(mine, other)}};
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
