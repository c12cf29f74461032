#include "support/context.h"

#include <fmt/core.h>

#include <algorithm>

#include "support/other_work.h"

namespace clan::bench {

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

GroupOptions Context::across_cores() const { return group({{options_.core_a}, {options_.core_b}}); }

GroupOptions Context::on_one_core() const { return group({{options_.core_a}, {options_.core_a}}); }

GroupOptions Context::on_two_cores(std::size_t members) const {
  std::vector<int> both = {options_.core_a, options_.core_b};
  return group(std::vector<std::vector<int>>(members, both));
}

std::vector<std::size_t> Context::sizes(const std::vector<std::size_t>& full,
                                        const std::vector<std::size_t>& quick,
                                        const std::vector<std::size_t>& smoke) const {
  return options_.smoke ? smoke : options_.quick ? quick : full;
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

void Context::failed(const std::string& benchmark, const std::string& variant,
                     const std::string& why) {
  ++failures_;
  fmt::print(stderr, "clan-bench: {} {}: {}\n", benchmark, variant, why);
  results_.skip({benchmark, variant, why, true});
}

Row make_row(const std::string& benchmark, const std::string& variant, double x,
             const std::string& unit, const Outcome& outcome) {
  Row row;
  row.benchmark = benchmark;
  row.variant = variant;
  row.x = x;
  row.unit = unit;
  row.stats = outcome.members.front().stats[0];
  row.probe_ns = outcome.probe_ns;
  row.cpu_ns = outcome.cpu_ns;
  row.dropped = outcome.dropped;
  if (outcome.unstable > 0) row.note = fmt::format("{} runs unstable", outcome.unstable);
  return row;
}

}  // namespace clan::bench
