#include "support/stats.h"

#include <algorithm>
#include <cmath>

namespace clan::bench {

namespace {

double quantile_of_sorted(const std::vector<double>& sorted, double q) {
  const double rank = q * static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<std::size_t>(std::lround(rank))];
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto mid = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), mid, values.end());
  return *mid;
}

Stats summarise(std::vector<double> values, const std::vector<double>& run_medians) {
  Stats s;
  if (values.empty()) return s;
  std::sort(values.begin(), values.end());
  s.min = values.front();
  s.p50 = quantile_of_sorted(values, 0.50);
  s.p99 = quantile_of_sorted(values, 0.99);
  s.max = values.back();
  s.count = values.size();
  s.runs = run_medians.size();
  const double centre = median(run_medians);
  std::vector<double> deviations;
  deviations.reserve(run_medians.size());
  for (double m : run_medians) deviations.push_back(std::fabs(m - centre));
  s.mad = median(std::move(deviations));
  return s;
}

Stats summarise_runs(const std::vector<double>& runs) { return summarise(runs, runs); }

}  // namespace clan::bench
