#include "support/context.h"

#include <clan/detail/clock.h>
#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace clan::bench {

namespace {

double busy_so_far() {
  std::ifstream stat("/proc/stat");
  std::string line;
  std::getline(stat, line);
  return busy_seconds(line);
}

double own_so_far() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage spent{};
    (void)getrusage(who, &spent);
    for (const timeval& t : {spent.ru_utime, spent.ru_stime})
      seconds += static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  }
  return seconds;
}

}  // namespace

double busy_seconds(const std::string& line) {
  std::istringstream words(line);
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, irq = 0, soft = 0, stolen = 0;
  words >> name >> user >> nice >> system >> idle >> waiting >> irq >> soft >> stolen;
  const double ticks = user + nice + system + irq + soft + stolen;
  return name == "cpu" ? ticks / static_cast<double>(sysconf(_SC_CLK_TCK)) : 0;
}

OtherWork::OtherWork() : busy_(busy_so_far()), own_(own_so_far()), began_ns_(monotonic_ns()) {}

double OtherWork::processors() const {
  const double others = busy_so_far() - busy_ - (own_so_far() - own_);
  return std::max(0.0, others / (static_cast<double>(monotonic_ns() - began_ns_) / 1e9));
}

GroupOptions Context::group(std::vector<std::vector<int>> cores) const {
  GroupOptions g;
  g.cores = std::move(cores);
  g.samples = options_.samples;
  g.max_dropped = options_.smoke ? 1 : 2 * options_.samples;
  g.sample_ms = options_.sample_ms;
  g.deadline_s = options_.deadline_s;
  g.smoke = options_.smoke;
  return g;
}

void Context::point(const std::vector<Variant>& variants) {
  constexpr int kAttempts = 3;
  for (int attempt = 1;; ++attempt) {
    std::vector<Row> rows;
    const int failures_before = failures_;
    double low = 0, high = 0;
    const OtherWork beside;
    for (const Variant& measure : variants) {
      auto row = measure(*this);
      if (!row) continue;
      if (row->probe_ns > 0) {
        low = low == 0 ? row->probe_ns : std::min(low, row->probe_ns);
        high = std::max(high, row->probe_ns);
      }
      rows.push_back(std::move(*row));
    }
    const bool one_regime = high <= kProbeTolerance * low;
    const double others = beside.processors();
    const bool last = attempt == kAttempts || options_.smoke || failures_ > failures_before;
    if ((!one_regime || others > kOtherWork) && !last) continue;
    for (Row& row : rows) {
      const auto note = [&row](const std::string& text) {
        row.note += (row.note.empty() ? "" : ", ") + text;
      };
      if (!one_regime && row.probe_ns > 0 && !options_.smoke) note("mixed regimes");
      if (others > kOtherWork && !options_.smoke)
        note(fmt::format("busy: {:.1f} processors for others", others));
      results_.add(std::move(row));
    }
    return;
  }
}

void Context::skip(const std::string& benchmark, const std::string& variant,
                   const std::string& reason) {
  results_.skip({benchmark, variant, reason});
}

std::optional<Outcome> Context::run(const std::string& benchmark, const std::string& variant,
                                    const std::string& why_not, const GroupOptions& group,
                                    const std::function<bool(Member&)>& body, bool required) {
  if (!why_not.empty()) {
    skip(benchmark, variant, why_not);
    return std::nullopt;
  }
  Outcome outcome = run_group(group, body);
  if (outcome.failure.empty()) return outcome;
  if (required) {
    ++failures_;
    fmt::print(stderr, "clan-bench: {} {}: {}\n", benchmark, variant, outcome.failure);
  }
  results_.skip({benchmark, variant, outcome.failure, required});
  return std::nullopt;
}

Row make_row(const std::string& benchmark, const std::string& variant, double x,
             const std::string& unit, const Outcome& outcome) {
  Row row;
  row.benchmark = benchmark;
  row.variant = variant;
  row.x = x;
  row.unit = unit;
  row.stats = outcome.members.front().stats[0];
  row.op_ns = row.stats.p50;
  row.probe_ns = outcome.probe_ns;
  row.cpu_ns = outcome.cpu_ns;
  row.dropped = outcome.dropped;
  if (outcome.unstable > 0) row.note = fmt::format("{} runs unstable", outcome.unstable);
  return row;
}

Row rate_row(const std::string& benchmark, const std::string& variant, double x,
             const std::string& unit, const Outcome& outcome, double per_ns) {
  Row row = make_row(benchmark, variant, x, unit, outcome);
  row.higher_is_better = true;
  std::vector<double> runs = outcome.members.front().runs[0];
  for (double& ns : runs) ns = per_ns / ns;
  row.stats = summarise_runs(runs);
  return row;
}

}  // namespace clan::bench
