// Order statistics of a set of measurements.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace clan::bench {

/// Plain data: the measuring process writes it into shared memory for the one that reports.
struct Stats {
  double min = 0;
  double p50 = 0;
  double p99 = 0;
  double max = 0;
  double mad = 0;  ///< median absolute deviation of the runs' medians
  std::size_t runs = 0;
};

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto mid = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), mid, values.end());
  return *mid;
}

/// `values` pools every measurement of every kept run; `run_medians` has one entry per run.
inline Stats summarise(std::vector<double> values, const std::vector<double>& run_medians) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto quantile = [&](double q) {
    return values[static_cast<std::size_t>(
        std::lround(q * static_cast<double>(values.size() - 1)))];
  };
  const double centre = median(run_medians);
  std::vector<double> deviations;
  for (double m : run_medians) deviations.push_back(std::fabs(m - centre));
  return {values.front(), quantile(0.50),     quantile(0.99),
          values.back(),  median(deviations), run_medians.size()};
}

/// Statistics where each run gave one figure.
inline Stats summarise_runs(const std::vector<double>& runs) { return summarise(runs, runs); }

}  // namespace clan::bench
